"""The directive `ladder`: the rungs of book/rungs.yml on two rails.

A rung that is there has its picture (book/rungs/STEM.svg), what is scarce, what its reader can do at the end, how long
its short path and the whole of it take, and how far this reader has come (static/ladder.js); one that is coming is a
dashed line with its name.
"""

from __future__ import annotations

from html import escape
from itertools import groupby
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaleout.page import short_path

ROOT = Path(__file__).resolve().parents[2]


def rungs() -> list[dict]:
    """The ladder as listed in book/rungs.yml."""
    return yaml.safe_load((ROOT / "book" / "rungs.yml").read_text(encoding="utf-8"))


def page(rung: dict) -> str:
    """The document of a rung, as Sphinx names it."""
    return f"notebooks/{rung['number']}_{rung['stem']}"


def picture(stem: str) -> str:
    """A rung's picture, as SVG that takes its colours from the page."""
    return (ROOT / "book" / "rungs" / f"{stem}.svg").read_text(encoding="utf-8").strip()


def there_html(rung: dict, href: str, chapter: short_path.Minutes | None = None) -> str:
    """A rung that can be read at `href`, as a list item."""
    href = escape(href)
    data = minutes = ""
    if chapter:
        data = (
            f' data-stem="{rung["stem"]}" data-every="{" ".join(chapter.every)}" data-short="{" ".join(chapter.short)}"'
        )
        minutes = f" · short path {chapter.short_minutes} min, whole chapter {hours(chapter.whole_minutes)}"
    return (
        f'<li class="rung"{data}>'
        f'<a class="rung-picture" href="{href}" tabindex="-1" aria-hidden="true">{picture(rung["stem"])}</a>'
        f'<div><p class="rung-title"><span>{rung["number"]}</span> <a href="{href}">{escape(rung["title"])}</a></p>'
        f'<p class="rung-done">{escape(rung["done"])}</p>'
        f'<p class="rung-scarce">scarce: {escape(rung["scarce"])}{minutes}</p>'
        '<p class="rung-progress" role="status"></p></div></li>'
    )


def hours(minutes: int) -> str:
    """145 -> 2 h 25 min."""
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def coming_html(upcoming: list[dict]) -> str:
    """Rungs beside each other that are being written: their dashes, and their names."""
    names = "".join(f"<b><span>{rung['number']}</span> {escape(rung['title'])}</b> " for rung in upcoming)
    return f'<li class="rungs-coming"><i aria-hidden="true">{"<i></i>" * len(upcoming)}</i><p>{names.strip()}</p></li>'


def ladder_html(
    listed: list[dict], hrefs: dict[str, str], chapters: dict[str, short_path.Minutes] | None = None
) -> str:
    """The ladder; by stem, `hrefs` has the address of each rung that is there, and `chapters` its minutes."""
    chapters = chapters or {}
    items = []
    for written, members in groupby(listed, key=lambda rung: rung["stem"] in hrefs):
        group = list(members)
        items += (
            [there_html(rung, hrefs[rung["stem"]], chapters.get(rung["stem"])) for rung in group]
            if written
            else [coming_html(group)]
        )
    return f'<ol class="ladder" role="list">{"".join(items)}</ol>'


class Ladder(SphinxDirective):
    """The ladder, with a link to each chapter that exists."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # a notebook may have come
        pages = {rung["stem"]: page(rung) for rung in rungs()}
        address = self.env.app.builder.get_relative_uri
        hrefs = {stem: address(self.env.docname, page) for stem, page in pages.items() if page in self.env.found_docs}
        return [
            nodes.raw(
                "",
                ladder_html(rungs(), hrefs, {stem: chapter for stem in hrefs if (chapter := short_path.of(stem))}),
                format="html",
            )
        ]
