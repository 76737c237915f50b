"""Every word in a picture can be read: 11 to 16 CSS pixels, inside the picture, over no other word."""

from __future__ import annotations

from contextlib import suppress

import pytest
from driver import watched
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg

SETTINGS = 60  # by chance, of each view
SEARCHES = {"planner": 12}  # of one that searches for each
SMALLEST, LARGEST = 11, 16  # CSS pixels

# Boxes of ink, not of the line: a capital rises 0.74 em above the baseline, a descender falls 0.2 below it.
FAULTS = """([pictures, smallest, largest]) => pictures.map((svg) => {
  document.body.innerHTML = `<div style="width: max-content">${svg}</div>`;
  const picture = document.querySelector("svg");
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  picture.setAttribute("width", width);
  const frame = picture.getBoundingClientRect();
  const seen = [...picture.querySelectorAll("text")].filter((one) => !one.closest("[visibility=hidden], title"));
  const boxes = seen.filter((one) => one.textContent.trim()).map((one) => {
    const box = one.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(one).fontSize);
    const below = box.bottom - frame.top - 0.236 * size;
    return {words: one.textContent, size, left: box.left - frame.left, right: box.right - frame.left,
            top: below - 0.74 * size, bottom: below + 0.2 * size};
  });
  const out = [];
  for (const [i, a] of boxes.entries()) {
    if (a.size < smallest || a.size > largest) out.push(`${a.words}: ${a.size} px`);
    if (a.left < -0.5 || a.right > width + 0.5 || a.top < -0.5 || a.bottom > height + 0.5) out.push(`${a.words}: cut`);
    if (/0\\.0000|\\de[+-]|NaN|undefined|None/.test(a.words)) out.push(`${a.words}: not a number for people`);
    for (const b of boxes.slice(i + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) out.push(`${a.words} | ${b.words}: over each other`);
    }
  }
  return out;
})"""


def pictures(stem: str, width: int) -> dict[str, str]:
    """Pictures of a view by their settings: without the answer, as it opens, and by chance; without what it refuses."""
    found, few = {}, views.settings(stem, 8)
    if views.asks(stem):
        found["locked"] = views.question(stem)["pictures"][width == svg.NARROW]
    for params in few or ({}, *by_chance(stem, SEARCHES.get(stem, SETTINGS), 7)):
        with suppress(ValueError):  # a degree of parallelism that does not divide
            found[str(params)] = views.render(stem, params, width)["svg"]
    for name in (one for column in views.sections(stem) for one in column):
        for kind, *what in views.beneath(stem, {}, name)["blocks"]:
            if kind == "pictures":
                found[name] = what[width == svg.NARROW]
    return found


def faults(page, drawn: list[str]) -> list[list[str]]:
    return page.evaluate(FAULTS, [drawn, SMALLEST, LARGEST])


@pytest.fixture(scope="module")
def blank(context, site):
    page = watched(context, site)
    page.goto(f"{site}/index.html")
    yield page
    page.close()


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize("stem", views.stems())
def test_every_word_can_be_read(blank, stem, width):
    drawn = pictures(stem, width)
    assert len(drawn) > SEARCHES.get(stem, SETTINGS) / 2 or len(drawn) == len(views.settings(stem, 8))
    wrong = {name: found for name, found in zip(drawn, faults(blank, [*drawn.values()]), strict=True) if found}
    assert not wrong, f"{len(wrong)} of {len(drawn)}: {[*wrong.items()][:3]}"


def test_faults_are_found(blank):
    """The eye of the test above sees what it is there for."""
    words = [
        svg.text(10, 20, "one over"),
        svg.text(20, 22, "the other"),
        svg.text(580, 60, "cut at the edge"),
        svg.text(10, 90, "small", size=10),
        svg.text(10, 120, "0.00003 GB"),
        svg.text(200, 120, "fine"),
    ]
    [found] = faults(blank, [svg.figure(600, 140, "".join(words), "a picture with faults")])
    assert sorted(found) == [
        "0.00003 GB: not a number for people",
        "cut at the edge: cut",
        "one over | the other: over each other",
        "small: 10 px",
    ]
