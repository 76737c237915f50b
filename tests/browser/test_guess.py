"""The prediction lock: the picture does not hold the answer before a guess is committed or skipped on purpose."""

from __future__ import annotations

import pytest
from driver import SKIP, live, params, rests, settle, values, wake

from scaleout import views

VERDICT = """async ([guess, question]) => {
  const { verdict } = await import(new URL("_static/live/guess.js", location.href));
  return verdict(guess, question);
}"""


def box(page):
    return page.get_by_role("textbox", name="Your guess in mm")


def place(page) -> str | None:
    """Where the mark of the wide picture stands; None while it is not shown."""
    mark = page.locator(".live-wide .live-mark")
    return None if mark.get_attribute("visibility") == "hidden" else mark.get_attribute("transform")


def commit(page, guess: str) -> str:
    box(page).fill(guess)
    box(page).press("Enter")
    return page.locator(".live-verdict").inner_text().removesuffix("↺").strip()


def test_the_locked_picture_has_no_answer_and_the_controls_wait(locked):
    assert locked.get_by_role("img", name="an empty picture").is_visible()
    assert locked.locator("[data-mark^=bar]").count() == 0
    assert locked.locator(".live-sentence").text_content() == locked.locator(".live-law").text_content() == ""
    assert values(locked) == {}
    assert locked.locator("[role=status].live-announce").text_content() == ""
    assert locked.get_by_role("slider", name="Bars").is_disabled()
    assert not locked.locator(".live-play input, .live-play .live-value").filter(visible=True).count(), "how many steps"
    answer = views.question("specimen")["answer"]
    assert str(answer) == "3.5" and ">3.5" not in locked.content() and ":3.5" not in locked.content()


def test_a_guess_is_typed_stepped_or_dragged(locked):
    assert place(locked) == "translate(0 200)"  # the lower end, and no hint
    box(locked).fill("3")
    assert place(locked) == "translate(0 110)"
    for key, value, at in [("ArrowUp", "3.1", 107), ("PageDown", "2.1", 137), ("ArrowDown", "2", 140)]:
        box(locked).press(key)
        assert (box(locked).input_value(), place(locked)) == (value, f"translate(0 {at})")
    knob = locked.locator(".live-wide .live-knob").bounding_box()
    x, y = knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2
    locked.mouse.move(x, y)
    locked.mouse.down()
    locked.mouse.move(x + 40, y - 60, steps=3)  # two thirds of the way up
    locked.mouse.up()
    assert (box(locked).input_value(), place(locked)) == ("4", "translate(0 80)")
    assert locked.locator(".live-wide .live-mark text").text_content() == "your guess: 4 mm"
    locked.keyboard.press("ArrowUp")  # goes on from where the hand let go
    assert (box(locked).input_value(), place(locked)) == ("4.1", "translate(0 77.00000000000001)")


def test_words_of_a_mark_leave_other_words_alone(locked):
    words = locked.locator(".live-wide .live-mark text")
    other = locked.locator(".live-wide svg > text")
    for guess, at, height in [("3", 50, "-6"), ("3", 107, "16"), ("3", 120, "-6"), ("9", 17, "-26"), ("9", 50, "-6")]:
        other.evaluate("(one, y) => { one.setAttribute('x', 520); one.setAttribute('y', y); }", at)
        box(locked).fill(guess)  # 3 lies at 110, and what is beyond the axis at 20
        assert words.get_attribute("y") == height, (guess, at)


def test_the_verdict_comes_at_once_and_the_guess_stays_as_a_ghost(locked):
    asked = locked.evaluate("() => document.querySelector('.live-widget').live.runtime.count")
    assert commit(locked, "7") == "you: 7 mm it is 3.50 mm: yours is 100% too high, one for each day of the week."
    assert locked.evaluate("document.activeElement.className") == "live-verdict"
    want = views.render("specimen")
    assert values(locked) == want["values"]
    assert locked.locator(".live-sentence").text_content() == want["sentence"].replace("**", "")
    assert locked.locator(".live-law").inner_text().split("\n\n") == want["law"]
    assert locked.locator(".live-wide [data-mark^=bar]").count() == 6
    assert place(locked) == "translate(0 20)"  # the end of the scale
    assert locked.locator(".live-wide .live-mark text").text_content() == "your guess: 7 mm, beyond this axis"
    assert locked.get_by_role("slider", name="Bars").is_enabled()
    assert locked.evaluate("() => document.querySelector('.live-widget').live.runtime.count") == asked, "without Python"


@pytest.mark.parametrize(
    ("guess", "answer", "words"),
    [
        (4, 4.0, "it is **4 GB**: yours is right."),
        (4.05, 4.0, "it is **4 GB**: yours is right."),
        (3.7, 4.0, "it is **4 GB**: close: 7% too low."),
        (2.96, 4.0, "it is **4 GB**: yours is 26% too low."),
        (2, 4.0, "it is **4 GB**: yours is 50% too low, one lap of two."),
        (8, 4.0, "it is **4 GB**: yours is 100% too high."),
        (30, 4.0, "it is **4 GB**: yours is 7.5 times too high."),
        (4000, 4.0, "it is **4 GB**: yours is 1,000 times too high."),
        (0, 4.0, "it is **4 GB**: yours is far too low, under 1% of it."),
        (0, 0, "it is **4 GB**: yours is right."),
        (3, 0, "it is **4 GB**: yours is too high."),
    ],
)
def test_what_is_said_of_a_guess(locked, guess, answer, words):
    question = {"answer": answer, "words": "4 GB", "slips": [[2, "one lap of two"]]}
    assert locked.evaluate(VERDICT, [guess, question]) == words


