"""Exercises that ask for a function in pure Python: the reader's code runs against cases.

`run` runs it and gives plain results; `judge_run` judges such results and runs nothing. Front ends do the two in
different interpreters, so that code which changes this package, or Python itself, changes no verdict: the page in
two workers, the kernel in a process of its own for each run (`apart`). There too an endless loop is ended, which cannot
be done from in here.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import numbers
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from scaleout.exercises.engine import nested
from scaleout.exercises.engine.kinds import INPUT, Exercise, Verdict

FILE = "<your code>"
LONGEST = 20_000  # characters of source; the longest solution in the book has a few hundred
_WIDEST = 100_000  # a result of more characters as JSON is wrong
_UNREAD = "What your code gave cannot be read. Return plain numbers, and leave Python itself as it is."
_TOO_LONG = Verdict(
    False,
    f"Your function gave a list of more than {nested.LONGEST:,} numbers, which was read no "
    "further: give as many as are asked for.",
    "too-long",
)
_LINE = 1000  # characters of what the reader's interpreter says
_SHOWN = 160  # characters of a value or of printed text that are repeated back


@dataclass(frozen=True)
class Mistake:
    """A misconception, as the function it leads to."""

    name: str
    wrong: Callable[..., float | list]
    message: str


@dataclass(frozen=True, kw_only=True)
class Function(Exercise):
    """`reference` gives what is expected for each of `cases`, which are tuples of arguments.

    One number, or with `lists` a list: of numbers, or of lists of them. With `index` the number is one of a row's, such
    as that of a chunk: how many times too large it is says nothing.
    """

    kind: ClassVar[str] = "function"
    function: str
    stub: str
    reference: Callable[..., float | list]
    cases: tuple[tuple, ...]
    lists: bool = False
    index: bool = False
    mistakes: tuple[Mistake, ...] = ()
    right: str

    def spec(self) -> dict:
        return {**super().spec(), "stub": self.stub, "function": self.function}

    def judge(self, answer: object) -> Verdict:
        """Run and judge in this interpreter, which the reader's code can change: for code that is trusted."""
        return self.judge_run(json.loads(json.dumps(self.run(answer))))

    def run(self, answer: object) -> dict:
        """What the reader's code gives, as JSON can carry it: {"results": a number, a list or words for each case}, or
        {"stopped": message, "slip"} and the results of the cases before; both with "printed"."""
        if not isinstance(answer, str) or not answer.strip():
            return _failed(Verdict(False, f"There is no code yet: write the function {self.function}.", INPUT))
        if len(answer) > LONGEST:
            return _failed(
                Verdict(False, f"That is {len(answer):,} characters of code: a few lines are enough.", INPUT)
            )
        printed = Printed(_SHOWN)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            outcome = self._run(answer)
        return {**outcome, "printed": printed.words()}

    def _run(self, source: str) -> dict:
        space: dict = {"__name__": "exercise"}
        failed = _guarded(lambda: exec(_compiled(source), space))[1]
        if failed:
            return _failed(failed)
        function = space.get(self.function)
        if not callable(function):
            return _failed(
                Verdict(
                    False,
                    f"There is no function {self.function} in your code: keep the line that "
                    f"starts with def {self.function}.",
                    "no-function",
                )
            )
        results: list[object] = []
        for case in self.cases:
            result, failed = _guarded(partial(self._called, function, case))
            verdict = result if isinstance(result, Verdict) else failed
            if verdict:
                shown = Verdict(False, f"{verdict.message} (for {self._call(case)})", verdict.slip)
                return {**_failed(shown), "results": results}
            results.append(result)
        return {"results": results}

    def _called(self, function: Callable, case: tuple) -> object:
        return self._result(function(*copy.deepcopy(case)))

    def _result(self, result: object) -> object:
        """A result as JSON can carry it, words for one of huge numbers, or a verdict on what is none."""
        if self.lists or isinstance(result, Decimal):
            try:
                result = nested.plain(result)
            except nested.TooLong:
                return _TOO_LONG
        fault = _nothing(result) or (_not_a_list if self.lists else _not_a_number)(result)
        if fault:
            return fault
        carried = nested.carried(result)
        return carried if len(json.dumps(carried)) <= _WIDEST else _words(result)

    def judge_run(self, outcome: object) -> Verdict:
        """Judge what `run` gave in another interpreter. Of that nothing is taken on trust but the numbers."""
        if not isinstance(outcome, dict):
            return Verdict(False, _UNREAD, "crash")
        printed = _line_of(outcome.get("printed"))
        results = outcome.get("results")
        if isinstance(results, list) and (len(results) > len(self.cases) or any(map(nested.too_long, results))):
            results = None
        if "stopped" in outcome:
            reason, slip = _line_of(outcome["stopped"]), _line_of(outcome.get("slip")) or "crash"
            mistake = self._overflown(results) if "OverflowError" in reason else None
            message, slip = (f"{mistake.message} {reason}", mistake.name) if mistake else (reason, slip)
            return Verdict(False, message + printed, slip)
        if not isinstance(results, list) or len(results) != len(self.cases):
            return Verdict(False, _UNREAD, "crash")
        results = [nested.read(result) for result in results]
        # a subclass that compares in a way of its own is given what `run` promises
        verdict = self._compare(results) if all(map(self._fit, results)) else Function._compare(self, results)
        return Verdict(verdict.ok, verdict.message + printed, verdict.slip)

    def _fit(self, result: object) -> bool:
        return not (nested.unfit(result) if self.lists else _not_a_number(result))

    def _compare(self, results: list) -> Verdict:
        expected = [self.reference(*case) for case in self.cases]
        bad = [index for index, pair in enumerate(zip(results, expected, strict=True)) if not nested.equal(*pair)]
        if not bad:
            return Verdict(True, f"Right, in all {len(self.cases)} cases. {self.right}")
        first = bad[0]
        returned = results[first] if isinstance(results[first], str) else _words(results[first])
        shown = f"{self._call(self.cases[first])} gave {returned}, expected {_words(expected[first])}."
        mistake = self._mistake(results)
        if mistake:
            return Verdict(False, f"{mistake.message} {shown}", mistake.name)
        factor = "" if self.index else _factor(results[first], expected[first])
        if all(nested.reordered(results[index], expected[index]) for index in bad):
            factor = " The numbers are right, their order is not."
        count = f"{len(bad)} of {len(self.cases)} cases {'differs' if len(bad) == 1 else 'differ'}."
        return Verdict(False, f"{shown}{factor} {count}", "wrong-result")

    def _mistake(self, results: list) -> Mistake | None:
        """The one misconception that gives what the reader's code gave, in every case: of two that do, neither is
        sure, and where only some cases agree it is by chance."""
        matches = [mistake for mistake in self.mistakes if nested.equal(results, self._results_of(mistake))]
        return matches[0] if len(matches) == 1 else None

    def _overflown(self, results: object) -> Mistake | None:
        """The same of code that overflowed where the mistake is infinite, and before that gave what the mistake gives,
        in three cases and more another result than the solution."""
        if not isinstance(results, list) or len(results) >= len(self.cases):
            return None
        returned = [*map(nested.read, results), math.inf]
        pairs = zip(returned, self.cases, strict=False)
        differing = sum(not nested.equal(result, self.reference(*case)) for result, case in pairs)
        matches = [
            mistake for mistake in self.mistakes if nested.equal(returned, self._results_of(mistake)[: len(returned)])
        ]
        return matches[0] if len(matches) == 1 and differing > 3 else None

    def _results_of(self, mistake: Mistake) -> list:
        return [mistake.wrong(*case) for case in self.cases]

    def _call(self, case: tuple) -> str:
        return f"{self.function}({', '.join(_words(argument) for argument in case)})"


