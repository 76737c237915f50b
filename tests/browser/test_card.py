"""The card of a chapter: one page of A4, and it reads on a phone and in the chapter."""

from __future__ import annotations

import re

import pytest
from driver import NARROW, violations

from scaleout.page import cards

MM = 25.4 / 96
FOOT = """() => {
  const sheet = document.querySelector(".card-sheet").getBoundingClientRect();
  return [...document.querySelectorAll(".card-sheet *")].map((one) => one.getBoundingClientRect())
    .reduce((low, box) => Math.max(low, box.bottom - sheet.top), 0);
}"""
GAPS = """() => {
  const boxes = [...document.querySelectorAll(".card-formulas > div > math")].map((one) => one.getBoundingClientRect());
  return boxes.slice(1).map((box, i) => box.top - boxes[i].bottom);
}"""

# Of words in a picture, as they are printed: six points and more.
SIZES = """() => [...document.querySelectorAll(".card-sheet .card-picture text")].map((one) => {
  const at = one.getScreenCTM();
  return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(at.a, at.b);
})"""


CUT = """() => [...document.querySelectorAll("svg svg")].every((one) => getComputedStyle(one).overflowX === "hidden")"""


@pytest.mark.parametrize("stem", cards.stems())
def test_a_card_is_one_page_with_room_at_its_foot(reader, book, stem):
    reader.set_viewport_size({"width": 1000, "height": 1200})
    reader.goto(f"{book}/cards/{stem}.html")
    printed = reader.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    [box] = set(re.findall(rb"/MediaBox\s*\[([^\]]+)\]", printed))
    assert [round(float(side) / 72 * 25.4) for side in box.split()] == [0, 0, 210, 297]
    assert reader.evaluate(FOOT) * MM <= 297 - 15 + 0.2
    assert reader.evaluate(CUT), "stripes of a picture go on outside of it"
    assert min(reader.evaluate(GAPS)) >= 3, "a formula stands on the next"
    assert min(reader.evaluate(SIZES), default=8) >= 8
    assert violations(reader) == []
    reader.set_viewport_size(NARROW)
    assert reader.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_the_chapter_has_the_box_and_the_sheet_leads_back(reader, book):
    reader.goto(f"{book}/notebooks/10_collectives.html")
    box = reader.locator("#card-collectives")
    box.locator("mjx-container").first.wait_for()
    box.get_by_role("link", name="on one page, to print").click()
    reader.wait_for_url("**/cards/collectives.html")
    reader.get_by_role("link", name="Back to the chapter").click()
    reader.wait_for_url("**/notebooks/10_collectives.html#card-collectives")