@pytest.mark.parametrize(
    ("guess", "answer", "unit", "words"),
    [
        (80, 22, "%", "yours is 58 points too high."),
        (22.4, 22, "%", "yours is right."),
        (25, 22, "%", "close: 3 points too high."),
        (0, 22, "%", "yours is 22 points too low."),
        (1, 2, "%", "close: 1 point too low."),
        (99, 98, "%", "yours is right."),
        (6, 4, "", "yours is two too many."),
        (3, 4, "", "yours is one too few."),
        (4.2, 4, "", "close: 5% too high."),
        (40, 4, "", "yours is 10 times too high."),
        (100, 150, "", "yours is 33% too low."),
        (2, 2.5, "", "yours is 20% too low."),
        (5, 5, "rank", "yours is right."),
        (3, 5, "rank", "not the rank that you named."),
    ],
)
def test_a_share_is_off_by_points_and_a_count_by_so_many(locked, guess, answer, unit, words):
    question = {"answer": answer, "words": "so", "slips": [], "unit": unit}
    assert locked.evaluate(VERDICT, [guess, question]) == f"it is **so**: {words}"


def test_a_guess_has_to_be_a_number(locked):
    for typed in ("", "-1", "four", "1e300"):
        box(locked).fill(typed)
        locked.get_by_role("button", name="Commit").click()
        assert "Type a number, such as one from 0 to" in locked.locator(".live-lock [role=alert]").text_content()
        assert values(locked) == {}


@pytest.mark.parametrize(("typed", "read"), [("1,75", "1.75"), ("1,000", "1,000"), (" .5 ", "0.5"), ("2e1", "20")])
def test_a_guess_is_read_as_people_write_it(locked, typed, read):
    box(locked).fill(typed)
    locked.get_by_role("button", name="Commit").click()
    assert locked.locator(".live-yours").text_content() == f"you: {read} mm"


def test_what_was_asked_before_the_lock_closed_again_is_not_shown_after(locked):
    box(locked).fill("4")
    locked.get_by_role("button", name="Commit").click()
    stood = locked.evaluate("""async () => {
      const view = document.querySelector(".live-widget").live;
      const moved = view.change(view.data.spec.controls.find(({name}) => name === "count"), 9);
      view.guess.lock(true);
      view.guess.open(4);
      await moved;
      return [view.params.count, view.values];
    }""")
    assert stood == [6, views.render("specimen")["values"]]


def test_skipping_on_purpose_shows_the_result_without_a_verdict(locked):
    locked.get_by_role("button", name=SKIP).click()
    assert values(locked) == views.render("specimen")["values"]
    assert locked.locator(".live-yours").count() == 0 and place(locked) is None


def test_a_guess_is_remembered_until_the_reader_guesses_again(locked):
    said = commit(locked, "3")
    locked.anew(forget=False)
    assert locked.locator(".live-verdict").inner_text().startswith(said)
    assert place(locked) == "translate(0 110)"
    locked.get_by_role("slider", name="Bars").press("End")
    settle(locked, "12 bars")
    assert place(locked) is None  # nobody asked about these
    locked.get_by_role("button", name="Reset").click()
    settle(locked, "6 bars")
    assert place(locked) == "translate(0 110)"
    locked.get_by_role("slider", name="Time").press("ArrowRight")
    locked.wait_for_function("document.querySelector('.live-widget').live.values.heights[0] > 1.5")
    assert place(locked) == "translate(0 110)"  # over the whole time of what was asked
    locked.get_by_role("button", name="Guess again").click()
    assert values(locked) == {} and locked.get_by_role("slider", name="Bars").input_value() == "6"
    assert box(locked).input_value() == "" and locked.evaluate("document.activeElement.type") == "text"
    assert commit(locked, "3") == said


def test_after_commit_and_reset_the_widget_stands_where_its_text_begins(shared):
    """Chapter 09 asks, and sets its tasks, with nothing dropped."""
    page = shared("guesses")
    page.get_by_role("textbox", name="Your guess in %").fill("30")
    page.get_by_role("textbox", name="Your guess in %").press("Enter")
    settle(page, "nothing is freed")
    assert params(page)["dropped"] == 0 and values(page)["freed_gb"] == 0
    wake(page, "recompute")
    page.get_by_role("slider", name="Activations freed").press("End")
    settle(page, "recomputing 100% frees")
    page.get_by_role("button", name="Reset").click()
    settle(page, "nothing is freed")
    assert params(page) == views.defaults("recompute")


def test_the_tank_follows_the_fullest_moment(shared):
    """The moment that the sentence is of, whatever control moves it, until the reader plays the step."""
    page = shared("views")
    box = wake(page, "memory")
    for batch, moment, words in ((1, "optimizer", "at the update"), (8, "loss", "at the loss")):
        page.evaluate(
            f"([v]) => {{ const one = {live('memory')}; "
            "return one.change(one.data.spec.controls.find((c) => c.name === 'batch'), v); }",
            [batch],
        )
        rests(page, "memory", ("moment", "moment_gb", "peak_gb"), {"batch": batch})
        assert page.evaluate(f"{live('memory')}.values.moment") == moment
        said = box.locator(".live-sentence").inner_text()
        title = next(line for line in box.locator(".live-wide text").all_text_contents() if ": " in line)
        assert f"{title.partition(': ')[2]} {words}" in said
