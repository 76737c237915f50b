"""The interface between a front end and the book's Python, the same in a notebook's kernel and in the page.

A front end sends a method and a dict; it gets a dict back. What goes wrong comes back as
{"error": "one line"}, never as a traceback.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
from collections.abc import Callable, Sequence
from traceback import walk_tb

from scaleout import views
from scaleout.draw.svg import WIDE
from scaleout.views import blocks

# Seconds that a reader's own code may run. Endless loops are the usual case, so: short enough to wait for.
LEARNER_SECONDS = 5
STOPPED = (
    f"Your code was stopped after {LEARNER_SECONDS} seconds: it did not end. "
    "Look for a loop whose condition never becomes false, or for a busy machine."
)
CELL_STOPPED = (
    f"Stopped after {LEARNER_SECONDS} seconds: this cell, or one above it, was still running. "
    "Look for a loop that does not end or does too much, or for a busy machine."
)
CELL_OUTPUT = 10_000  # characters that a cell of a page may print


def draw(
    stem: str,
    params: dict | None = None,
    width: int = WIDE,
    own: dict | None = None,
    advise: bool = True,
) -> dict:
    """{"svg", "sentence", "values", "law", "levers"} of a view, drawn for a width; `own` from `measured`."""
    return views.render(stem, params, width, own, advise)


def advice(stem: str, params: dict | None = None) -> dict:
    """{"advice"}: what ends the sentence of a view that was drawn without it."""
    return {"advice": views.advice(stem, params)}


def beneath(stem: str, params: dict | None = None, section: str = "") -> dict:
    """{"html"}: what a view tells beneath its sentence, one section of it; {"more": True} where a part of the work is
    done, and it is to be asked once more."""
    if views.prepare(stem, params, section):
        return {"more": True}
    return {"html": blocks.html(views.beneath(stem, params, section))}


def measured(stem: str, record: dict) -> dict:
    """What of a reader's Record a view puts beside its curves."""
    return views.measured(stem, record)


def check(stem: str, key: str, answer: object) -> dict:
    """{"ok", "message", "slip"} for an answer to an exercise."""
    from scaleout import exercises  # here: a page that only draws does not wait for them

    return exercises.check(stem, key, answer)


def run(stem: str, key: str, answer: object) -> dict:
    """What the code of a function exercise gives, for `judge` in an interpreter that did not run it."""
    from scaleout import exercises

    return exercises.run(stem, key, answer)


def judge(stem: str, key: str, outcome: object) -> dict:
    """{"ok", "message", "slip"} for what `run` gave."""
    from scaleout import exercises

    return exercises.judge(stem, key, outcome)


def execute(source: str, above: Sequence[str] = ()) -> dict:
    """Run a code cell of a page, after the cells `above` it, as a notebook does, in a namespace of their own.

    {"output": what it printed, then the value of its last expression, "error": one line or "", "cell": the number of
    the cell that the error is in: len(above) for this one}. What the cells above print is dropped.
    """
    from scaleout.exercises.engine.function import Printed

    space: dict = {"__name__": "__main__", "input": _no_input}
    for index, text in enumerate((*above, source)):
        printed = Printed(CELL_OUTPUT)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            error = _run_cell(text, f"<cell {index}>", space)
        if error:
            break
    output = printed.kept + "\n… and more" * printed.more if index == len(above) else ""
    return {"output": output, "error": error, "cell": index}


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("nobody can be asked here: write the value into the code")


def _run_cell(source: str, file: str, space: dict) -> str:
    """Run one cell; what went wrong in one line, or ""."""
    try:
        tree = ast.parse(source, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec", dont_inherit=True), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval", dont_inherit=True), space)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # whatever a reader's code raises has to become one line
        return one_line(error, file)
    return ""


METHODS: dict[str, Callable[..., dict]] = {
    "draw": draw, "advice": advice, "beneath": beneath, "measured": measured, "check": check, "run": run,
    "judge": judge, "execute": execute,
}  # fmt: skip


def call(method: str, args: dict) -> dict:
    """Run a method by name. Errors come back as {"error": one line}."""
    if method not in METHODS:
        return {"error": f"there is no method {method!r}: use {', '.join(METHODS)}"}
    try:
        return METHODS[method](**args)
    except (Exception, SystemExit) as error:  # whatever a reader's code or input raises: the page stays alive
        return {"error": one_line(error)}


def runs_learner_code(method: str, args: dict) -> bool:
    """Whether a call runs code that the reader wrote, and so needs a time limit."""
    from scaleout import exercises

    if method == "execute":
        return True
    try:
        if method == "check":
            return exercises.spec(args["stem"], args["key"])["kind"] == "function"
        return any(control["kind"] == "code" for control in views.spec(args["stem"])["controls"])
    except (KeyError, ValueError):
        return False  # no such view or exercise: `call` says so, and runs nothing


def call_json(method: str, args: str) -> str:
    """`call` with JSON text in and out: what crosses the border to JavaScript."""
    try:
        read = json.loads(args)
    except RecursionError:  # lists in lists without end, from a reader's code
        return json.dumps({"error": "That answer is nested too deeply to be read."})
    return json.dumps(call(method, read), allow_nan=False)


def answer(method: str, args: str) -> str:
    """`call_json` for a page, which calls `collect` once it has the answer: a garbage collection in the middle of it is
    what makes the slowest redraws slow."""
    if method == "draw":
        gc.disable()
    return call_json(method, args)


def collect() -> None:
    """Make up for the garbage collections that a drawing was spared, while the page shows it."""
    if not gc.isenabled():
        gc.enable()
        gc.collect(1)


def settle() -> None:
    """Keep what is loaded by now out of garbage collections: it stays, and to look through it takes longer than most
    redraws."""
    gc.freeze()


def one_line(error: BaseException, file: str | None = None) -> str:
    """An exception in one line for a reader: the line number where their own code, `file`, is to blame."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    from scaleout.exercises.engine.function import words

    if line := _learner_line(error, file):
        return f"line {line}: {words(error)}"
    plain = " ".join(str(error).split())
    return plain if isinstance(error, ValueError) and plain else words(error)


def _learner_line(error: BaseException, file: str | None) -> int | None:
    """The last line of the reader's own code that the exception went through."""
    from scaleout.exercises.engine.function import FILE

    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == (file or FILE)]
    return lines[-1] if lines else None
