"""The chapter's exercises in the page: an answer of each kind, hints, the solution, what is remembered."""

from __future__ import annotations

from driver import settle

from scaleout import exercises
from scaleout.page import live


def task(page, key: str):
    """The widget of one exercise."""
    return page.locator(f"#live-memory-{key}")


def told(page, key: str, words: str) -> str:
    """Wait for the verdict that begins with these words, and give it."""
    settle(page, words, f"#live-memory-{key} .live-message")
    return task(page, key).locator(".live-message").text_content()


def test_a_number_is_judged_as_in_the_kernel(tasks):
    page = tasks
    box = task(page, "weights-70b")
    message = box.locator(".live-message")
    assert message.get_attribute("role") == "status"
    for value, unit in [("140", "GiB"), ("140", "GB"), ("seven", "GB"), ("", "GB")]:
        box.get_by_label("Your answer").fill(value)
        box.get_by_label("Unit").select_option(unit)
        box.get_by_role("button", name="Check").click()
        want = exercises.check("memory", "weights-70b", {"value": value, "unit": unit})
        assert told(page, "weights-70b", want["message"]) == want["message"]
        assert message.get_attribute("data-ok") == str(want["ok"]).lower()
    assert box.locator(".live-done").is_visible()  # the right answer was among them
    box.get_by_label("Unit").select_option("")
    box.get_by_label("Your answer").fill("140 GB")
    box.get_by_label("Your answer").press("Enter")
    told(page, "weights-70b", exercises.check("memory", "weights-70b", {"value": "140 GB", "unit": ""})["message"])
    assert page.context.cookies() == []


def test_each_choice_has_its_own_explanation(tasks):
    page = tasks
    key = next(one.key for one in exercises.catalogue("memory") if one.kind == "choice")
    box = task(page, key)
    box.get_by_role("button", name="Check").click()
    told(page, key, "Choose one of the answers first.")
    said = set()
    for name, label in exercises.spec("memory", key)["options"]:
        box.get_by_role("radio", name=label).check()
        box.get_by_role("button", name="Check").click()
        said.add(told(page, key, exercises.check("memory", key, name)["message"]))
    assert len(said) == len(exercises.spec("memory", key)["options"])


def test_code_runs_in_the_page(tasks):
    page = tasks
    key = "states-function"
    box = task(page, key)
    area = box.get_by_role("textbox", name="Your code")
    stub = exercises.spec("memory", key)["stub"]
    assert area.input_value() == stub
    assert box.locator(".live-long").inner_text() == "5 minutes"
    assert task(page, "weights-70b").locator(".live-long").inner_text() == "1 minute"
    area.fill("import numpy as np")
    area.press("Control+Enter")
    told(page, key, "Line 1: There is no numpy here: the page has Python's standard library only.")
    solution = exercises.spec("memory", key)["solution"].split("```python\n")[1].split("```")[0]
    for text in ("", stub, "def states_bytes(params, optimizer, precision)\n    return 1\n", solution):
        area.fill(text)
        area.press("Control+Enter")
        want = exercises.check("memory", key, text)
        assert told(page, key, want["message"]) == want["message"]
    assert want["ok"]
    page.evaluate(f"document.querySelector('#live-memory-{key}').live.data.seconds = 2")
    area.fill("while True:\n    pass\n")
    box.get_by_role("button", name="Check").click()
    told(page, key, live.STOPPED)
    page.anew(forget=False)
    assert area.input_value() == "while True:\n    pass\n"  # the draft is kept, in this browser only
    assert box.locator(".live-done").is_visible()
    box.get_by_role("button", name="Start over").click()
    assert area.input_value() == stub


def test_hints_come_one_at_a_time_and_the_solution_is_folded(tasks):
    page = tasks
    hints = exercises.spec("memory", "states-function")["hints"]
    box = task(page, "states-function")
    for count in range(1, len(hints) + 1):
        assert box.locator(".live-hint").count() == count - 1
        box.get_by_role("button", name="int").click()
    assert box.locator(".live-hint").count() == len(hints)
    assert box.get_by_role("button", name="int").count() == 0
    fold = box.locator("details")
    assert fold.get_attribute("open") is None
    box.locator("summary").press("Enter")
    assert fold.get_attribute("open") is not None


def test_what_needs_torch_is_shown_with_its_command(tasks):
    page = tasks
    key = next(one.key for one in exercises.catalogue("memory") if one.kind == "torch")
    box = task(page, key)
    assert box.get_by_role("button", name="Check").count() == 0
    assert exercises.spec("memory", key)["command"] in box.inner_text()
