"""A mouse that rests over a control: the picture of the value under it is drawn before the press."""

from __future__ import annotations

import pytest
from driver import SKIP, live, wake

# Note what a view asks Python to draw, as values of one control.
LISTEN = """([stem, name]) => {
  const {live: view} = document.querySelector(`#live-${stem}`), {draw} = view;
  view.ahead.clear();
  window.drawn = [];
  view.draw = (params, ...rest) => {
    window.drawn.push(params[name]);
    return draw.call(view, params, ...rest);
  };
}"""

# So many frames and no call of Python's is on its way: what a pointer's rest leads to has been asked for by then.
QUIET = """async (stem) => {
  const {live: view} = document.querySelector(`#live-${stem}`);
  for (let quiet = 0; quiet < 8;) {
    await new Promise(requestAnimationFrame);
    quiet = view.busy || view.runtime.current ? 0 : quiet + 1;
  }
}"""


@pytest.fixture
def watched_view(shared):
    """A view of the page with all of them, its Python awake: `watched_view("fsdp", "batch")` -> (page, its control)."""

    def go(stem: str, name: str):
        page = shared("views")
        root = wake(page, stem)
        page.mouse.move(1, 1)
        page.evaluate(QUIET, stem)
        page.evaluate(LISTEN, [stem, name])
        control = root.locator(f"[data-name={name}]")
        if not control.is_visible():
            root.locator(".live-more > summary").click()
        control.scroll_into_view_if_needed()
        return page, control

    return go


def rest(page, stem: str, x: float, y: float) -> list:
    """Move the mouse to a place, and wait until it has rested there: the values drawn meanwhile."""
    page.evaluate(f"window.drawn = []; {live(stem)}.ahead.clear()")
    page.mouse.move(x, y)
    page.evaluate(QUIET, stem)
    return page.evaluate("window.drawn")


def press(page, stem: str, name: str):
    """Press and let go: (the value that is set, the draws of its picture after the press)."""
    page.evaluate("window.drawn = []")
    page.mouse.down()
    page.mouse.up()
    page.evaluate(QUIET, stem)
    return page.evaluate(f"[{live(stem)}.params.{name}, window.drawn]")


@pytest.mark.parametrize(
    ("stem", "name", "ends"),
    [("pipeline", "hop", (0, 2)), ("collectives", "size", (0.001, 10000)), ("architecture", "interval", (5, 240))],
)
def test_a_slider_is_drawn_where_the_mouse_rests_and_a_press_draws_nothing(watched_view, stem, name, ends):
    """A slider with a step of 0.25, one with stops, one with a step of 5 from a lower end of 5."""
    page, control = watched_view(stem, name)
    box = control.locator("input[type=range]").bounding_box()
    middle, found = box["y"] + box["height"] / 2, []
    for part in (1, 0.003, 0.37, 0.62, 0.81, 0.997, 0.48, 0):  # of the width; at the ends less than a thumb is left
        drawn = rest(page, stem, box["x"] + 1 + part * (box["width"] - 2), middle)
        value, after = press(page, stem, name)
        assert drawn[0] == value and after == [], part
        assert page.evaluate(f"{live(stem)}.drawn[{live(stem)}.shape] === {live(stem)}.setting()"), "it is painted"
        found.append(value)
    assert (found[1], found[0]) == (found[-1], found[5]) == ends and len(set(found)) == 6
    assert found[1] < found[2] < found[6] < found[3] < found[4] < found[5]


