"""The frame of a view: on one screen, in two drawings, with what moves, and with the reader's own run."""

from __future__ import annotations

import json

import pytest
from driver import READY, settle, values

from scaleout import views
from scaleout.draw import svg

SCREENS = [(1280, 800), (1440, 900), (390, 844)]

# Where the parts of a view stand on a screen whose top the widget touches: the tallest state that a press away.
PARTS = """(stem) => {
  const root = document.querySelector(`#live-${stem}`);
  root.scrollIntoView({block: "start", behavior: "instant"});
  const box = (part) => { const at = part.getBoundingClientRect(); return [at.top, at.bottom, at.left, at.right]; };
  const first = [...root.querySelectorAll(".live-first > .live-control")];
  const picture = [...root.querySelectorAll(".live-figure")].find((one) => one.checkVisibility()).querySelector("svg");
  const sentence = box(root.querySelector(".live-sentence"));
  const beneath = root.querySelector(".live-beneath"); // which need not be on the screen
  const whole = box(root).with(1, (beneath ?? root).getBoundingClientRect()[beneath ? "top" : "bottom"]);
  return {root: whole, picture: box(picture), controls: first.map(box), sentence};
}"""

HALFWAY = """async () => {
  const view = document.querySelector(".live-widget").live;
  const bar = () => Number(view.root.querySelector(".live-wide [data-mark=bar-5]").getAttribute("height"));
  const before = bar(), seen = [];
  const done = view.change(view.data.spec.controls.find(({name}) => name === "time"), 3);
  await new Promise((painted) => view.root.addEventListener("live-paint", painted, {once: true}));
  for (const start = performance.now(); performance.now() < start + 1500;) {
    await new Promise(requestAnimationFrame);
    seen.push(bar());
  }
  await done;
  return [before, seen, view.root.querySelector(".live-wide").innerHTML];
}"""


# With "More" open and its last control at the middle of the screen: where that control is, and the sentence.
UNFOLDED = """(stem) => {
  const root = document.querySelector(`#live-${stem}`), fold = root.querySelector(".live-more");
  fold.open = true;
  const last = [...fold.querySelectorAll(".live-control")].at(-1);
  last.scrollIntoView({block: "center", behavior: "instant"});
  const box = (part) => { const at = part.getBoundingClientRect(); return [at.top, at.bottom, at.left, at.right]; };
  const boxes = [box(last), box(root.querySelector(".live-sentence"))];
  fold.open = false;
  return boxes;
}"""


@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("stem", views.stems())
def test_picture_controls_and_verdict_share_a_screen(shared, stem, size):
    page = shared("views")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    parts = page.evaluate(PARTS, stem)
    top, room = parts["root"][0], size[1] - 60  # below the site's bar
    drawn = svg.WIDE if size[0] > 900 else svg.NARROW
    across = parts["picture"][3] - parts["picture"][2]
    assert 0.9 * drawn < across < 1.05 * drawn, "text keeps its size"  # this page has gutters, a chapter none
    assert len(parts["controls"]) <= 5, "at most four, and Play"
    if size[0] > 900:
        assert parts["root"][1] - top <= min(700, room)
        assert all(left > parts["picture"][3] for *_, left, _ in parts["controls"]), "beside the picture"
    else:  # the picture stays in sight while what follows it scrolls
        height = parts["picture"][1] - parts["picture"][0]
        assert height <= 420 and parts["controls"][-1][1] - parts["picture"][0] <= room
        assert parts["sentence"][1] - parts["controls"][-1][0] <= room - height, "a control and the verdict beneath it"


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_sentence_is_in_sight_beside_every_folded_control(shared, size):
    """And covers none of them: on a wide screen it stands in the picture's column, on a phone below the last one."""
    page = shared("views")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for stem in views.stems():
        if not any(control.more for control in views._view(stem).CONTROLS):
            continue
        (top, bottom, left, right), (above, below, start, end) = page.evaluate(UNFOLDED, stem)
        assert 0 <= above < below <= size[1] + 1, stem
        assert end <= left or start >= right or bottom <= above or top >= below, stem


def test_a_narrow_page_shows_the_narrow_drawing_of_the_same_setting(opened):
    opened.get_by_role("slider", name="Bars").press("End")
    settle(opened, "12 bars")
    opened.set_viewport_size({"width": 390, "height": 844})
    opened.wait_for_function("document.querySelectorAll('.live-narrow [data-mark^=bar]').length === 12")
    box = opened.locator(".live-narrow > svg")
    assert box.is_visible() and opened.locator(".live-wide > svg").is_hidden()
    assert box.get_attribute("viewBox").split()[2] == "358"


def test_what_two_pictures_share_moves_from_one_to_the_other(opened):
    before, seen, markup = opened.evaluate(HALFWAY)
    want = views.render("specimen", {"time": 3})
    between = {round(one, 1) for one in seen if min(before, seen[-1]) + 1 < one < max(before, seen[-1]) - 1}
    bar = next(part for part in want["svg"].split("<rect")[1:] if "bar-5" in part)
    assert f'height="{seen[-1]:g}"' in bar, "at rest it is what Python drew"
    if before != seen[-1]:
        assert len(between) >= 2 and seen == sorted(seen, reverse=before > seen[-1])
    assert 'opacity="0' not in markup


