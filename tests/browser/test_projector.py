"""A view for a room: the question fills the screen, keys and a clicker take it step by step, and lead back."""

from __future__ import annotations

import pytest
from driver import violations

from scaleout import views

ROOMS = [(1920, 1080), (1280, 720)]
SHOWN = """() => ["h1", ".live-title", ".live-wide > svg", ".live-side", ".live-sentence", ".live-lock", ".live-mark",
  ".live-narrow", ".live-foot"].filter((one) => document.querySelector(one)?.getClientRects().length)"""
BOXES = """() => {
  const box = (one) => { const {left, top, right, bottom} = document.querySelector(one).getBoundingClientRect();
    return [left, top, right, bottom]; };
  return [box(".live-title"), box(".live-wide > svg")];
}"""
AT = "(step) => document.body.dataset.step === String(step)"
STATE = "document.querySelector('.live-widget').live.runtime.state"
LAST = 15  # the question, and a ring of eight before and after its 14 steps


@pytest.fixture
def room(reader, book):
    reader.set_viewport_size({"width": 1280, "height": 720})
    reader.goto(f"{book}/projector/collectives.html")
    reader.wait_for_function(AT, arg=0)
    return reader


def test_a_hand_that_cannot_wait_for_python_takes_one_step(room):
    assert room.evaluate(STATE) == "starting"
    for _ in range(6):
        room.keyboard.press("ArrowRight")
    room.wait_for_function(f"{STATE} === 'ready'")
    room.wait_for_function(AT, arg=1)
    assert values(room)["step"] == 0


def values(page):
    return page.evaluate("document.querySelector('.live-widget').live.values")


@pytest.mark.parametrize("size", ROOMS)
def test_the_question_and_the_picture_fill_the_screen(room, size):
    width, height = size
    room.set_viewport_size({"width": width, "height": height})
    assert room.evaluate(SHOWN) == [".live-title", ".live-wide > svg"]
    words, picture = room.evaluate(BOXES)
    assert words[1] >= 0 and words[3] < picture[1] and picture[3] <= height
    assert picture[3] - picture[1] > 0.7 * height
    letters = room.locator(".live-title").evaluate("(one) => parseFloat(getComputedStyle(one).fontSize)")
    assert letters > height / 24
    assert room.evaluate("document.documentElement.scrollHeight") <= height
    assert violations(room) == []


def test_keys_and_clicks_step_and_both_ends_can_be_reached(room):
    assert values(room) == {}
    room.wait_for_function(f"{STATE} === 'ready'")
    at = 0
    for key, by in [
        ("ArrowRight", 1),
        (" ", 1),
        ("PageDown", 1),
        ("ArrowLeft", -1),
        ("PageUp", -1),
        ("ArrowDown", 1),
    ]:
        room.keyboard.press(key)
        at += by
        room.wait_for_function(AT, arg=at)
        assert values(room)["step"] == at - 1
    room.mouse.click(400, 400)
    room.wait_for_function(AT, arg=at + 1)
    room.keyboard.press("End")
    room.wait_for_function(AT, arg=LAST)
    want = views.render("collectives", {"step": LAST - 1})["values"]
    assert values(room) == want and want["sent_so_far_gb"] == want["ring_sent_gb"]
    room.keyboard.press("ArrowRight")  # there is no further
    room.keyboard.press("Home")
    room.wait_for_function(AT, arg=0)
    assert values(room) == {} and room.evaluate(SHOWN) == [".live-title", ".live-wide > svg"]


def test_the_hint_goes_when_hands_rest(room):
    seen = "parseFloat(getComputedStyle(document.querySelector('.room-hint')).opacity)"
    room.mouse.move(300, 300)
    room.wait_for_function(f"{seen} === 1")
    room.wait_for_function(f"{seen} === 0")


def test_full_screen_and_back(room):
    room.keyboard.press("f")
    room.wait_for_function("document.fullscreenElement !== null")
    room.keyboard.press("F")
    room.wait_for_function("document.fullscreenElement === null")
    room.keyboard.press("Escape")
    room.wait_for_url("**/notebooks/10_collectives.html")


def test_the_specimens_foot_leads_to_the_room(locked):
    link = locked.locator(".live-foot a")
    assert link.inner_text() == "For a room" and link.get_attribute("href").endswith("/projector/specimen.html")


def test_an_instructors_page_leads_to_both(reader, book):
    reader.goto(f"{book}/book/instructor/collectives.html")
    links = reader.locator(".for-the-room a")
    addresses = [reader.request.get(link.evaluate("(one) => one.href")).status for link in links.all()]
    assert addresses == [200, 200]
