"""The ladder: rungs that are there and rungs to come, each with its picture."""

import re
import xml.etree.ElementTree as ET

from repo import ROOT

from scaleout.draw.svg import FALLBACK
from scaleout.page import ladder

RUNGS = [
    {"number": f"0{i}", "stem": stem, "title": title, "scarce": "memory", "done": "Say <it>."}
    for i, (stem, title) in enumerate([("memory", "A & B"), ("ddp", "Two"), ("tensor", "Three"), ("fsdp", "Four")])
]


def test_every_rung_is_listed_and_drawn():
    listed = ladder.rungs()
    assert [rung["number"] for rung in listed] == [f"{i:02}" for i in range(14)]
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
