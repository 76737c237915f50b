"""Which mistake it is: named where it is sure, and else what is known of the first case that is wrong.

Sure is a mistake that gives what the reader's code gave in every case of every rank, where three of them at least are
wrong, and that no other mistake gives too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.exercises.engine import Verdict

TELLING = 3  # cases that have to be wrong before a cause is named

Fault = tuple[str, str] | None  # (slip, words)


@dataclass(frozen=True)
class Seen:
    """A case on one rank. place: which; fault: what is to be seen in it, None where it is right; agree: the mistakes
    that give what was given here; value: what the checker wants to know of it besides."""

    place: str
    fault: Fault
    agree: frozenset[str] = frozenset()
    value: object = None


def judged(reports: list[list[Seen]], words: dict[str, str], right: str) -> Verdict:
    """The verdict on the cases of all ranks. words: of each mistake, by its slip; one that has two
    forms has the second under its name and "-whole"."""
    cases = [case for report in reports for case in report]
    bad = [case for case in cases if case.fault]
    if not bad:
        return Verdict(True, right)
    slip, message = bad[0].fault or ("", "")
    known = [mistake for mistake in words if all(mistake in case.agree for case in cases)]
    if len(known) == 1 and len(bad) >= TELLING:
        slip, message = known[0].removesuffix("-whole"), words[known[0]]
    return Verdict(False, f"{bad[0].place}: {message}", slip)


def by_mistakes(words: dict[str, str]) -> Callable[[list, int], Verdict]:
    """A checker's `judge` by these mistakes alone."""
    return lambda reports, world: judged(reports, words, f"right on {world} processes")


def all_right(words: str = "right on {} processes") -> Callable[[list, int], Verdict]:
    """A checker's `judge` where each rank's own report decides. words: for {} ranks that were right."""
    return lambda reports, world: Verdict(True, words.format(world))
