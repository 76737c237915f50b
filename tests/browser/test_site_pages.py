"""Every page of the built site as a reader meets it, in one visit: by day, by night, on a phone, on paper, at work."""

from __future__ import annotations

import live_page
import pytest
from contrast import faint, sizes
from driver import HTML, NARROW, contents, paint, unfold, violations

from scaleout import views
from scaleout.page import live

# A view on a page, by its place among the page's widgets.
ROOTS = "[...document.querySelectorAll('.live-widget[data-form=view]')]"
OUTSIDE = """(nodes) => nodes.filter((node) => node.getBoundingClientRect().right > innerWidth)
  .map((node) => node.outerHTML)"""
MOVE = f"""async (at) => {{
  const view = {ROOTS}[at].live;
  const input = view.root.querySelector("input[type=range]");
  const {{min, max}} = input;
  const painted = new Promise((done) => view.root.addEventListener("live-paint", done, {{once: true}}));
  input.value = Number(min) + Math.round((max - min) / 3);
  input.dispatchEvent(new Event("input", {{bubbles: true}}));
  await painted;
  return {{stem: view.data.stem, params: view.params, values: view.values}};
}}"""
# Which form of each drawing is seen, or its words for where none can be.
DRAWN = """[...document.querySelectorAll("figure.drawing > :is(div, p)")].filter((one) => one.checkVisibility())
  .map((one) => one.className)"""
# A hand on a view leaves out the blocks that are out of sight; which of them are laid out otherwise by themselves?
UNSEEN = "document.querySelectorAll('.bd-article [style*=content-visibility]').length"
MOVED = """async () => {
  const every = (await import("/_static/live/unseen.js")).blocks();
  const heights = () => every.map((one) => one.getBoundingClientRect().height);
  const before = heights();
  for (const one of every) one.style.contain = "layout paint style";
  const after = heights();
  for (const one of every) one.style.contain = "";
  return every.filter((one, i) => before[i] !== after[i]).map((one) => one.outerHTML.slice(0, 200));
}"""
# The theme's icons that are not drawn, and whether its script goes on to look for some in what a view draws.
ICONS = "[document.querySelectorAll('i[class*=fa-]').length, FontAwesome.config.observeMutations]"
# A window on a field of stripes, within a picture: it is as wide as it was drawn, and cuts them off.
WINDOWS = """[...document.querySelectorAll("svg svg")].filter((one) => {
  const { overflowX, width } = getComputedStyle(one);
  return overflowX !== "hidden" || Math.abs(parseFloat(width) - one.getAttribute("width")) > .1;
}).length"""
# What a sheet of A4 cuts off, what on it asks to be pressed, and folds that do not say where they are.
SHEET = {"width": 658, "height": 994}
LOST = """() => {
  const article = document.querySelector(".bd-article"), { right } = article.getBoundingClientRect();
  const seen = [...article.querySelectorAll(":not(svg *, mjx-container *, .w)")].filter((one) => one.checkVisibility());
  const told = (fold) => getComputedStyle(fold.querySelector("summary"), "::after").content !== "none"
    || fold.lastElementChild.checkVisibility({ contentVisibilityAuto: true });
  const wrong = seen.filter((one) => one.getBoundingClientRect().right > right + 1
    || one.matches("button, input[type=range], .live-lock, .live-foot")
    || one.matches("details:not([open], .live-widget *)") && !told(one));
  return [parseFloat(getComputedStyle(article).paddingBottom), wrong.map((one) => one.outerHTML.slice(0, 200))];
}"""
# The theme looks a third of a second after the last change of size which code scrolls, and is a tab stop for that.
STOPS = """[...document.querySelectorAll("pre")].every(
  (one) => one.tabIndex === 0 || one.scrollWidth <= one.clientWidth)"""
PAGES = [*contents(), "404", "search"]
# Python takes seconds to start in a page, and every page starts the same: one does. On the others this Python answers
# at the other end of the worker's line (scaleout/page/static/worker.js).
STARTS = "notebooks/06_fsdp"
INSTEAD = """window.Worker = class {
  postMessage({ port }) {
    port.onmessage = async ({ data }) => {
      port.postMessage({ id: data.id, result: await answer(data.method, data.args) });
    };
    port.postMessage({ ready: true });
  }
  terminate() {}
};"""
WIDE = {"width": 1200, "height": 900}


