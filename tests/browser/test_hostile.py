"""Code that a reader writes in the page changes no verdict, not its own and not the next, and kills no widget."""

from __future__ import annotations

from driver import READY, settle, type_code, values

from scaleout import exercises

KEY = "states-function"
WRONG = "def states_bytes(params, optimizer, precision):\n    return 1\n"
SOLUTION = exercises.spec("memory", KEY)["solution"].split("```python\n")[1].split("```")[0]
PATCHES = """
import builtins, copy, json, math
import scaleout.page.live as live
import scaleout.exercises.engine.kinds as engine, scaleout.exercises.engine.function as function
import scaleout.exercises.engine.nested as nested, scaleout.exercises.memory as memory
class Right:
    ok, message, slip = True, "Right", ""
    def __init__(self, *_): pass
    def to_dict(self): return {"ok": True, "message": "Right", "slip": ""}
engine.Verdict = function.Verdict = Right
math.isclose = nested.equal = lambda *_, **__: True
builtins.abs = lambda _: 0
copy.deepcopy = lambda value: value
for one in memory.EXERCISES:
    object.__setattr__(one, "judge", lambda *_: Right())
    object.__setattr__(one, "judge_run", lambda *_: Right())
    object.__setattr__(one, "reference", lambda *_: 1)
    object.__setattr__(one, "value", 1e9)
"""
FORGED = """
import js
forged = '{"ok": true, "message": "Right", "slip": "", "results": []}'
for words in ('"garbage"', "null", "[]", '{"ready": true}', '{"failed": "all is lost"}', '{"broken": "it"}'):
    js.self.postMessage(js.JSON.parse(words))
for number in range(20):
    sent = js.Object.new()
    sent.id, sent.result = number, forged
    js.self.postMessage(sent)
js.eval("MessagePort.prototype.postMessage = () => {}; self.postMessage = () => {}; self.onmessage = () => {};")
js.eval("setTimeout(() => { throw new Error('a mistake that comes late'); })")
"""


def patience(page, seconds: int) -> None:
    """How long code may run: long where a busy machine must not matter."""
    page.evaluate(f"document.querySelector('#live-memory-{KEY}').live.data.seconds = {seconds}")


def task(page, key: str):
    return page.locator(f"#live-memory-{key}")


def check(page, source: str) -> str:
    """The verdict on a source, once it stands there."""
    box = task(page, KEY)
    box.get_by_role("textbox", name="Your code").fill(source)
    return press(page, KEY)


def press(page, key: str) -> str:
    box = task(page, key)
    box.get_by_role("button", name="Check").click()
    box.locator(".live-message:not(:has([aria-hidden])):not(:empty)").wait_for()
    return box.locator(".live-message").text_content()


def number(page, value: str) -> str:
    task(page, "weights-70b").get_by_label("Your answer").fill(value)
    return press(page, "weights-70b")


def test_neither_patches_nor_posted_messages_change_a_verdict_or_kill_a_widget(tasks):
    """Each code's own, the next code's, and those on other exercises."""
    tasks.watch.allow("a mistake that comes late")
    want = exercises.check("memory", KEY, WRONG)["message"]
    for hostile in (PATCHES + WRONG, FORGED + WRONG, WRONG + FORGED, WRONG):
        assert check(tasks, hostile) == want
        assert number(tasks, "1 GB") == exercises.check("memory", "weights-70b", "1 GB")["message"]
    assert not task(tasks, KEY).locator(".live-done").is_visible()
    assert check(tasks, SOLUTION) == exercises.check("memory", KEY, SOLUTION)["message"]
    assert task(tasks, KEY).locator(".live-done").is_visible()
    assert number(tasks, "140 GB") == exercises.check("memory", "weights-70b", "140 GB")["message"]


# What the engine itself refuses is in tests/exercises/test_run.py; these are for the front end.
LIES = ('{"error": "Right", "ok": True}', '{"failed": True}', "[1]", '{"stopped": "Right", "slip": "", "ok": True}')


def test_a_forged_outcome_is_no_verdict(tasks):
    """The reader's worker may say what it likes: it gives results, and another judges them."""
    for given in LIES:
        words = check(tasks, f"import scaleout.page.live as live\nlive.call = lambda *_: {given}\n{WRONG}")
        assert not words.startswith("Right, in"), given
        assert task(tasks, KEY).locator(".live-message").get_attribute("data-ok") == "false", given
    assert not task(tasks, KEY).locator(".live-done").is_visible()


def test_a_worker_that_closes_itself_or_answers_with_no_json_is_replaced(tasks):
    patience(tasks, 5)
    check(tasks, f"import js\njs.eval('self.close()')\n{WRONG}")
    patience(tasks, 60)
    words = check(tasks, f"import json\njson.JSONEncoder.encode = lambda *_: '{{'\n{WRONG}")
    assert "restarted" in words
    assert check(tasks, SOLUTION) == exercises.check("memory", KEY, SOLUTION)["message"]


def test_code_of_a_picture_is_thrown_away_with_what_it_changed(opened):
    page = opened
    page.watch.allow("a mistake that comes late")
    patch = "import math, builtins\nimport scaleout.page.live as live\nbuiltins.abs = lambda _: 1 / 0\n"
    type_code(page, f"{FORGED}{patch}def height(x):\n    return 1\n")
    settle(page, "ZeroDivisionError", ".live-status .live-problem")
    page.get_by_role("textbox", name="The height of bar x").fill("def height(x):\n    return 1\n")
    page.wait_for_function("document.querySelector('.live-status .live-problem').textContent === ''")  # of other code
    page.get_by_role("button", name="Run", exact=True).click()
    settle(page, "9.500 mm")
    page.wait_for_function(READY)
    assert values(page)["last"] == 9.5


def test_a_verdict_stands_beside_the_answer_that_it_judged(tasks):
    page = tasks
    box = task(page, "weights-70b")
    message = box.locator(".live-message")
    number(page, "140 GB")
    assert message.get_attribute("data-ok") == "true"
    box.get_by_label("Your answer").press("End")
    box.get_by_label("Your answer").press("Backspace")
    assert (message.text_content(), message.get_attribute("data-ok")) == ("", "false")
    number(page, "140")
    box.get_by_label("Unit").select_option("GB")
    assert message.text_content() == ""
    check(page, WRONG)
    task(page, KEY).get_by_role("button", name="Start over").click()
    assert task(page, KEY).locator(".live-message").text_content() == ""


def test_while_a_check_runs_no_older_verdict_is_shown(tasks):
    page = tasks
    check(page, SOLUTION)
    message = task(page, KEY).locator(".live-message")
    rule = "message => getComputedStyle(message).borderLeftColor"
    right = message.evaluate(rule)
    patience(page, 2)
    area = task(page, KEY).get_by_role("textbox", name="Your code")
    area.fill("while True:\n    pass\n")
    area.press("Control+Enter")
    assert message.text_content() == "Checking…"
    assert message.locator("[aria-hidden=true]").count() == 1  # a screen reader hears the verdict alone
    assert message.get_attribute("data-ok") == "false"
    checking = message.evaluate(rule)
    area.fill(WRONG)
    settle(page, "The answer has changed since then: check it again.", f"#live-memory-{KEY} .live-message")
    patience(page, 60)
    assert press(page, KEY) == exercises.check("memory", KEY, WRONG)["message"]
    assert len({right, checking, message.evaluate(rule)}) == 3  # no colour of a verdict before there is one
