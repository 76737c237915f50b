"""The planner under a reader's hands: a point is pressed, arrow keys choose, and what is told beneath follows."""

from __future__ import annotations

import driver
import pytest
from view_settings import PASTED

from scaleout import views
from scaleout.views import blocks

VIEW = driver.live("planner")
TOLD = "!document.querySelector('#live-planner [data-stale]')"
STOPS = """[...document.querySelectorAll("#live-planner .live-figure [tabindex='0']")]
  .filter((one) => one.checkVisibility()).map((one) => one.dataset.mark)"""
SMALL = {"model": "llama-3-8b", "gpus": 16, "sequences": 128}


@pytest.fixture
def planner(shared):
    """A small job among the other views, its Python running and its picture in sight."""
    page = shared("views")
    view = driver.wake(page, "planner")
    page.evaluate(f"(params) => {VIEW}.choose(params)", SMALL)
    driver.stands(page, "planner", SMALL)
    view.evaluate("(root) => root.scrollIntoView({block: 'start', behavior: 'instant'})")
    return view


def yours(planner):
    return planner.page.evaluate(f"['tp', 'pp', 'cp', 'zero', 'recompute'].map((name) => {VIEW}.params[name])")


def test_a_point_says_why_it_loses_and_a_press_makes_it_the_readers(planner):
    field = planner.locator(".live-wide [data-field]")
    every, words = driver.points(field), field.locator("text")
    first = words.text_content()
    alone = [one for one in every if all(abs(one[0] - b[0]) + abs(one[1] - b[1]) > 8 for b in every if b is not one)]
    x, y, cuts, said = alone[len(alone) // 2]
    box = planner.locator(".live-stage .live-wide > svg").bounding_box()
    at = box["x"] + x * box["width"] / 600, box["y"] + y * box["height"] / 490
    planner.page.mouse.move(*at)
    assert words.text_content() == said and field.locator("circle").get_attribute("visibility") == "visible"
    planner.page.mouse.click(*at)
    driver.stands(planner.page, "planner", {"tp": cuts[0], "zero": cuts[3], "recompute": cuts[4]})
    assert yours(planner) == cuts
    there = views.render("planner", planner.page.evaluate(f"{VIEW}.params"))["values"]["yours"]
    assert planner.page.evaluate(f"{VIEW}.values.yours.seconds") == there["seconds"]
    planner.page.mouse.move(5, 5)
    assert words.text_content() == first, "and none is said to be pointed at"


def test_hundreds_of_points_are_one_stop_and_arrow_keys_go_through_them(planner):
    stops = planner.page.evaluate(STOPS)
    assert stops.count("field") == 1 and len(stops) < 25
    field = planner.locator(".live-wide [data-field]")
    every = driver.points(field)
    field.focus()
    for key, place in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowUp", 2), ("ArrowLeft", 1), ("End", len(every) - 1)):
        planner.page.keyboard.press(key)
        assert field.get_attribute("aria-valuetext") == every[place][3], key
        assert field.get_attribute("aria-valuenow") == str(place + 1)
    planner.page.keyboard.press("Home")
    planner.page.keyboard.press("Enter")
    driver.stands(planner.page, "planner", {"tp": every[0][2][0], "recompute": every[0][2][4]})
    assert yours(planner) == every[0][2]
    assert planner.page.evaluate("document.activeElement.dataset.mark") == "field"


def test_what_is_beneath_is_told_of_the_setting_that_is_there(planner):
    planner.page.wait_for_function(TOLD)
    planner.locator(".live-beneath .live-wide [data-press='gpus=8']").click()
    driver.stands(planner.page, "planner", {"gpus": 8})
    planner.page.wait_for_function(TOLD)
    params = planner.page.evaluate(f"{VIEW}.params")
    for name in ("cut", "figures", "away"):
        wanted = blocks.html(views.beneath("planner", params, name))
        there = planner.locator(f"[data-section={name}]")
        assert there.text_content() == driver.text_of(planner.page, wanted)
    assert planner.locator(".live-beneath .live-wide [data-press='gpus=8']").count() == 0, "the reader is there"


def test_a_chip_lights_its_kind_by_keyboard_and_a_config_is_pasted(planner):
    page, box = planner.page, planner.locator(".live-stage .live-wide")
    box.locator("[data-press='show=bubble']").focus()
    page.keyboard.press("Enter")
    driver.stands(page, "planner", {"show": "bubble"})
    counts = page.evaluate(f"{VIEW}.values.counts")
    assert len(driver.points(box.locator("[data-field]"))) == counts["bubble"] < sum(counts.values())
    assert page.evaluate("document.activeElement.dataset.mark") == "chip bubble"
    page.keyboard.press("Enter")
    driver.stands(page, "planner", {"show": "all"})
    planner.locator(".live-more summary").click()
    paste = planner.locator("[data-name=config] textarea")
    paste.fill(PASTED)
    page.wait_for_function(f"{VIEW}.sentence.startsWith('mistral of 7.25B on 16 H100')")
    assert planner.locator("[data-name=model] select").is_disabled()
    assert "rope_theta" not in page.evaluate(f"{VIEW}.params.config"), "a link has what is read"
    paste.fill("{")
    page.wait_for_function("document.querySelector('#live-planner').textContent.includes('paste a whole config.json')")
    paste.fill("")
    page.wait_for_function(f"{VIEW}.sentence.startsWith('Llama 3 8B')")
    planner.locator(".live-more summary").click()


# As a reader's hand drops them: a checkpoint of 300 MB that no page may read, and a folder, which cannot be read.
DROP = """(file) => {
  const event = new Event("drop", {bubbles: true, cancelable: true});
  Object.defineProperty(event, "dataTransfer", {value: {files: [file()], types: ["Files"]}});
  document.querySelector("#live-planner [data-name=config] textarea").dispatchEvent(event);
  return event.defaultPrevented;
}"""
LARGE = """() => Object.defineProperties(new File(["{}"], "model.safetensors"), {
  size: {value: 3e8}, text: {value: () => { window.wasRead = true; return Promise.resolve("{}"); }}})"""
FOLDER = """() => Object.assign(new File([""], "weights"), {
  text: () => Promise.reject(new DOMException("", "NotFoundError"))})"""
CONFIG = f"() => new File([{PASTED!r}], 'config.json')"


def test_what_cannot_be_a_config_is_said_in_a_line_when_it_is_dropped(planner):
    page = planner.page
    planner.locator(".live-more summary").click()
    for file, said in (
        (LARGE, "model.safetensors has 300 MB: a config.json has at most 1 MB."),
        (FOLDER, "weights cannot be read: choose a file, not a folder."),
    ):
        assert page.evaluate(f"({DROP})({file})"), "else the browser leaves the page for the file"
        problem = planner.locator("[data-name=config] .live-problem")
        problem.filter(has_text=said).wait_for()
        assert page.evaluate(f"{VIEW}.params.config") == "" == planner.locator("textarea").input_value()
    assert not page.evaluate("window.wasRead")
    assert page.evaluate(f"({DROP})({CONFIG})")
    page.wait_for_function(f"{VIEW}.sentence.startsWith('mistral of 7.25B on 16 H100')")
    assert planner.locator(".live-problem:visible").count() == 0
    planner.locator("textarea").fill("")
    page.wait_for_function(f"{VIEW}.sentence.startsWith('Llama 3 8B')")
    planner.locator(".live-more summary").click()


def test_what_folds_is_as_high_as_a_finger_needs(planner):
    """24 px (WCAG 2.2, 2.5.8), of every summary in a widget."""
    planner.page.wait_for_function(TOLD)
    heights = planner.page.locator(".live-widget summary:visible").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().height)"
    )
    assert len(heights) > 5 and min(heights) >= 24