def test_a_reader_who_chose_the_dark_gets_it(reader, book):
    reader.add_init_script("for (const key of ['mode', 'theme']) localStorage.setItem(key, 'dark');")
    reader.goto(f"{book}/book/index.html")
    assert reader.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound(reader, book, name):
    if name != STARTS:
        reader.expose_function("answer", live.call_json)
        reader.add_init_script(INSTEAD)
    reader.set_viewport_size(WIDE)
    reader.goto(f"{book}/{name}.html")
    live_page.rest(reader)
    assert reader.watch.python() == []  # it waits for the first touch
    assert reader.evaluate(MOVED) == []
    assert reader.evaluate(ICONS) == [0, False]
    assert reader.evaluate(WINDOWS) == 0
    views_at_rest(reader)
    unfold(reader)
    assert reader.evaluate(DRAWN) == ["wide"] * reader.locator("figure.drawing").count()
    reader.wait_for_function(STOPS)
    assert violations(reader) == []
    assert faint(reader) == []
    paint(reader, "dark")
    assert violations(reader, ("color-contrast", "image-alt")) == []
    assert faint(reader) == [] == sizes(reader)
    for widget in reader.locator(".live-widget").all():
        assert widget.evaluate("(node) => getComputedStyle(node.parentElement).backgroundColor") == "rgba(0, 0, 0, 0)"
        assert widget.evaluate("(node) => getComputedStyle(node).colorScheme") == "dark"
    reader.set_viewport_size(NARROW)
    assert reader.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert reader.evaluate(DRAWN) == ["narrow"] * reader.locator("figure.drawing").count()
    assert faint(reader) == [] == sizes(reader)
    parts = reader.locator(".live-widget, .live-control:visible, .live-answer, .live-figure > svg:visible")
    assert parts.evaluate_all(OUTSIDE) == []
    views_at_work(reader)
    assert any("scaleout.zip" in url for url in reader.watch.python()) is (name == STARTS)


def test_on_a_phone_the_names_of_zeros_stages_need_no_scrolling(reader, book):
    """Names in code break between their parts, and on a wide page not."""
    for size, lines in ((NARROW, 3), (WIDE, 1)):
        reader.set_viewport_size(size)
        reader.goto(f"{book}/notebooks/05_zero.html")
        boxes = reader.locator("#use-it :is(.pst-scrollable-table-container, .scroll)")
        assert boxes.evaluate_all("(all) => all.map((one) => one.scrollWidth - one.clientWidth)") == [0, 0]
        name = reader.locator("#use-it td code", has_text="Optimizer").first.locator(".pre")
        tops = "(one) => new Set([...one.getClientRects()].map((box) => Math.round(box.top))).size"
        assert name.evaluate(tops) == lines


def test_paper_is_light_after_a_dark_screen(reader, book):
    reader.goto(f"{book}/notebooks/02_ddp.html")
    inks = """["p", "table.table td", "svg.plot text"].map((name) => {
      const style = getComputedStyle(document.querySelector(`.bd-article ${name}`));
      return [name.startsWith("svg") ? style.fill : style.color, style.colorScheme];
    })"""
    by_day = reader.evaluate(inks)
    paint(reader, "dark")
    assert all(one != other for one, other in zip(by_day, reader.evaluate(inks), strict=True))
    reader.emulate_media(media="print")
    assert reader.evaluate(inks) == by_day
    assert faint(reader) == []
    reader.emulate_media(media="screen")


def views_at_rest(page) -> None:
    """What a reader has of a page's views on paper, and on a phone: no sideways scroll, and the picture stays in sight
    above the controls."""
    views_ = page.locator(".live-widget[data-form=view]")
    page.emulate_media(media="print")
    for view in views_.all():
        assert view.locator(".live-stage .live-wide > svg").is_visible()
        assert view.locator(".live-first").is_hidden()
    page.set_viewport_size(SHEET)
    if page.locator(".bd-article > section").count():
        assert page.evaluate(LOST) == [0, []]
    page.emulate_media(media="screen")
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]  # with the lock on
    if views_.count():
        for skip in page.locator(".live-lock .live-plain").all():
            skip.click()
            page.wait_for_function(UNSEEN)
        page.locator(".live-controls").first.locator(".live-control:visible").last.scroll_into_view_if_needed()
        picture = page.locator(".live-narrow > svg").first.bounding_box()
        assert 0 < picture["y"] < NARROW["height"] - picture["height"]  # below the theme's bar, and whole
    page.set_viewport_size(WIDE)


def views_at_work(page) -> None:
    """A link brings a view's state, and each answers as the kernel's Python does."""
    for at in range(page.locator(".live-widget[data-form=view]").count()):
        view = page.evaluate(f"{ROOTS}[{at}].live.data")
        controls = [one for one in view["spec"]["controls"] if one["kind"] in ("slider", "select")]
        control = max(controls, key=lambda one: one["kind"] == "slider")
        name, now = control["name"], views.render(view["stem"], view["params"])["levers"]
        hi = now.get(name, {}).get("hi", control.get("hi"))
        ends = (control["lo"], hi) if "lo" in control else [value for value, _ in control["options"]]
        other = ends[1] if view["params"][name] == ends[0] else ends[0]
        page.evaluate("(to) => { location.hash = to; }", f"#live-{view['key']}?{name}={other}")
        page.wait_for_function(f"(other) => {ROOTS}[{at}].live.params['{name}'] === other", arg=other)
        want = views.render(view["stem"], {**view["params"], name: other})
        assert page.evaluate(f"{ROOTS}[{at}].live.values") == want["values"]
        if control["kind"] != "slider":
            continue
        got = page.evaluate(MOVE, at)
        assert got["values"] == views.render(got["stem"], got["params"])["values"]


def test_pages_with_views_are_among_them(book):
    assert sum('data-form="view"' in (HTML / f"{name}.html").read_text("utf-8") for name in PAGES) >= 5
