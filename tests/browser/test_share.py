"""The state of a view in the address."""

from __future__ import annotations

from driver import READY, params, settle, values

from scaleout import views


def fragment(page) -> str:
    return page.evaluate("location.hash")


def test_the_address_follows_and_restores(opened):
    opened.get_by_role("slider", name="Bars").press("End")
    opened.get_by_role("radio", name="two").check()
    opened.get_by_role("switch", name="Show a frame").check()
    opened.wait_for_function("location.hash.includes('frame')")
    assert fragment(opened) == "#live-specimen?count=12&power=2&frame=true"
    length = opened.evaluate("history.length")
    there = values(opened)
    opened.reload()
    opened.wait_for_function(READY)  # a link to a state is a request to draw it
    settle(opened, "12 bars")
    assert values(opened) == there
    assert opened.get_by_role("slider", name="Bars").input_value() == "12"
    assert opened.get_by_role("switch", name="Show a frame").is_checked()
    assert opened.evaluate("history.length") == length


def test_a_link_moves_controls_and_nothing_else(visit):
    """On arrival and on the same page: a wrong one says what would be right, and leaves the question; none brings code.
    A sound one opens the lock: whoever shared a setting wants it to be seen."""
    page = visit("specimen", "#live-specimen?count=99")
    settle(page, "count must be from 2 to 12, not 99", ".live-status .live-problem")
    assert values(page) == {} and page.get_by_role("button", name="Commit").is_visible()
    assert params(page)["count"] == 6
    page.evaluate("location.hash = '#live-specimen?count=8&source=1/0&guess=3'")
    settle(page, "8 bars")
    assert params(page)["source"] == views.defaults("specimen")["source"]
    assert "guess" not in params(page)
    assert page.locator(".live-sentence").is_visible() and page.get_by_role("button", name="Guess again").is_visible()


# The address is written when a timer of 300 ms is done; here it is done when the test says so.
HOLD = """() => {
  const { setTimeout, clearTimeout } = window;
  window.held = new Map();
  window.setTimeout = (f, ms, ...rest) => (ms === 300 ? held.set(f, f) && f : setTimeout(f, ms, ...rest));
  window.clearTimeout = (one) => (typeof one === "function" ? held.delete(one) : clearTimeout(one));
}"""
REST = "held.forEach((f) => held.delete(f) && f())"


def test_a_link_is_not_written_over_before_it_is_read(opened):
    """The timer may be done between the change of the address and the event that tells of it."""
    opened.evaluate(HOLD)
    opened.get_by_role("slider", name="Bars").press("End")
    settle(opened, "12 bars")
    opened.evaluate(f"() => {{ location.hash = '#live-specimen?count=8'; {REST}; }}")
    settle(opened, "8 bars")
    opened.evaluate(REST)
    assert fragment(opened) == "#live-specimen?count=8"
    opened.evaluate("() => { location.hash = '#live-specimen?count=99'; }")
    settle(opened, "count must be from 2 to 12, not 99", ".live-status .live-problem")
    opened.evaluate(REST)
    assert fragment(opened) == "#live-specimen?count=99" and params(opened)["count"] == 8, "it says what is wrong in it"


def test_copying_the_link(opened, context, site):
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site)
    opened.get_by_role("slider", name="Bars").press("Home")
    settle(opened, "2 bars")
    opened.get_by_role("button", name="Copy link").click()
    opened.get_by_role("button", name="Link copied").wait_for()
    assert opened.evaluate("navigator.clipboard.readText()") == (f"{site}/specimen.html#live-specimen?count=2")
