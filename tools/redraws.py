"""Redraws of a live view in a page, made by a slider and timed there: for the bench.

A redraw is timed from the browser's input event to just after the frame that shows its picture; where one picture
answers several events, from the first of them. Its parts: Python (with the way to it and back), the patch of the
picture and the words, their layout, and the frames that the browser waits for and makes.
"""

from __future__ import annotations

import random

import view_settings

from scaleout import views
from scaleout.page import live

# The view of a stem on its page, and a list of its redraws: the milliseconds of each, and of its parts.
LISTEN = """(stem) => {
  const all = [...document.querySelectorAll(".live-widget[data-form=view]")].map((root) => root.live);
  window.view = all.find((one) => one.data.stem === stem);
  window.taken = [];
  let inputs = [], patched;
  const asked = new Map();
  const events = {input: "[type=range], [type=number]", change: "select, [type=radio], [type=checkbox]"};
  for (const [kind, moved] of Object.entries(events)) {
    view.root.addEventListener(kind, ({target, timeStamp}) => target.matches(moved) && inputs.push(timeStamp), true);
  }
  const {draw, paint} = view;
  view.draw = async (...setting) => {
    const of = inputs, from = performance.now();
    inputs = [];
    const result = await draw.apply(view, setting);
    if (of.length) asked.set(result, {of, python: performance.now() - from});
    return result;
  };
  view.root.addEventListener("live-paint", () => { patched = performance.now(); });
  view.paint = (result, ...rest) => {
    const {of, python} = asked.get(result) ?? {of: inputs.splice(0), python: 0}; // one drawn ahead has waited here
    asked.delete(result);
    const start = performance.now();
    paint.call(view, result, ...rest);
    const laid = performance.now();
    if (!of.length) return; // a picture that no control asked for is not timed
    requestAnimationFrame(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => {
        const end = performance.now();
        const parts = {Python: python, patch: patched - start, layout: laid - patched, frames: end - laid};
        window.taken.push({whole: end - of[0], ...parts});
      };
      port2.postMessage(0);
    });
  };
}"""

# From a settled state, move one control as a hand does: an event at the start of a frame.
MOVE = """async ([state, name, value]) => {
  const {root, built, data} = window.view;
  const {input, set} = built.get(name);
  const {kind} = data.spec.controls.find((one) => one.name === name);
  window.view.set(state);
  await window.view.redraw();
  const before = window.taken.length;
  await new Promise(requestAnimationFrame);
  set(value);
  const at = input.querySelector("input:checked") ?? input; // of options side by side, the one that is chosen
  at.dispatchEvent(new Event(["select", "toggle"].includes(kind) ? "change" : "input", {bubbles: true}));
  while (window.taken.length === before) await new Promise(requestAnimationFrame);
}"""

# From a settled state, the place where a mouse's press sets a control to a value, [x, y] in CSS pixels; null where it
# sets nothing else: the control is off or a list, its range ends before, or the slider's thumb lies there.
PLACE = """async ([state, name, value]) => {
  const {root, built, data, fold} = window.view;
  const {input, element, set} = built.get(name);
  window.view.set(state);
  await window.view.redraw();
  if (fold.contains(element)) fold.open = true;
  element.scrollIntoView({block: "center", behavior: "instant"});
  const now = window.view.params[name];
  const range = input.type === "range", toggle = input.type === "checkbox";
  const share = () => (input.value - input.min) / (input.max - input.min);
  const from = range && share();
  set(value);
  const to = range && share(), option = range || toggle ? input : input.querySelector("input:checked");
  set(now);
  if (!option?.matches(":enabled") || value === now) return null;
  const box = (range ? option : option.closest("label")).getBoundingClientRect();
  const thumb = 1.2 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const way = box.width - thumb; // of the thumb's middle
  if (range && Math.abs(to - from) * way <= thumb) return null;
  const [x, y] = [range ? box.left + thumb / 2 + to * way : box.left + box.width / 2, box.top + box.height / 2];
  return element.contains(document.elementFromPoint(x, y)) ? [x, y] : null;
}"""
RESTS = 120  # milliseconds that a mouse is over a place before it is pressed
# Once a frame has begun; frames go on until a redraw is seen, as in MOVE.
FRAME = """() => new Promise((begun) => {
  const before = window.taken.length;
  const go = () => {
    begun();
    if (window.taken.length === before) requestAnimationFrame(go);
  };
  requestAnimationFrame(go);
})"""


