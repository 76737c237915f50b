"""The chapters as one book: each leads back to what it uses and on to what it opens, and a rung that is named is
linked."""

import json
import re
from urllib.parse import unquote

import pytest
import repo

from scaleout.page import ladder

CHAPTERS = sorted(name for name in repo.with_suffix(".ipynb") if name.startswith("notebooks/"))
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./notebooks/)?(\d\d)_(\w+)\.ipynb(?:#[\w-]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)


def prose(name: str) -> str:
    """A chapter's words, without code."""
    cells = json.loads(repo.text(name))["cells"]
    return CODE.sub("", "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))


def number(name: str) -> str:
    return name.removeprefix("notebooks/")[:2]


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_leads_back_and_on(name):
    linked = {found[1] for found in LINK.findall(prose(name))}
    numbers = [number(one) for one in CHAPTERS]
    assert linked <= {*numbers}
    if name != CHAPTERS[0]:
        assert min(linked, default="99") < number(name), "to what it uses"
    if name != CHAPTERS[-1]:
        assert max(linked, default="00") > number(name), "to what it opens"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_rung_that_is_named_is_linked_to_its_page(name):
    text = prose(name)
    for words, linked, _ in LINK.findall(text):
        assert not (found := re.search(r"[Rr]ung (\d\d)", words)) or found[1] == linked, words
    rest = LINK.sub("", text)
    there = {number(one) for one in CHAPTERS}
    assert not [one for one in re.findall(r"\b[Rr]ung (\d\d)\b", rest) if one in there]


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_link_leads_to_one_address(name):
    """None is cut in two by a sentence that was put in at a full stop."""
    assert not re.findall(r"\]\((?=[^)]*\s)[^)]*\)?", prose(name))


@pytest.mark.parametrize("page", [name for name in repo.with_suffix(".md") if name.startswith("book/")])
def test_pages_name_rungs_that_there_are(page):
    text = repo.text(page)
    for words, linked, stem in LINK.findall(text):
        assert f"notebooks/{linked}_{stem}.ipynb" in CHAPTERS, words
        assert not (found := re.search(r"[Rr]ung (\d\d)", words)) or found[1] == linked, words


def test_the_glossary_is_in_order_and_chapters_link_to_entries_that_there_are():
    entries = re.findall(r"^(?![#`]|Point at)(\S.*)\n  \S", repo.text("book/glossary.md"), re.M)
    assert len(entries) > 100 and entries == sorted(entries, key=str.lower)
    known, used = {entry.lower() for entry in entries}, set()
    for name in CHAPTERS:
        linked = {unquote(one).lower() for one in re.findall(r"glossary\.md#([^)\s]+)\)", prose(name))}
        assert linked <= known, name
        used |= linked
    assert used == known, "an entry that no chapter leads to"


def test_a_rung_has_one_name_in_the_contents():
    listed = re.findall(r"file: (?:notebooks/\d\d_|book/instructor/)(\w+)\n\s+title: \"(.+)\"", repo.text("_toc.yml"))
    names = {rung["stem"]: f"{rung['number']} {rung['title']}" for rung in ladder.rungs()}
    named = [(stem, title) for stem, title in listed if stem != "index"]
    assert len(named) == 2 * len(CHAPTERS) and all(names[stem] == title for stem, title in named)
