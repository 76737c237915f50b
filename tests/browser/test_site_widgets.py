"""The widgets on the real pages of the built site."""

from __future__ import annotations

import os
import re
from urllib.parse import urlparse

import live_page
import pytest
from conftest import ROOT, Watch

from scaleout import views

pytestmark = pytest.mark.browser
HTML = ROOT / "_build" / "html"

# A view on a page, by its place among the page's widgets.
ROOTS = "[...document.querySelectorAll('.live-widget[data-form=view]')]"


def pages() -> list[str]:
    """Pages of the site that show a view."""
    found = sorted(HTML.glob("*/*.html")) if HTML.is_dir() else []
    return [str(path.relative_to(HTML)) for path in found if 'data-form="view"' in path.read_text("utf-8")]


PAGES = pages()


@pytest.fixture(scope="module")
def book():
    """The address of the built site."""
    if not PAGES:
        reason = "no page of _build/html shows a view: run make site"
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(reason)
    with live_page.serve(HTML) as address:
        yield address


@pytest.fixture
def reader(context, book):
    """A page under watch, with nothing remembered."""
    opened = context.new_page()
    opened.watch = Watch(opened, urlparse(book).netloc)
    opened.goto(f"{book}/{PAGES[0]}")
    opened.evaluate("localStorage.clear()")
    opened.goto("about:blank")
    yield opened
    found = opened.watch.unexpected()
    opened.close()
    assert found == []


def visit(reader, book: str, name: str, fragment: str = ""):
    reader.goto(f"{book}/{name}{fragment}")
    reader.wait_for_selector(".live-widget[data-form=view][data-mounted]")
    return reader


def test_the_site_has_pages_with_views(book):
    assert PAGES


@pytest.mark.parametrize("name", PAGES)
def test_every_view_of_a_page_answers_as_python_does(reader, book, name):
    page = visit(reader, book, name)
    for at in range(page.locator(".live-widget[data-form=view]").count()):
        got = page.evaluate(f"""async () => {{
          const view = {ROOTS}[{at}].live;
          const {{min, max}} = view.root.querySelector("input[type=range]");
          const input = view.root.querySelector("input[type=range]");
          input.value = Number(min) + Math.round((max - min) / 3);
          input.dispatchEvent(new Event("input", {{bubbles: true}}));
          await new Promise((done) => view.root.addEventListener("live-paint", done, {{once: true}}));
          return {{stem: view.data.stem, params: view.params, values: view.values}};
        }}""")
        assert got["values"] == views.render(got["stem"], got["params"])["values"]


@pytest.mark.parametrize("name", PAGES)
def test_python_waits_for_the_first_touch(reader, book, name):
    page = visit(reader, book, name)
    page.wait_for_load_state("networkidle")
    assert [url for url in reader.watch.requests if re.search(r"pyodide|worker\.js|\.zip$", url)] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_widget_is_at_home_in_the_theme(reader, book, name):
    page = visit(reader, book, name)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    widget = page.locator(".live-widget").first
    assert widget.evaluate("(node) => getComputedStyle(node.parentElement).backgroundColor") == "rgba(0, 0, 0, 0)"
    assert widget.evaluate("(node) => getComputedStyle(node).colorScheme") == "dark"
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".live-widget[data-form=view] .live-plain").first.click()
    page.locator(".live-controls").first.locator(".live-control").last.scroll_into_view_if_needed()
    picture = page.locator(".live-figure svg").first.bounding_box()
    assert 0 < picture["y"] < 422  # still in sight above the controls, below the theme's bar
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1000, "height": 1100})


@pytest.mark.parametrize("name", PAGES)
def test_a_link_brings_its_state(reader, book, name):
    page = visit(reader, book, name)
    view = page.evaluate(f"(() => {{ const {{data}} = {ROOTS}[0].live; return data; }})()")
    slider = next(one for one in view["spec"]["controls"] if one["kind"] == "slider")
    other = slider["hi"] if view["params"][slider["name"]] == slider["lo"] else slider["lo"]
    page.goto("about:blank")
    page = visit(reader, book, name, f"#live-{view['key']}?{slider['name']}={other}")
    page.wait_for_function(f"{ROOTS}[0].live.params['{slider['name']}'] === {other}")
    want = views.render(view["stem"], {**view["params"], slider["name"]: other})
    assert page.evaluate(f"{ROOTS}[0].live.values") == want["values"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_its_pictures(reader, book, name):
    page = visit(reader, book, name)
    page.emulate_media(media="print")
    for widget in page.locator(".live-widget[data-form=view]").all():
        assert widget.locator(".live-figure svg").is_visible()
        assert widget.locator(".live-controls").is_hidden()