def test_points_glide_from_where_their_layouts_were(planner):
    """Halfway each point of a layout is between where it was and where it comes to rest."""
    seen = planner.page.evaluate("""async () => {
      const {glides} = await import("/_static/live/glide.js");
      const box = document.createElement("div");
      box.innerHTML = `<svg><path data-cloud="" d="M10.0 20.0m1 1zM30.0 40.0m1 1z"/>
        <g data-field="tp" data-points="10.0 20.0 2|b;30.0 40.0 1|a"></g></svg>`;
      const [{at, end}] = glides(box, "50.0 60.0 1|a;10.0 0.0 2|b");
      return [at(0), at(0.5), end];
    }""")
    assert seen == ["M10.0 0.0m1 1zM50.0 60.0m1 1z", "M10.0 10.0m1 1zM40.0 50.0m1 1z", "M10.0 20.0m1 1zM30.0 40.0m1 1z"]


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_of_it_scrolls_sideways(planner, width):
    planner.page.set_viewport_size({"width": width, "height": 844})
    wide = "document.documentElement.scrollWidth <= innerWidth"
    assert planner.page.evaluate(wide)
    outside = planner.page.evaluate("""() => {
      const root = document.querySelector("#live-planner"), {left, right} = root.getBoundingClientRect();
      return [...root.querySelectorAll(".live-beneath *")].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width && !one.closest("pre") && (box.left < left - 1 || box.right > right + 1);
      }).map((one) => one.outerHTML.slice(0, 80));
    }""")
    assert outside == []
