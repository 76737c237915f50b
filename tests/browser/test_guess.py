"""The prediction lock: nothing of the result shows before a guess is committed or skipped on purpose."""

from __future__ import annotations

from driver import SKIP, settle

from scaleout import views


def hidden(page) -> list[bool]:
    return [page.locator(part).is_hidden() for part in (".live-figure", ".live-sentence")]


def test_the_result_is_locked_for_eyes_and_for_screen_readers(locked):
    page = locked
    assert hidden(page) == [True, True]
    assert page.get_by_role("img").count() == 0
    assert page.locator("[role=status].live-announce").text_content() == ""
    page.get_by_role("slider", name="Bars").press("ArrowRight")
    page.wait_for_function("document.querySelector('.live-sentence').textContent.startsWith('7 bars')")
    page.wait_for_timeout(900)  # longer than the announcement waits
    assert hidden(page) == [True, True]
    assert page.locator("[role=status].live-announce").text_content() == ""


def test_a_committed_guess_shows_the_ratio(locked):
    page = locked
    box = page.get_by_role("spinbutton", name="How tall is the last bar? in mm")
    box.fill("7")
    box.press("Enter")
    assert hidden(page) == [False, False]  # at once, whether Python runs yet or not
    settle(page, "it is", ".live-guessed")
    want = views.render("specimen", {"guess": 7})["guess"]
    assert want["ratio"] == 2.0
    assert page.locator(".live-guessed").text_content() == want["sentence"]
    assert page.evaluate("document.activeElement.className") == "live-guessed"


def test_a_guess_has_to_be_a_number(locked):
    page = locked
    for typed in ("", "-1"):
        page.get_by_role("spinbutton", name="How tall").fill(typed)
        page.get_by_role("button", name="Commit").click()
        assert "0 or more" in page.locator(".live-lock [role=alert]").text_content()
        assert hidden(page) == [True, True]


def test_skipping_on_purpose_shows_the_result_without_a_ratio(locked):
    page = locked
    page.get_by_role("button", name=SKIP).click()
    assert hidden(page) == [False, False]
    assert page.locator(".live-guessed").is_hidden()


def test_a_guess_is_remembered_until_the_reader_guesses_again(locked):
    page = locked
    page.get_by_role("spinbutton", name="How tall").fill("3")
    page.get_by_role("button", name="Commit").click()
    settle(page, "it is", ".live-guessed")
    words = page.locator(".live-guessed").text_content()
    page.anew(forget=False)
    assert hidden(page) == [False, False]
    assert page.locator(".live-guessed").text_content() == words
    page.get_by_role("slider", name="Bars").press("End")
    page.get_by_role("button", name="Guess again").click()
    assert hidden(page) == [True, True]
    page.get_by_role("spinbutton", name="How tall").fill("3")
    page.keyboard.press("Enter")
    settle(page, "it is", ".live-guessed")
    want = views.render("specimen", {"count": 12, "guess": 3})["guess"]["sentence"]
    assert page.locator(".live-guessed").text_content() == want