class Printed(io.TextIOBase):
    """What the reader's code printed: `longest` characters of it, however much there was."""

    def __init__(self, longest: int) -> None:
        self.longest, self.kept, self.more = longest, "", False

    def write(self, text: str) -> int:
        room = self.longest - len(self.kept)
        self.kept += text[:room]
        self.more = self.more or len(text) > room
        return len(text)

    def words(self) -> str:
        text = " ".join(self.kept.split())
        return f" Your code printed: {text}{' …' if self.more else ''}" if text else ""


def _failed(verdict: Verdict) -> dict:
    return {"stopped": verdict.message, "slip": verdict.slip}


def _line_of(words: object) -> str:
    """Words that came from the reader's interpreter, as one line of bounded length."""
    return re.sub(r"\s+", " ", words[:_LINE].encode(errors="replace").decode()) if isinstance(words, str) else ""


def _compiled(source: str):
    """The code object. A null byte is a ValueError before Python 3.11.4, and bad syntax since."""
    try:
        return compile(source, FILE, "exec")
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def _guarded(action: Callable[[], object]) -> tuple[object, Verdict | None]:
    """The result of the reader's code, or a verdict on how it stopped."""
    try:
        return action(), None
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        return None, Verdict(
            False,
            f"Line {error.lineno or 1}: {error.msg.rstrip('?.')}. Python could not read it, so nothing ran.",
            "syntax",
        )
    except MemoryError as error:
        return None, Verdict(
            False,
            f"{_line(error)}Your code asked for more memory than it can have here. "
            f"The formula "
            "needs a few numbers, not arrays.",
            "memory",
        )
    except RecursionError as error:
        return None, Verdict(False, f"{_line(error)}The function calls itself without end.", "recursion")
    except SystemExit as error:
        return None, Verdict(False, f"{_line(error)}Your code ended the program. Return the value instead.", "exit")
    except BaseException as error:  # whatever a reader's code raises has to become one line
        return None, Verdict(False, f"{_line(error)}{words(error)[:_SHOWN]}", "exception")


