"""Exercises of the book, by chapter: `catalogue`, `spec` and `check`.

The exercises of a chapter are the tuple EXERCISES of its folder, `STEM`. `spec` gives what a reader sees of one, and
`check` judges an answer, with the same code in the page and in a kernel. `engine` has the kinds of questions and the
judging. Checkers that need real processes are in `STEM/ranks.py`, or in the folder `STEM/ranks` if there are several,
and their shared code in `ranks`: the only files here that import torch. `capstone.exit_check` checks a reader's own
Records at the end.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from scaleout.exercises.engine import Exercise, Function

SHARED = {"engine", "ranks"}  # folders that no chapter is called by


def stems() -> tuple[str, ...]:
    """The chapters that have exercises, by name: each is a folder here."""
    return tuple(sorted(room.name for room in pkgutil.iter_modules(__path__) if room.ispkg and room.name not in SHARED))


def catalogue(stem: str) -> tuple[Exercise, ...]:
    """The exercises of a chapter, easy to hard. ValueError lists the chapters for an unknown stem."""
    if stem not in stems():
        raise ValueError(f"there are no exercises for {stem!r}: use {' or '.join(stems())}")
    return import_module(f"scaleout.exercises.{stem}").EXERCISES


def exercise(stem: str, key: str) -> Exercise:
    """One exercise. Raises ValueError that lists the chapter's exercises for an unknown key."""
    exercises = {exercise.key: exercise for exercise in catalogue(stem)}
    if key not in exercises:
        raise ValueError(f"{stem} has no exercise {key!r}: use {', '.join(exercises)}")
    return exercises[key]


def spec(stem: str, key: str) -> dict:
    """What a front end shows of an exercise, as JSON can carry it.

    Always {"key", "title", "kind", "level", "minutes", "short",
    "prompt", "hints", "solution"}, texts in the Markdown of
    `scaleout.page.form`. By kind: number {"units", "unit"}, choice {"options": [[name, label], ...]}, function
    {"stub", "function"}, torch {"stub", "command"}.
    """
    return exercise(stem, key).spec()


def check(stem: str, key: str, answer: object, seconds: float = 5) -> dict:
    """Judge an answer: {"ok", "message", "slip"}. `slip` names the misconception, "" when there is none.

    A number is {"value": "12.5", "unit": "GB"} or "12.5 GB"; a choice is the option's name; a function is its
    source text. That runs in a process of its own, which has ended after `seconds`: a notebook is not held up by a loop
    without end. Front ends use `run` and `judge` for it; where there are no processes, as in a page, it runs here.
    """
    question = exercise(stem, key)
    if not isinstance(question, Function) or not isinstance(answer, str):
        return question.judge(answer).to_dict()
    from scaleout.exercises.engine import apart  # here: the page has no use for it

    if not apart.POSSIBLE:
        return question.judge(answer).to_dict()
    try:
        outcome = apart.call(f"{__name__}:run", {"stem": stem, "key": key, "answer": answer}, seconds)
    except apart.Ended as end:
        outcome = {"stopped": end.message, "slip": end.slip}
    return question.judge_run(outcome).to_dict()


def run(stem: str, key: str, answer: object) -> dict:
    """Run the source text of a function exercise: the results as JSON can carry them, for `judge`.

    ValueError where the exercise is of another kind.
    """
    return _function(stem, key).run(answer)


def judge(stem: str, key: str, outcome: object) -> dict:
    """Judge what `run` gave, in an interpreter that ran none of the reader's code. Returns what `check` does."""
    return _function(stem, key).judge_run(outcome).to_dict()


def _function(stem: str, key: str) -> Function:
    question = exercise(stem, key)
    if not isinstance(question, Function):
        raise ValueError(f"{key} asks for no function: check it")
    return question
