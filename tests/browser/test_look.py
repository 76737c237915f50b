"""What readers with other eyes, hands, screens and paper get."""

from __future__ import annotations

import pytest
from driver import READY, settle

from scaleout import views
from scaleout.draw import svg
from scaleout.page import form, sphinx

pytestmark = pytest.mark.browser

AXE = sphinx.NPM / "axe-core" / "axe.min.js"
NARROW = {"width": 390, "height": 844}


def pages(theme: str) -> list[str]:
    return [*(f"{stem}-{theme}" for stem in views.stems()), f"exercises-{theme}"]


def violations(opened) -> list[str]:
    """Serious and critical findings of axe-core, each with the element it is about."""
    opened.add_script_tag(path=AXE)
    found = opened.evaluate("axe.run(document).then((result) => result.violations)")
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in found if one["impact"] in ("serious", "critical") for node in one["nodes"]
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*pages("light"), *pages("dark")])
def test_axe_finds_nothing_serious(visit, name):
    opened = visit(name)
    assert violations(opened) == []  # with the lock on, where there is one
    skip = opened.get_by_role("button", name="Show me without a guess")
    if skip.count():
        skip.click()
    for more in opened.get_by_role("button", name="Hint").all():
        more.click()
    for fold in opened.locator("summary").all():
        fold.click()
    assert violations(opened) == []


def test_axe_finds_nothing_serious_in_an_error(opened):
    opened.get_by_role("spinbutton", name="Offset").fill("99")
    settle(opened, "offset must be", ".live-status .live-problem")
    assert violations(opened) == []


@pytest.mark.parametrize("name", pages("light"))
def test_a_phone_scrolls_one_way_only(visit, context, name):
    opened = visit(name)
    opened.set_viewport_size(NARROW)
    skip = opened.get_by_role("button", name="Show me without a guess")
    if skip.count():
        assert opened.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        skip.click()
    for fold in opened.locator("summary").all():
        fold.click()
    assert opened.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    inside = "(node) => node.getBoundingClientRect().right <= innerWidth"
    for widget in opened.locator(".live-widget, .live-control, .live-answer, .live-figure svg").all():
        assert widget.evaluate(inside)


def test_the_picture_stays_in_sight_on_a_phone(opened):
    opened.set_viewport_size(NARROW)
    opened.get_by_role("button", name="Reset").scroll_into_view_if_needed()
    box = opened.locator(".live-figure svg").bounding_box()
    assert 0 <= box["y"] < NARROW["height"] / 2


def test_paper_shows_the_picture_and_nothing_to_press(visit):
    opened = visit("specimen-dark")
    opened.emulate_media(media="print")
    assert opened.locator(".live-figure svg").is_visible()  # the lock is for the screen
    assert opened.locator(".live-sentence").is_visible()
    for part in (".live-controls", ".live-foot", ".live-lock"):
        assert opened.locator(part).is_hidden()
    ink = "getComputedStyle(document.querySelector('.live-figure text')).fill"
    assert opened.evaluate(ink) == "rgb(34, 34, 34)"  # dark on white, whatever the screen had


def test_without_scripts_it_reads(context, site):
    plain = context.browser.new_context(java_script_enabled=False) if context.browser else None
    if plain is None:
        pytest.skip("this browser opens no second context")
    opened = plain.new_page()
    opened.goto(f"{site}/specimen-light.html")
    assert opened.locator(".live-figure svg").is_visible()
    assert opened.locator(".live-sentence").inner_text() == views.render("specimen")["sentence"]
    opened.goto(f"{site}/exercises-light.html")
    task = form.exercise("memory", "weights-70b")
    widget = opened.locator("#live-memory-weights-70b")
    assert widget.get_by_text(task["spec"]["title"]).is_visible()
    assert widget.locator("details").count() == len(task["spec"]["hints"]) + 1
    widget.get_by_text("Solution").click()
    assert widget.locator("details[open]").count() == 1
    plain.close()


def test_less_motion_means_no_play_button_and_no_turning(visit, page):
    page.emulate_media(reduced_motion="reduce")
    opened = visit("specimen-light")
    assert opened.get_by_role("button", name="Play").count() == 0
    assert opened.get_by_role("button", name="Step on: Time").count() == 1
    opened.get_by_role("slider", name="Bars").focus()
    spin = "getComputedStyle(document.querySelector('.live-python'), '::before').animationName"
    assert opened.evaluate(spin) == "none"
    opened.wait_for_function(READY)


def test_focus_can_be_seen(opened):
    seen = "getComputedStyle(document.activeElement).outlineStyle"
    opened.get_by_role("combobox", name="Colour").focus()
    for _ in range(3):
        opened.keyboard.press("Tab")
        assert opened.evaluate(f"{seen} === 'solid' || document.activeElement.type === 'range'")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_has_one_home(visit, theme):
    opened = visit(f"specimen-{theme}")
    seen = opened.evaluate("""(names) => {
      const probe = document.createElement("span");
      document.querySelector(".live-widget").append(probe);
      return names.map((name) => {
        probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color;
      });
    }""", list(svg.FALLBACK))  # fmt: skip
    light = ["rgb({}, {}, {})".format(*bytes.fromhex(code[1:])) for code in svg.FALLBACK.values()]
    assert len(set(seen)) == len(light)
    assert (seen == light) == (theme == "light")
