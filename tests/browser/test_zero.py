"""The view of ZeRO under a reader's hands: its rows are pressed to split them, and its step is played by keyboard."""

from __future__ import annotations

import driver
import pytest

SHOWN = ("moment", "moment_gb", "pieces", "sent_so_far", "split", "held_gb", "by_stage_gb")


@pytest.fixture
def zero(shared):
    """The view among the others, its Python running and its picture in sight."""
    view = driver.wake(shared("views"), "zero")
    view.scroll_into_view_if_needed()
    return view


def rests(view, **wanted):
    """Wait until the view stands at these parameters; all that it says there is what the kernel's Python says."""
    return driver.rests(view.page, "zero", SHOWN, wanted)


def focus(view):
    return view.page.evaluate("document.activeElement.dataset.mark ?? document.activeElement.textContent")


def test_a_press_on_a_row_splits_it_and_another_copies_it_again(zero):
    assert rests(zero, stage=2)["split"]["gradients"] is True
    row = zero.get_by_role("button", name="weights, replicated: press to shard")
    row.click()
    found = rests(zero, stage=3)
    assert found["split"]["weights"] is True and found["pieces"] == 3
    assert zero.get_by_role("radio", name="3 + weights").is_checked()
    assert focus(zero) == "name weights", "under another label, and it has the focus yet"
    for key, stage, pieces in (("Enter", 2, 2), ("Space", 3, 3)):
        zero.page.keyboard.press(key)
        assert rests(zero, stage=stage)["pieces"] == pieces
    zero.get_by_role("button", name="optimizer, sharded: press to replicate").click()
    found = rests(zero, stage=0)
    assert not any(found["split"].values()) and found["held_gb"] == found["by_stage_gb"][0]
    assert zero.get_by_role("button", name="gradients, replicated: press to shard").filter(visible=True).count() == 1


@pytest.fixture
def clock(zero):
    """Play goes on when the test says so."""
    zero.page.evaluate("""() => {
      window.real = window.setInterval;
      window.setInterval = (f, ms) => (ms === 900 ? ((window.tick = f), -1) : real(f, ms));
    }""")
    yield lambda: zero.page.evaluate("tick()")
    zero.page.evaluate("() => { window.setInterval = real; }")


def test_a_step_is_played_and_halted_by_keyboard(zero, clock):
    end = rests(zero, moment=16)["sent_so_far"]
    play = zero.get_by_role("button", name="Play", exact=True)
    play.focus()
    zero.page.keyboard.press("Enter")
    zero.get_by_role("button", name="Pause", exact=True).wait_for()
    assert rests(zero, moment=0)["sent_so_far"] == 0
    for moment in range(1, 8):
        clock()
        found = rests(zero, moment=moment)
        assert "Try " not in zero.locator(".live-sentence").inner_text()  # it would come and go with each step
    zero.page.keyboard.press("Space")
    play.wait_for()
    zero.locator(".live-sentence", has_text="Try ").wait_for()
    assert 0 < found["sent_so_far"] < end == found["pieces"]
    zero.get_by_role("button", name="Step on: Through a step").press("Enter")
    rests(zero, moment=8)
    assert play.is_visible() and focus(zero) == "›"
    zero.get_by_role("slider", name="Through a step").press("End")
    assert rests(zero, moment=16)["sent_so_far"] == end
    play.press("Space")
    rests(zero, moment=0)
    for _ in range(16):
        clock()
    assert rests(zero, moment=16)["sent_so_far"] == end and play.is_visible(), "it halts at the end by itself"
