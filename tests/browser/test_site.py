"""The built site: every page there, nothing from another host, and each page sound in a real Chromium."""

import re
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from urllib.parse import urlparse

import pytest
import yaml
from driver import HTML, contents
from repo import ROOT

from scaleout.page import describe
from scaleout.page.ladder import rungs
from scaleout.spec.devices import DEVICES

PAGES = [*contents(), "404", "search"]


pytestmark = pytest.mark.usefixtures("book")


class Loads(HTMLParser):
    """Addresses that a page loads by itself (links that a reader follows are not among them)."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object"):
            self.found += [values[key] for key in ("src", "srcset", "data") if values.get(key)]
        if tag == "link" and values.get("rel") not in ("canonical", "author", "license"):
            self.found.append(values.get("href", ""))


def source(name):
    return (HTML / f"{name}.html").read_text(encoding="utf-8")


def test_the_contents_are_what_is_there():
    pages = contents()
    there = [*(ROOT / "book").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    there = [path.relative_to(ROOT).with_suffix("") for path in there if "node_modules" not in path.parts]
    assert sorted(pages) == sorted(map(str, there))
    assert len(yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"]) >= 3


def test_no_page_loads_anything_from_another_host():
    for name in PAGES:
        loaded = Loads(source(name)).found
        assert len(loaded) > 5, name
        assert not [address for address in loaded if urlparse(address).netloc], name
        assert "unpkg.com" not in source(name) and "jsdelivr" not in source(name), name


def test_style_sheets_load_nothing_from_another_host():
    sheets = sorted((HTML / "_static").rglob("*.css"))
    assert len(sheets) > 5
    for sheet in sheets:
        addresses = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s;]+)", sheet.read_text(encoding="utf-8"))
        assert not [one for one in addresses if urlparse(one).netloc], sheet.name


def test_a_page_has_its_icon_and_what_a_shared_link_shows():
    for name in PAGES:
        text = source(name)
        assert "favicon.svg" in text, name
        assert "thebe" not in re.sub(r"<link[^>]*sphinx-thebe\.css[^>]*>", "", text), name
        if name not in ("404", "search"):
            assert 'property="og:title"' in text and 'property="og:description"' in text, name


def test_a_page_says_what_it_is_to_those_who_do_not_see_it():
    """Its title once, its description, headings in order, and words for each picture."""
    for name in contents():
        text = source(name)
        said = describe.description(name)
        plain = f'<meta name="description" content="{escape(said)}"'
        for tag in (plain, f'property="og:description" content="{said}"'):
            assert text.count(tag) == 1, (name, tag)
        article = text[text.index("<article") : text.index("</article>")]
        levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", article)]
        assert levels[0] == 1 and levels.count(1) == 1 == text.count("<h1"), name
        assert all(b <= a + 1 for a, b in pairwise(levels)), f"{name}: a heading is left out"
        for image in re.findall(r"<img\b[^>]*>", article):
            assert re.search(r'alt="[^"]{12,}"', image), (name, image)
        for picture in re.findall(r'<svg\b[^>]*role="img"[^>]*>', article):
            assert re.search(r'aria-label(ledby)?="[^"]{30,}"', picture), (name, picture[:200])
    assert "<title>Copy, Split, Move, Recompute</title>" in source("book/index")


def test_only_pages_with_formulas_load_mathjax():
    assert "tex-chtml.js" in source("book/notation")
    assert "tex-chtml.js" not in source("book/how-to-use")


def test_tables_hold_what_their_source_holds():
    hardware, execution, index = (source(f"book/{name}") for name in ("hardware", "execution", "index"))
    for device in DEVICES.values():
        assert device.name in hardware and device.source in hardware
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.stem}.html" in execution
        assert (HTML / "_sources" / "notebooks" / notebook.name).is_file()
        assert "Download this notebook" in source(f"notebooks/{notebook.stem}")
    there = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    listed = rungs()
    assert len(listed) == 17
    for rung in listed:
        stem = f"{rung['number']}_{rung['stem']}"
        assert (f'href="../notebooks/{stem}.html">{rung["title"]}' in index) == (stem in there)
    assert index.count('class="rung-picture"') == len(there)


def test_the_pages_python_is_there():
    static = HTML / "_static"
    for name in ("pyodide/pyodide.mjs", "pyodide/python_stdlib.zip", "live/host.js", "live/scaleout.zip"):
        assert (static / name).stat().st_size > 100, name


def test_a_term_explains_itself(reader, book):
    reader.goto(f"{book}/book/glossary.html")
    reader.wait_for_function("document.querySelector('article dd a')._tippy")
    reader.locator("article dd a", has_text="ranks").first.hover()
    assert "One process of a distributed run" in reader.locator(".tippy-box").inner_text()


def test_a_wrong_address_leads_back(reader, book):
    reader.watch.allow("404")
    assert reader.goto(f"{book}/book/no-such-page.html").status == 404
    reader.get_by_role("link", name="the first page").click()
    reader.wait_for_url("**/book/index.html")


def test_the_search_finds_a_term(reader, book):
    reader.goto(f"{book}/search.html?q=all-reduce")
    found = reader.locator("#search-results li", has_text="Collectives: what must move")
    found.get_by_text("explain ring all-reduce").wait_for()  # what the page says, not a list of its sections
