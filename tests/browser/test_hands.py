"""The picture as a control: buttons and movable marks in it, by pointer, touch and keyboard."""

from __future__ import annotations

import pytest
from driver import NARROW, SKIP, params, settle, violations

AT = """(name) => {
  const { left, top, width, height } = document.querySelector(`.live-wide [data-mark=${name}]`).getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}"""
FOCUS = "document.activeElement.dataset.mark"


def mark(page, name):
    return page.locator(f".live-figure [data-mark={name}]").filter(visible=True)


def order(page, wanted):
    """Wait until the picture stands for this order, and has come to rest."""
    page.wait_for_function(
        "(wanted) => { const { live } = document.querySelector('.live-widget'); "
        "return live.values.order === wanted && !live.busy; }",
        arg=wanted,
    )
    assert params(page)["order"] == wanted


def test_a_button_in_the_picture_sets_its_control_and_keeps_the_focus(opened):
    switch = opened.get_by_role("switch", name="Show a frame")
    opened.get_by_role("button", name="Draw a frame").click()
    opened.get_by_role("button", name="Draw no frame").wait_for()
    assert switch.is_checked() and params(opened)["frame"] is True
    for key, name in [("Enter", "Draw a frame"), ("Space", "Draw no frame")]:
        opened.keyboard.press(key)
        opened.get_by_role("button", name=name).wait_for()
        assert opened.evaluate(FOCUS) == "frame"
    opened.wait_for_function("location.hash.includes('frame=true')")
    # drawn anew between down and up: play and other controls do that
    opened.mouse.move(*opened.evaluate(AT, "frame"))
    opened.mouse.down()
    opened.evaluate("document.querySelector('.live-widget').live.redraw()")
    opened.mouse.up()
    opened.get_by_role("button", name="Draw a frame").wait_for()
    assert not switch.is_checked()


def test_marks_are_put_into_another_order_by_keyboard(opened):
    block = opened.get_by_role("slider", name="block a of row 1")
    assert block.get_attribute("aria-valuetext") == "1 of 3"
    block.focus()
    for key, wanted in [("ArrowRight", "b.a.c"), ("End", "b.c.a"), ("ArrowRight", "b.c.a"), ("Home", "a.b.c")]:
        opened.keyboard.press(key)
        order(opened, f"{wanted}_b.c")
        assert opened.evaluate(FOCUS) == "a0"
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowLeft")
    order(opened, "b.a.c_b.c")
    assert opened.evaluate(FOCUS) == "b0"
    opened.keyboard.press("Tab")  # a row is one stop
    assert opened.evaluate(FOCUS) == "b1"
    opened.wait_for_function("location.hash.endsWith('order=b.a.c_b.c')")
    opened.get_by_role("button", name="Put back: Order of the blocks").click()
    order(opened, "a.b.c_b.c")


def test_a_drag_moves_a_mark_within_its_row_while_others_give_way(opened):
    (x, y), (far, _), (other, _) = (opened.evaluate(AT, name) for name in ("a0", "c0", "b1"))
    opened.mouse.move(x, y)
    opened.mouse.down()
    opened.mouse.move(far, y + 40, steps=5)
    order(opened, "b.c.a_b.c")
    assert opened.evaluate(AT, "a0") == pytest.approx([far, y], abs=0.5), "under the hand"
    opened.mouse.move(other, y)
    order(opened, "b.c.a_b.c")
    opened.mouse.up()
    opened.wait_for_function(f"Math.abs(({AT})('a0')[0] - {far}) < 0.5")
    assert opened.evaluate(FOCUS) == "a0" and opened.locator("[data-held]").count() == 0
    opened.get_by_role("button", name="Reset").click()
    order(opened, "a.b.c_b.c")


def test_before_the_guess_nothing_in_the_picture_is_alive(locked):
    locked.evaluate("""() => {
      const { live } = document.querySelector(".live-widget");
      const { result } = JSON.parse(atob(live.data.sealed));
      live.figures[0].paint(result.svg[0]);
    }""")
    before = params(locked)
    mark(locked, "frame").click()
    assert params(locked) == before and locked.locator(".live-figure :is([tabindex], [role=button])").count() == 0
    locked.get_by_role("button", name=SKIP).click()
    assert locked.get_by_role("button", name="Draw a frame").is_visible()


def test_a_link_brings_an_order_and_a_wrong_one_says_what_is_right(visit):
    page = visit("specimen", "#live-specimen?order=c.a.b_c.b")
    order(page, "c.a.b_c.b")
    page.evaluate("location.hash = '#live-specimen?order=c.a.a_c.b'")
    settle(page, "order must hold a, b, c once each in row 1, not c.a.a", ".live-status .live-problem")
    order(page, "c.a.b_c.b")


def test_on_a_phone_by_touch(opened):
    opened.set_viewport_size(NARROW)
    mark(opened, "c0").scroll_into_view_if_needed()
    touch = opened.context.new_cdp_session(opened)
    box, to = mark(opened, "c0").bounding_box(), mark(opened, "a0").bounding_box()
    y = box["y"] + box["height"] / 2

    def send(kind, *x):
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": one, "y": y} for one in x]})

    send("touchStart", box["x"] + 12)
    for part in range(1, 9):
        send("touchMove", box["x"] + 12 + (to["x"] - box["x"]) * part / 8)
    send("touchEnd")
    order(opened, "c.a.b_b.c")
    assert violations(opened) == []


def test_the_readers_own_order_of_a_pipeline_is_entered_moved_by_its_arrows_shared_and_left(visit):
    """On a phone, where a block is too small for a finger: 14 slots by three blocks put at the end of their rows."""
    page = visit("views")
    page.set_viewport_size(NARROW)
    root = page.locator("#live-pipeline")

    def named(role, name):
        return root.get_by_role(role, name=name, exact=True).filter(visible=True)

    def rests(slots, schedule="yours"):
        page.wait_for_function(
            "([slots, schedule]) => { const { live } = document.querySelector('#live-pipeline'); "
            "return live.params.schedule === schedule && live.values.slots === slots && !live.busy; }",
            arg=[slots, schedule],
        )

    named("button", "Make your own order: move blocks").click()
    rests(16)
    later = named("button", "Move the chosen block one place later")
    later.click()  # none is chosen: it chooses the first, and moves nothing
    chosen = root.locator("[data-chosen]").filter(visible=True)
    assert chosen.get_attribute("data-mark") == "F0-rank0"
    for micro, rank, places in [(0, 1, 8), (0, 2, 9), (2, 2, 4)]:
        block = named("slider", f"weight gradient of micro-batch {micro}, rank {rank}")
        block.click()
        assert chosen.get_attribute("data-mark") == f"W{micro}-rank{rank}"
        at = int(block.get_attribute("aria-valuenow"))
        for place in range(at + 1, 13):
            later.click()
            named("slider", f"weight gradient of micro-batch {micro}, rank {rank}").and_(
                root.locator(f"[aria-valuenow='{place}']")
            ).wait_for()
        assert 12 - at == places
    rests(14)
    later.click()  # at the end of its row it stays
    page.wait_for_function("location.hash.includes('W2') && location.hash.endsWith('W3.W0.W2')")
    fragment = page.evaluate("location.hash")
    named("button", "Put back").click()
    rests(16)
    named("button", "Back to 1F1B").click()
    rests(33, "1f1b")
    page.wait_for_function("!location.hash.includes('schedule')")
    page.evaluate("(fragment) => { location.hash = fragment; }", fragment)
    rests(14)