def test_a_choice_and_a_switch_are_drawn_where_the_mouse_rests(watched_view):
    page, control = watched_view("tensor", "tp")
    for words, wanted in (("8", 8), ("2", 2)):
        box = control.locator("label", has_text=words).bounding_box()
        drawn = rest(page, "tensor", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert drawn[0] == wanted and press(page, "tensor", "tp") == [wanted, []]
    page, control = watched_view("tensor", "sequence")
    box = control.locator("label").bounding_box()
    for wanted in (True, False):
        drawn = rest(page, "tensor", box["x"] + 8, box["y"] + box["height"] / 2 + wanted)
        assert drawn == [wanted] and press(page, "tensor", "sequence") == [wanted, []]


@pytest.mark.parametrize("asked", [True, False])
def test_a_choice_that_takes_a_search_is_drawn_only_when_asked_for(watched_view, asked):
    page, control = watched_view("planner", "loss" if asked else "recompute")
    box = control.locator("label:has(input:not(:checked))").first.bounding_box()
    drawn = rest(page, "planner", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert (drawn == []) == asked


def test_a_press_before_its_picture_is_there_waits_for_it_and_asks_for_none(watched_view):
    page, _control = watched_view("fsdp", "batch")
    asked = page.evaluate("""async () => {
      const {live: view} = document.querySelector("#live-fsdp");
      const control = view.data.spec.controls.find(({name}) => name === "batch");
      const under = view.ahead.draw(control, [32, 31, 33]);
      while (!window.drawn.length) await new Promise((done) => setTimeout(done));
      await Promise.all([view.change(control, 32), under]);
      return window.drawn;
    }""")
    assert asked[0] == 32 and asked.count(32) == 1
    assert page.evaluate(f"{live('fsdp')}.values") == page.evaluate(
        f"(async () => (await {live('fsdp')}.draw({live('fsdp')}.params)).values)()"
    )


def test_nothing_is_drawn_where_no_press_would_set_a_value(watched_view):
    """Over the picture, the words of a slider and a menu, beside the widget; and for a finger, which has no rest."""
    page, control = watched_view("fsdp", "batch")
    root = page.locator("#live-fsdp")
    places = [root.locator(".live-wide > svg"), control.locator("label"), root.locator(".live-sentence")]
    places += [
        root.locator(".live-foot"),
        root.get_by_role("button", name="Play"),
    ]
    for place in places:
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        assert rest(page, "fsdp", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) == []
    slider = control.locator("input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind, buttons in (("touch", 0), ("mouse", 1)):
        given = {"pointerType": kind, "buttons": buttons, "clientX": x, "clientY": y, "bubbles": True}
        slider.evaluate("(input, given) => input.dispatchEvent(new PointerEvent('pointermove', given))", given)
        page.evaluate(QUIET, "fsdp")
        assert page.evaluate("window.drawn") == []
    passing = """(input, given) => {
      input.dispatchEvent(new PointerEvent("pointermove", {...given, pointerType: "mouse", buttons: 0}));
      input.closest(".live-side").dispatchEvent(new PointerEvent("pointerleave"));
    }"""
    slider.evaluate(passing, given)
    page.evaluate(QUIET, "fsdp")
    assert page.evaluate("window.drawn") == [], "over it, and away before it has rested"
    assert rest(page, "fsdp", x, y)


def test_to_point_at_a_control_starts_no_python(visit):
    page = visit("views")
    slider = page.locator("#live-fsdp [data-name=batch] input")
    slider.hover()
    page.evaluate(QUIET, "fsdp")
    assert page.evaluate(f"{live('fsdp')}.runtime.state") == "idle" and page.watch.python() == []


def test_a_locked_view_draws_nothing_where_a_mouse_rests(shared):
    page = shared("guesses")
    wake(page, "recompute")
    page.evaluate(QUIET, "recompute")
    page.evaluate(LISTEN, ["recompute", "way"])
    option = page.locator("#live-recompute [data-name=way] label:has(input:not(:checked))")
    for locked in (True, False):
        option.scroll_into_view_if_needed()
        box = option.bounding_box()
        drawn = rest(page, "recompute", box["x"] + 10 + locked, box["y"] + 10)
        assert (drawn == []) == locked
        if locked:
            page.get_by_role("button", name=SKIP).click()
            page.evaluate(QUIET, "recompute")
