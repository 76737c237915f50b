"""The page's Python gives what the kernel's Python gives: for every view, over a grid of parameters."""

from __future__ import annotations

import json
import random

import live_page
import pytest
from driver import READY, watched
from view_settings import values

from scaleout import views
from scaleout.draw import svg
from scaleout.page import form, live
from scaleout.views.controls import order, rows_of, stops

MANY = 10  # options of a select: of more, some
ASKED = 2  # values of a control whose every change is a search
MIXED = 6  # random combinations a view, beside every value of every control alone; of one that searches, half

# The widget of a view.
ROOT = """const root = document.querySelector(`#live-${stem}`);"""

# The SVG of a box as Python wrote it: without what brings buttons and movable marks to life.
BARE = """const bare = (box) => {
  const copy = box.cloneNode(true);
  for (const mark of copy.querySelectorAll("[data-press], [data-move], [data-nudge], [data-field]")) {
    mark.closest("svg").setAttribute("role", "img");
    const alive = /^(aria-|role|tabindex|data-chosen)/;
    for (const name of mark.getAttributeNames()) if (alive.test(name)) mark.removeAttribute(name);
  }
  return copy.innerHTML;
};"""

# Set each state as a reader's hand would, and give back what then stands on the page.
DRIVE = f"""async ([stem, states]) => {{
  {ROOT} {BARE}
  const out = [];
  for (const state of states) {{
    root.live.set(state);
    await root.live.redraw();
    const problem = root.querySelector(".live-problem:not(.live-lock *)");
    out.push(problem.hidden
      ? {{svg: bare(root.querySelector(".live-wide")), values: root.live.values,
          sentence: root.querySelector(".live-sentence").innerHTML}}
      : {{error: problem.textContent}});
  }}
  return out;
}}"""

STORED = f"""(stem) => {{
  {ROOT} {BARE}
  return [".live-wide", ".live-narrow", ".live-sentence"].map((part) => bare(root.querySelector(part)));
}}"""

# The browser writes SVG its own way (quotes, empty elements); Python's goes through the same reading.
NORMAL = """(all) => all.map((svg) => {
  const box = document.createElement("div");
  box.innerHTML = svg;
  return box.innerHTML;
})"""


def _values(control) -> list:
    """Some values of a control: both ends, the default, and some between."""
    if control.kind == "select":
        every = [value for value, _label in control.options]
        return every if len(every) <= MANY else [*every[:: len(every) // 3], every[-1]]
    if control.kind in ("toggle", "paste"):
        return values(control)
    if control.kind == "arrange":
        return [control.default, order([row[::-1] for row in rows_of(control.default)])]
    if control.kind == "code":
        return [control.default, "def height(x):\n    return 1 / (1 + x)\n"]
    if control.log:
        every = stops(control)
        return [every[0], every[len(every) // 3], every[2 * len(every) // 3], every[-1]]
    middle = control.lo + control.step * (int((control.hi - control.lo) / control.step) // 2)
    return [control.lo, control.default, middle, control.hi]


def grid(stem: str) -> list[dict]:
    """Every value of every control alone, then random combinations (the same on every run)."""
    controls = [one for one in views._view(stem).CONTROLS if one.kind != "guess"]
    base, alone = {control.name: control.default for control in controls}, []
    for control in controls:
        some = _values(control)
        if control.name in views.search_controls(stem) and len(some) > ASKED:
            some = some[:: (len(some) - 1) // (ASKED - 1)]
        alone += [{**base, control.name: value} for value in some]
    draw = random.Random(2)
    # a page starts Python anew for another code, so code is left as it is
    mixed = [
        {**base, **{one.name: draw.choice(_values(one)) for one in controls if one.kind != "code"}}
        for _ in range(MIXED // 2 if views.search_controls(stem) else MIXED)
    ]
    return alone + mixed


@pytest.mark.parametrize("stem", [*views.stems(), "specimen"])
def test_the_page_equals_the_kernel(shared, stem):
    page = shared("views")
    stored = [views.render(stem, {}, width)["svg"] for width in (svg.WIDE, svg.NARROW)]
    stored.append(form.bold(views.render(stem)["sentence"]))
    assert page.evaluate(STORED, stem) == page.evaluate(NORMAL, stored), "as it is stored"
    states = grid(stem)
    kernel = [live.call("draw", {"stem": stem, "params": state}) for state in states]
    drawn = page.evaluate(DRIVE, [stem, states])
    wanted = [one for one in kernel if "svg" in one]
    assert len(wanted) > len(states) / 2, "most of the grid should be drawable"
    svgs = iter(page.evaluate(NORMAL, [one["svg"] for one in wanted]))
    for state, here, there in zip(states, kernel, drawn, strict=True):
        if "error" in here:
            assert there == here, state
            continue
        assert there["values"] == json.loads(json.dumps(here["values"])), state
        assert there["sentence"] == form.bold(here["sentence"]), state
        assert there["svg"] == next(svgs), state


FIRST = f"""async ([stem, state]) => {{
  {ROOT}
  const words = () => root.querySelector(".live-sentence").innerHTML;
  let first = null;
  root.addEventListener("live-paint", () => {{ first = words(); }}, {{once: true}});
  root.live.set(state);
  await root.live.redraw();
  return [first, words()];
}}"""


def test_a_picture_does_not_wait_for_the_advice_that_ends_its_sentence(shared):
    state = {"batch": 2}
    short, whole = (views.render("ddp", state, advise=advise)["sentence"] for advise in (False, True))
    assert "**" in whole.removeprefix(short)
    assert shared("views").evaluate(FIRST, ["ddp", state]) == [form.bold(short), form.bold(whole)]


def test_nothing_of_python_is_loaded_before_the_first_touch_on_a_metered_line(visit):
    page = visit("specimen", "#a-heading", alone=True)  # a fragment of something else is no touch
    live_page.rest(page)
    assert page.watch.python() == []
    page.get_by_role("textbox", name="Your guess").focus()
    page.wait_for_function(READY)
    # the watch sees what a worker asks for, so the test above could have failed
    assert any("pyodide.asm.wasm" in url for url in page.watch.python())
    assert any("scaleout.zip" in url for url in page.watch.python())


def test_python_starts_when_a_widget_comes_near(context, site):
    page = watched(context, site, metered=False)
    page.add_init_script("addEventListener('DOMContentLoaded', () => document.body.style.paddingTop = '5000px')")
    page.goto(f"{site}/specimen.html")
    page.wait_for_selector(".live-widget[data-mounted]")
    live_page.rest(page)
    assert page.watch.python() == []
    page.mouse.wheel(0, 3900)  # not in sight yet
    page.wait_for_function("document.querySelector('.live-widget').live.runtime.book.state === 'ready'")
    assert page.locator(".live-python").is_hidden()  # nobody waits for it
    assert page.watch.unexpected() == []
    page.close()
