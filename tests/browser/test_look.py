"""What readers with other eyes, hands, screens and paper get."""

from __future__ import annotations

import pytest
from driver import NARROW, READY, paint, settle, unfold, violations

from scaleout import views
from scaleout.draw import svg
from scaleout.page import form


@pytest.mark.parametrize("name", ["specimen", "exercises"])
def test_axe_finds_nothing_serious(shared, name):
    """With every kind of control and of exercise; the book's own are looked at on the pages of the site."""
    opened = shared(name)
    assert violations(opened) == []  # with the lock on, where there is one
    unfold(opened)
    assert violations(opened) == []
    paint(opened, "dark")
    assert violations(opened, ("color-contrast",)) == []
    paint(opened, "light")


def test_axe_finds_nothing_serious_in_an_error(opened):
    opened.get_by_role("spinbutton", name="Offset").fill("99")
    settle(opened, "offset must be", ".live-status .live-problem")
    assert violations(opened) == []


def test_the_picture_stays_in_sight_on_a_phone(opened):
    opened.set_viewport_size(NARROW)
    opened.get_by_role("button", name="Reset").scroll_into_view_if_needed()
    box = opened.locator(".live-narrow > svg").bounding_box()
    assert 0 <= box["y"] < NARROW["height"] / 2


def test_paper_shows_the_picture_and_nothing_to_press(visit):
    opened = visit("specimen")
    paint(opened, "dark")
    opened.emulate_media(media="print")
    assert opened.locator(".live-wide > svg").is_visible()  # a question to answer by hand
    for part in (".live-first", ".live-foot", ".live-lock", ".live-wide .live-mark"):
        assert opened.locator(part).is_hidden()
    ink = "getComputedStyle(document.querySelector('.live-figure text')).fill"
    assert opened.evaluate(ink) == "rgb(34, 34, 34)"  # dark on white, whatever the screen had


def test_paper_has_room_for_an_answer(tasks):
    field = tasks.locator("#live-memory-weights-70b input[type=text]")
    editor = tasks.locator(".live-editor").first
    height = editor.bounding_box()["height"]
    tasks.emulate_media(media="print")
    for part in ("button:visible", "select:visible", "details:visible", ".live-help:visible"):
        assert tasks.locator(f".live-widget {part}").count() == 0
    line = "(one) => [getComputedStyle(one, '::placeholder').color, getComputedStyle(one).borderBottomStyle]"
    assert field.evaluate(line) == ["rgba(0, 0, 0, 0)", "solid"]
    assert field.bounding_box()["width"] > 200
    assert editor.bounding_box()["height"] > height + 60
    tasks.emulate_media(media="screen")
    unit = tasks.locator("#live-memory-weights-70b select")
    unit.select_option("GB")
    field.fill("140")
    tasks.emulate_media(media="print")
    assert unit.is_visible() and field.input_value() == "140"  # what has been answered stays
    tasks.emulate_media(media="screen")


def test_without_scripts_it_reads(context, site):
    plain = context.browser.new_context(java_script_enabled=False) if context.browser else None
    if plain is None:
        pytest.skip("this browser opens no second context")
    opened = plain.new_page()
    opened.goto(f"{site}/specimen.html")
    assert opened.locator(".live-wide > svg").is_visible()
    assert opened.get_by_text("How tall is the last bar?").is_visible()
    opened.goto(f"{site}/views.html")
    read = opened.locator("#live-specimen .live-sentence").inner_text()
    assert read == views.render("specimen")["sentence"].replace("**", "")
    assert opened.locator("#live-specimen .live-wide > svg").is_visible()
    opened.goto(f"{site}/exercises.html")
    task = form.exercise("memory", "weights-70b")
    widget = opened.locator("#live-memory-weights-70b")
    assert widget.get_by_text(task["spec"]["title"]).is_visible()
    assert widget.locator("details").count() == len(task["spec"]["hints"]) + 1
    widget.get_by_text("Solution").click()
    assert widget.locator("details[open]").count() == 1
    plain.close()


def test_less_motion_means_no_play_button_and_no_turning(visit, page):
    page.emulate_media(reduced_motion="reduce")
    opened = visit("specimen")
    assert opened.get_by_role("button", name="Play").count() == 0
    assert opened.get_by_role("button", name="Step on: Time").count() == 1
    opened.get_by_role("textbox", name="Your guess").focus()
    spin = "getComputedStyle(document.querySelector('.live-python'), '::before').animationName"
    assert opened.evaluate(spin) == "none"
    opened.wait_for_function(READY)


def test_focus_can_be_seen(opened):
    opened.get_by_role("slider", name="Bars").focus()
    # of a radio, its words show the focus
    seen = """getComputedStyle(document.activeElement.type === 'radio' ? document.activeElement.nextElementSibling
      : document.activeElement).outlineStyle"""
    for _ in range(6):
        opened.keyboard.press("Tab")
        assert opened.evaluate(f"{seen} === 'solid' || document.activeElement.type === 'range'")


def test_the_palette_has_one_home(locked):
    seen = {}
    for theme in ("dark", "light"):
        paint(locked, theme)
        seen[theme] = locked.evaluate(
            """(names) => {
          const probe = document.createElement("span");
          document.querySelector(".live-widget").append(probe);
          return names.map((name) => {
            probe.style.color = `var(--${name})`;
            return getComputedStyle(probe).color;
          });
        }""",
            list(svg.FALLBACK),
        )
    light = ["rgb({}, {}, {})".format(*bytes.fromhex(code[1:])) for code in svg.FALLBACK.values()]
    assert len(set(seen["dark"])) == len(light)
    assert seen["light"] == light != seen["dark"]
