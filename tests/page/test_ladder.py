"""The ladder: rungs that are there and rungs to come, each with its picture."""

import re
import xml.etree.ElementTree as ET

import docutils.nodes
import docutils.utils
from repo import ROOT

from scaleout.draw.svg import FALLBACK
from scaleout.page import ladder, short_path

RUNGS = [
    {"number": f"0{i}", "stem": stem, "title": title, "scarce": "memory", "done": "Say <it>."}
    for i, (stem, title) in enumerate([("memory", "A & B"), ("ddp", "Two"), ("tensor", "Three"), ("fsdp", "Four")])
]


def test_every_rung_is_listed_and_drawn():
    listed = ladder.rungs()
    assert [rung["number"] for rung in listed] == [f"{i:02}" for i in range(17)]
    assert {rung["stem"] for rung in listed} == {path.stem for path in (ROOT / "book" / "rungs").glob("*.svg")}
    for rung in listed:
        picture = ladder.picture(rung["stem"])
        assert ET.fromstring(picture).get("viewBox") == "0 0 140 74", rung["stem"]
        for colour in re.findall(r'(?:fill|stroke)="([^"]+)"', picture):  # the page's, so that the dark has its own
            name = re.fullmatch(r"var\(--(\w+), ?#\w+\)|none", colour)
            assert name and name[1] in {*FALLBACK, *(f"r{i}" for i in range(16)), None}, (
                rung["stem"],
                colour,
            )


def test_a_rung_that_is_there_is_a_picture_and_a_link():
    markup = ladder.ladder_html(RUNGS, {"memory": "../x.html"})
    assert markup.count("<svg") == 1 and '<a href="../x.html">A &amp; B</a>' in markup
    assert "Say &lt;it&gt;." in markup and "scarce: memory" in markup


def test_rungs_to_come_stand_together_without_a_link():
    markup = ladder.ladder_html(RUNGS, {"memory": "a", "fsdp": "b"})
    items = re.findall(r"<li class=\"([\w-]+)\">(.*?)</li>", markup)
    assert [name for name, _ in items] == ["rung", "rungs-coming", "rung"]
    assert items[1][1].count("<i></i>") == 2 and "<a" not in items[1][1] and "Two" in items[1][1]


def test_a_chapter_says_its_minutes_and_carries_the_keys_of_its_exercises():
    chapter = short_path.Minutes(34, 145, ("b",), ("a", "b", "c"))
    markup = ladder.ladder_html(RUNGS[:1], {"memory": "a"}, {"memory": chapter})
    assert "short path 34 min, whole chapter 2 h 25 min" in markup
    assert 'data-stem="memory" data-every="a b c" data-short="b"' in markup
    assert ladder.hours(59) == "59 min" and ladder.hours(60) == "1 h 00 min"


def test_sections_that_the_box_links_are_marked_and_no_others():
    document = docutils.utils.new_document("x")
    box = docutils.nodes.admonition(classes=["path"])
    box += docutils.nodes.reference(refid="one")
    box += docutils.nodes.reference(refuri="#two")
    other = docutils.nodes.admonition(classes=["done"])
    other += docutils.nodes.reference(refid="three")
    sections = [docutils.nodes.section(ids=[name]) for name in ("one", "two", "three")]
    document += [box, other, *sections]
    short_path.mark_sections(None, document, "x")
    assert [section["classes"] for section in sections] == [["short-path"], ["short-path"], []]