def words(error: BaseException) -> str:
    """The name and the words of an exception of the reader's code, in one line."""
    name = getattr(error, "name", None)
    if isinstance(error, ModuleNotFoundError) and sys.platform == "emscripten" and name not in sys.stdlib_module_names:
        return f"There is no {name} here: the page has Python's standard library only. Write the sums yourself."
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def _line(error: BaseException) -> str:
    """Where in the reader's own code it happened."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    return f"Line {lines[-1]}: " if lines else ""


def _nothing(result: object) -> Verdict | None:
    if result is None:
        return Verdict(False, "Your function gave None: end it with return and the value.", "no-return")
    if result is Ellipsis:
        return Verdict(False, "The ... of the starting code is still there: put your formula in its place.", "stub")
    return None


def _not_a_list(result: object) -> Verdict | None:
    words = nested.unfit(result)
    return Verdict(False, f"Your function gave {_words(result)}, {words}.", "not-a-list") if words else None


def _not_a_number(result: object) -> Verdict | None:
    if isinstance(result, bool) or not isinstance(result, numbers.Real):
        return Verdict(
            False,
            f"Your function gave {_words(result)}, of type {type(result).__name__}: it should give one number.",
            "not-a-number",
        )
    if result != result:  # NaN, also of a type that is no Python float
        return Verdict(False, "Your function gave NaN, which is no number.", "not-a-number")
    return None


def _factor(result: Any, expected: Any) -> str:
    try:
        ratio = float(result) / float(expected)
    except (OverflowError, ZeroDivisionError, TypeError, ValueError):  # a list, or words for one
        return ""
    if ratio <= 0 or 0.99 < ratio < 1.01:
        return ""
    return f" That is {float(f'{max(ratio, 1 / ratio):.3g}'):,.10g} times too {'large' if ratio > 1 else 'small'}."


def _words(value: Any) -> str:
    """A value as the reader would write it, cut short."""
    try:
        whole_number = (
            isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        )  # a page's JSON has 6400 for it
        if whole_number or (isinstance(value, numbers.Integral) and not isinstance(value, bool)):
            text = format(int(value), "_")
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            text = format(float(value), ".10g")
        else:
            text = repr(nested.written(nested.begins(value, _SHOWN)))
    except Exception:  # an int of more digits than Python prints, or a reader's class that cannot be shown
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