def test_what_did_not_change_stays_and_the_rest_is_what_python_drew(opened):
    stays, every, markup = opened.evaluate("""async () => {
      const view = document.querySelector(".live-widget").live, box = view.figures[view.shape].box;
      const old = [...box.querySelectorAll("text")];
      view.set({time: 3});
      await view.redraw();
      const now = new Set(box.querySelectorAll("text"));
      return [old.filter((one) => now.has(one)).length, old.length, box.firstElementChild.outerHTML];
    }""")
    drawn = views.render("specimen", {"time": 3})["svg"]
    assert 0 < stays <= every
    bare = opened.evaluate(
        """([drawn, markup]) => [drawn, markup].map((text) => {
      const box = document.createElement("div");
      box.innerHTML = text;
      for (const one of box.querySelectorAll("*")) {
        for (const name of ["role", "tabindex", "aria-label", "visibility", "aria-valuemin", "aria-valuemax",
          "aria-valuenow", "aria-valuetext", "aria-orientation"]) one.removeAttribute(name);
      }
      return box.innerHTML;
    })""",
        [drawn, markup],
    )
    assert bare[0] == bare[1]


def test_a_view_gets_lower_only_once_the_hand_rests(opened):
    """Else all that is beneath it would move in the middle of a drag."""
    rest, tall, painted, after = opened.evaluate("""async () => {
      const view = document.querySelector(".live-widget").live, height = () => view.root.getBoundingClientRect().height;
      const frames = async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); };
      const heights = [height()];
      view.shown.append(Object.assign(document.createElement("div"), {style: "height: 200px"}));
      await frames();
      heights.push(height());
      view.root.addEventListener("live-paint", () => heights.push(height()), {once: true});
      await view.redraw();
      return [...heights, height()];
    }""")
    assert rest + 100 < tall == painted and after == rest


@pytest.mark.parametrize(("name", "value", "near"), [("dropped", 65, [60, 70]), ("model", 1, [0, 2])])
def test_what_is_a_step_away_is_drawn_once_the_one_asked_for_is_seen(shared, name, value, near):
    """value: of a choice, which of its options."""
    page = shared("views")
    order, steps = page.evaluate(
        """async ([name, value]) => {
      const {live: view} = document.querySelector("#live-recompute"), seen = [], steps = [];
      const {draw} = view;
      await view.redraw();
      view.ahead.clear();
      const control = view.data.spec.controls.find((one) => one.name === name);
      const row = control.options?.map(([option]) => option);
      view.draw = (params, ...rest) => {
        seen.push("draw");
        steps.push(row ? row.indexOf(params[name]) : params[name]);
        return draw.call(view, params, ...rest);
      };
      view.root.addEventListener("live-paint", () => requestAnimationFrame(() => seen.push("frame")), {once: true});
      await view.change(control, row ? row[value] : value);
      delete view.draw;
      view.reset();
      return [seen, steps];
    }""",
        [name, value],
    )
    assert order == ["draw", "frame", "draw", "draw"] and steps == [value, *near]


def test_less_motion_means_no_motion(visit, page):
    page.emulate_media(reduced_motion="reduce")
    page = visit("specimen", "#live-specimen?count=6")
    page.wait_for_function(READY)
    settle(page, "6 bars")
    _before, seen, _markup = page.evaluate(HALFWAY)
    assert len(set(seen)) == 1


def test_a_record_of_the_readers_own_is_drawn(opened, tmp_path):
    file = tmp_path / "run.json"
    for content, words in [
        ("{", "run.json is not JSON"),
        ("[1]", "a Record is a JSON object, not list"),
        ('{"peak": 3}', "this is no Record of the specimen: its height is missing"),
    ]:
        file.write_text(content)
        opened.locator("input[type=file]").set_input_files(file)
        settle(opened, words, ".live-status .live-problem")
        assert values(opened)["own"] is None
    file.write_text(json.dumps({"height": 2.5, "rest": "x" * 1000}))
    opened.locator("input[type=file]").set_input_files(file)
    opened.get_by_text("your run: 2.5 mm").first.wait_for()
    assert opened.locator(".live-status .live-problem").is_hidden()
    opened.get_by_role("slider", name="Bars").press("End")
    settle(opened, "12 bars")
    assert values(opened)["own"] == 2.5  # it stays while the controls move
    opened.get_by_role("button", name="Reset").click()
    settle(opened, "6 bars")
    assert values(opened)["own"] is None


def test_a_record_can_be_dropped(opened):
    opened.evaluate("""() => {
      const data = new DataTransfer();
      data.items.add(new File(['{"height": 1.25}'], "run.json", {type: "application/json"}));
      const root = document.querySelector(".live-widget");
      root.dispatchEvent(new DragEvent("dragover", {dataTransfer: data, bubbles: true, cancelable: true}));
      root.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }""")
    opened.get_by_text("your run: 1.25 mm").first.wait_for()
    assert not opened.locator(".live-widget[data-drop]").count()
