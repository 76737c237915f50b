"""Faults and waste in the theme's pages, fixed when the site is built; and things that no page may do."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

# What a screen reader would read wrongly in the theme's HTML: icons as text, a summary without a name, a list
# whose children are no items. (what is there, what it becomes), as plain text.
REPAIRS = (
    ('<summary><span class="toctree', '<summary aria-label="Pages below"><span class="toctree'),
    ('data-mode="light" title="Light"', 'data-mode="light"'),
    ('data-mode="dark"  title="Dark"', 'data-mode="dark"'),
    ('data-mode="auto"  title="System Settings"', 'data-mode="auto"'),
    ('<i class="fa-solid fa-magnifying-glass', '<i aria-hidden="true" class="fa-solid fa-magnifying-glass'),
    ('<span class="search-button__kbd', '<span aria-hidden="true" class="search-button__kbd'),
    ('search-button-field search-button__button pst-js-only" title="Search" aria-label="Search"',
     'search-button-field search-button__button pst-js-only" title="Search"'),
    ('<summary aria-label="Toggle hidden content">', '<summary>'),
    ('<div role="list" class="citation-list">', '<div class="citation-list">'),
)  # fmt: skip

# No page of the book asks another host for anything, and no code of a reader's in it can: the browser refuses. Inline
# scripts and styles are the theme's and the pictures'; Pyodide compiles WebAssembly, in a worker made in the page
# (static/python.js), for whose code the same holds. It stands before any script.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "frame-src 'none'; object-src 'none'; base-uri 'self'; form-action 'self'"
)
META = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'

# The theme's second title and list of sections, for paper: the page has a title, and the search would find the list.
SECOND_TITLE = re.compile(r'<div id="jb-print-docs-body".*?(?=<div id="searchbox">)', re.S)

# The theme's icons are drawn as a page loads, and none comes later. To look for more of them in all that a live picture
# puts there would take a quarter of what the browser does for a redraw.
ICONS = "<script>FontAwesomeConfig = {observeMutations: false};</script>"


def settle_icons(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Say so before the theme's script reads it."""
    context["metatags"] = ICONS + context.get("metatags", "")


def repair_pages(app: Sphinx, error: Exception | None) -> None:
    """Apply REPAIRS to every page of the output, and leave out the second title; a second time changes nothing."""
    if error or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        repaired = SECOND_TITLE.sub("", text)
        if META not in repaired:
            repaired = repaired.replace("<head>", f"<head>\n{META}", 1)
        for old, new in REPAIRS:
            repaired = repaired.replace(old, new)
        if repaired != text:
            path.write_text(repaired, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("html-page-context", settle_icons)
    app.connect("build-finished", repair_pages, priority=600)  # once every page is written