def stems() -> list[str]:
    """The views, those with a slider last."""
    return sorted(views.stems(), key=lambda stem: (bool(sliders(stem)), stem))


def sliders(stem: str) -> list:
    return [one for one in view_settings.controls(stem).values() if one.kind in ("slider", "play")]


def movable(stem: str, questions: bool = False) -> list:
    """The sliders, or in a view without one every control that a hand moves; questions: those whose change takes a
    search (`views.search_controls`), else the others."""
    some = sliders(stem) or [one for one in view_settings.controls(stem).values() if one.kind != "paste"]
    return [one for one in some if (one.name in views.search_controls(stem)) == questions]


def settings(stem: str, count: int, seed: int, questions: bool = False) -> list[tuple[dict, str, object]]:
    """(values of all controls, the name of one of `movable`, the value it is moved to): by chance, the same for one
    seed. Only what the view can draw, before and after; a view that can draw less than a tenth is a ValueError."""
    dice, out = random.Random(f"moves {seed}"), []  # by_chance throws those of the seed itself
    for state in view_settings.by_chance(stem, 10 * count, seed):
        moved = dice.choice(movable(stem, questions))
        to = dice.choice(view_settings.values(moved))
        drawn = [live.call("draw", {"stem": stem, "params": one}) for one in (state, {**state, moved.name: to})]
        if to != state[moved.name] and all("svg" in one for one in drawn):
            out.append((state, moved.name, to))
        if len(out) == count:
            return out
    raise ValueError(f"{stem}: of {10 * count} random settings only {len(out)} can be drawn")


def control(page):
    """The view's first slider, or its first control, with the focus and in sight: a pointer moves nothing that is below
    the window's edge."""
    first = "root.querySelector('input[type=range]') ?? root.querySelector('.live-first :is(select, :checked)')"
    found = page.evaluate_handle(f"(({{root}}) => {first})(window.view)").as_element()
    found.scroll_into_view_if_needed()
    found.focus()
    page.evaluate("window.taken = []")
    return found


def keys(page, count: int) -> list[dict]:
    """The redraws for arrow keys on the first slider."""
    control(page)
    page.keyboard.press("Home")
    page.wait_for_timeout(200)
    page.evaluate("window.taken = []")
    for press in range(count):
        page.keyboard.press("ArrowRight" if press % 6 < 3 else "ArrowLeft")
        page.wait_for_function(f"window.taken.length > {press}")
    return page.evaluate("window.taken")


def drag(page, count: int) -> list[dict]:
    """The redraws for a thumb pulled to and fro by a pointer."""
    box = control(page).bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 5, middle)
    page.mouse.down()
    for step in range(count):
        there = abs((step * 0.17) % 2 - 1)  # 0 to 1 and back
        page.mouse.move(box["x"] + 5 + there * (box["width"] - 10), middle)
        page.wait_for_timeout(35)
    page.mouse.up()
    page.wait_for_timeout(200)
    return page.evaluate("window.taken")


def at_random(page, stem: str, count: int, seed: int, questions: bool = False) -> list[dict]:
    """The redraws for moves of one of `movable` while all controls stand anywhere."""
    page.evaluate("window.taken = []")
    for move in settings(stem, count, seed, questions):
        page.evaluate(MOVE, list(move))
    return page.evaluate("window.taken")


def pressed(page, stem: str, count: int, seed: int) -> list[dict]:
    """The redraws for a mouse that rests over the place of a value and is pressed there, of those moves of `at_random`
    that a mouse can make so: at most `count`, and of four times as many those there are."""
    page.evaluate("window.taken = []")
    done = 0
    for move in settings(stem, 4 * count, seed):
        place = page.evaluate(PLACE, list(move))
        if place is None:
            continue
        page.mouse.move(*place)
        page.wait_for_timeout(RESTS)
        page.evaluate(FRAME)
        page.mouse.down()
        page.mouse.up()
        done += 1
        page.wait_for_function(f"window.taken.length >= {done}")
        if done == count:
            break
    return page.evaluate("window.taken")


def unlock(page) -> None:
    page.evaluate("window.view.root.querySelector('.live-lock .live-plain')?.click()")
