"""A code cell that runs in the page: as a notebook's, after the cells above it, in the reader's own worker."""

from __future__ import annotations

import pytest
from driver import NARROW, settle, violations

from scaleout.page import live

FIRST, SECOND = "[data-form=cell]", "[data-form=cell] ~ [data-form=cell]"
SOURCES = ('def double(x):\n    return 2 * x\nprint("doubles")', "double(21)")
IDLE = "[...document.querySelectorAll('[data-form=cell]')].every((one) => !one.live.busy)"


@pytest.fixture
def cells(shared):
    """The page of two cells, as the site has them: the second builds on the first."""
    page = shared("cells")
    page.boxes = [page.get_by_role("group", name=name) for name in ("Doubles", "Python")]
    return page


def edit(page, at: int, source: str):
    """Put code into a cell."""
    area = page.boxes[at].get_by_role("textbox")
    area.fill(source)
    return area


def run(page, at: int) -> str:
    """Run a cell; what it shows then."""
    page.boxes[at].get_by_role("button", name="Run").click()
    page.wait_for_function(IDLE)
    return page.boxes[at].locator(".cell_output").inner_text().strip()


def test_a_cell_runs_after_those_above_it_as_they_stand(cells):
    assert run(cells, 1) == "42"  # what the first prints is dropped
    edit(cells, 0, SOURCES[0].replace("2", "3"))
    assert run(cells, 1) == "63"
    assert run(cells, 0) == "doubles"
    edit(cells, 0, SOURCES[0].replace("2 * x", "1 / 0"))
    assert run(cells, 1) == "line 1: ZeroDivisionError: division by zero"
    edit(cells, 0, "double = 2\n1 / 0")
    assert run(cells, 1) == "In “Doubles” above, line 2: ZeroDivisionError: division by zero"


def test_each_run_starts_anew(cells):
    edit(
        cells,
        1,
        "import math\nmath.seen = getattr(math, 'seen', 0) + 1\ncount = globals().get('count', 0) + 1\n"
        "(math.seen, count)",
    )
    assert [run(cells, 1), run(cells, 1)] == ["(1, 1)", "(1, 1)"]


def test_what_it_shows_is_printed_valued_wrong_or_nothing(cells):
    for source, shown in {
        "print('<b>')\n[1, 2]": "<b>\n[1, 2]",
        "x = 1": "The code ran and printed nothing.",
        "print('so far')\n\nfor": "line 3: invalid syntax",
        "print('so far')\n1 / 0": "so far\nline 2: ZeroDivisionError: division by zero",
    }.items():
        edit(cells, 1, source).press("Control+Enter")
        cells.wait_for_function(IDLE)
        lines = cells.boxes[1].locator(".cell_output").inner_text().split("\n")
        assert [line for line in lines if line] == shown.split("\n"), source
    assert (
        cells.boxes[1].locator(".live-layers[data-line]").evaluate("one => one.style.getPropertyValue('--line')") == "2"
    )
    assert violations(cells) == []


def test_reset_brings_back_code_colours_and_output(cells):
    box, coloured = cells.boxes[0], ".cell_input pre .k"
    stored = box.locator(".cell_output").inner_html()
    assert box.locator(coloured).count() > 0
    edit(cells, 0, "print(1)")
    assert box.locator(coloured).count() == 0 and box.locator(".cell_input pre").text_content() == "print(1)\n"
    assert run(cells, 0) == "1"
    box.get_by_role("button", name="Reset").click()
    assert box.locator(".cell_output").inner_html() == stored
    assert box.get_by_role("textbox").input_value() == SOURCES[0] and box.locator(coloured).count() > 0


def test_an_output_of_other_code_is_pale(cells):
    def pale():
        return [box.get_attribute("data-stale") is not None for box in cells.boxes]

    assert pale() == [False, False]
    edit(cells, 1, "double(1)")
    assert pale() == [False, True]
    edit(cells, 0, SOURCES[0] + "\n")
    assert pale() == [True, True]
    run(cells, 1)
    assert pale() == [True, False]
    edit(cells, 0, SOURCES[0])
    assert pale() == [False, True]
    assert violations(cells) == []


def test_a_cell_that_does_not_end_is_stopped_and_the_next_run_answers(cells):
    cells.evaluate("document.querySelectorAll('[data-form=cell]')[1].live.data.seconds = 2")
    edit(cells, 1, "while True:\n    print('again')")
    assert run(cells, 1) == live.CELL_STOPPED
    cells.evaluate("document.querySelectorAll('[data-form=cell]')[1].live.data.seconds = 60")
    edit(cells, 1, "double(2)")
    assert run(cells, 1) == "4"


def test_the_keyboard_walks_past_a_cell_and_leaves_one_that_it_changed(cells):
    area = cells.boxes[0].get_by_role("textbox")
    area.focus()
    area.press("Tab")
    assert not area.evaluate("one => one === document.activeElement")
    area.focus()
    area.press("x")
    area.press("Tab")
    assert area.evaluate("one => one === document.activeElement") and "x   " in area.input_value()
    area.press("Escape")
    area.press("Tab")
    assert not area.evaluate("one => one === document.activeElement")


def test_on_a_phone_the_code_scrolls_and_the_page_does_not(cells):
    edit(cells, 1, f"x = '{'long ' * 30}'")
    cells.set_viewport_size(NARROW)
    assert cells.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    layers = cells.boxes[1].locator(".live-layers")
    assert layers.evaluate("one => one.scrollWidth > one.clientWidth")
    seen, box = (cells.boxes[1].locator(f".live-layers {part}").bounding_box() for part in ("pre", "textarea"))
    assert seen == box  # the caret stands where the words are


def test_a_metered_readers_python_waits_for_the_first_touch(visit):
    page = visit("cells")
    assert page.watch.python() == []
    page.locator(".cell_output pre").first.wait_for()  # it reads
    page.get_by_role("textbox").first.focus()
    settle(page, "Starting Python", ".live-python")
