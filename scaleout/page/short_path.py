"""The short path of a chapter: about 35 minutes of it, for a first reading.

A chapter's box of that name (`<div class="admonition path">`) links to the sections on it and has the minutes;
exercises on it say `short=True` where they are defined. Marks beside headings and lines of the ladder follow from that.
"""

from __future__ import annotations

import pathlib
import re
from functools import cache
from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx

from scaleout import exercises

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = r"{row} \| (\d+) min \| (\d+) min"  # a row of the box: to read and run, and for the exercises


class Minutes(NamedTuple):
    """What the ladder says of a chapter: minutes in all, and the keys of its exercises."""

    short_minutes: int
    whole_minutes: int
    short: tuple[str, ...]
    every: tuple[str, ...]


@cache
def of(stem: str) -> Minutes | None:
    """The short path of a chapter; None where it has no box with minutes."""
    notebook = next((ROOT / "notebooks").glob(f"[0-9][0-9]_{stem}.ipynb"))
    text = notebook.read_text(encoding="utf-8")
    rows = [re.search(ROW.format(row=row), text) for row in ("short path", "whole chapter")]
    if rows[0] is None or rows[1] is None:
        return None
    short, whole = (sum(map(int, row.groups())) for row in rows if row)
    listed = exercises.catalogue(stem)
    keys = [exercise.key for exercise in listed]
    return Minutes(short, whole, tuple(exercise.key for exercise in listed if exercise.short), tuple(keys))


def mark_sections(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give each section that the box links to the class `short-path`."""
    boxes = [node for node in doctree.findall(nodes.Admonition) if "path" in node["classes"]]
    linked = {
        link.get("refid") or link.get("refuri", "").rpartition("#")[2]
        for box in boxes
        for link in box.findall(nodes.reference)
    }
    for section in doctree.findall(nodes.section):
        if linked & {*section["ids"], *section["names"]}:
            section["classes"].append("short-path")


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("doctree-resolved", mark_sections)
