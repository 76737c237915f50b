"""Kinds of exercise and how an answer is judged. A judgement never says only "wrong".

Every exercise gives `spec()`, all that a front end shows, and `judge(answer)`. Texts are in the small
Markdown of `scaleout.form`; what `judge` says is plain text. Functions are in their own module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from scaleout.exercises.units import TWIN, UNITS, Quantity, parse, show

INPUT = "input"  # the slip of an answer that could not be read at all
GIB = "gb-gib"
_OFF = (
    (1.1, "less than 10% off"), (1.5, "less than half off"), (2, "less than twice"), (5, "2 to 5 times"),
    (20, "5 to 20 times"), (1000, "more than 20 times"),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """`slip` is the short name of the misconception that was recognised, "" when the answer is right."""

    ok: bool
    message: str
    slip: str = ""

    def to_dict(self) -> dict:
        return {"ok": self.ok, "message": self.message, "slip": self.slip}


@dataclass(frozen=True)
class Slip:
    """A misconception, by the value it leads to (in base units) and what to say of it."""

    name: str
    value: float
    message: str


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """What all kinds share. `level`: 1 is one multiplication, 2 puts a few facts together, 3 a whole run."""

    kind: ClassVar[str]
    key: str
    title: str
    prompt: str
    hints: tuple[str, ...]
    solution: str
    level: int

    def spec(self) -> dict:
        """All that a front end shows, as JSON can carry it."""
        return {
            "key": self.key, "title": self.title, "kind": self.kind, "level": self.level,
            "prompt": self.prompt, "hints": list(self.hints), "solution": self.solution,
        }  # fmt: skip

    def judge(self, answer: object) -> Verdict:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(Exercise):
    """A size with its unit.

    `value` is in base units. An answer in any unit of the dimension counts, unless `only_unit` is set because
    the exercise is about that unit. A slip is named only where its value is met; what else is off is said by size,
    and the hints lead on, so that a wrong guess gives nothing away.
    """

    kind: ClassVar[str] = "number"
    value: float
    unit: str
    units: tuple[str, ...]
    dimension: str = "bytes"
    tolerance: float = 0.01
    only_unit: bool = False
    slips: tuple[Slip, ...] = ()
    right: str

    def spec(self) -> dict:
        return {**super().spec(), "units": list(self.units), "unit": self.unit}

    def judge(self, answer: object) -> Verdict:
        try:
            given = parse(answer, self.dimension, self.unit)
            other = parse(answer, self.dimension, self.unit, decimal_comma=True)
        except ValueError as error:
            return Verdict(False, _sentence(str(error)), INPUT)
        for reading in (given, other):
            if self._near(reading.base, self.value):
                return self._right(reading)
        return self._twin(given) or self._known(given) or self._power(given) or self._direction(given)

    def _near(self, given: float, value: float) -> bool:
        return math.isclose(given, value, rel_tol=self.tolerance)

    def _right(self, given: Quantity) -> Verdict:
        if self.only_unit and given.unit != self.unit:
            factor = f"{UNITS[self.dimension][self.unit]:,} {self.dimension}"
            return Verdict(False, f"{given} is the right size, but this one asks for {self.unit}: divide "
                                  f"the {self.dimension} by one {self.unit}, which is {factor}.",
                           "other-unit")  # fmt: skip
        return Verdict(True, f"Right: {show(self.value, self.unit, self.dimension)}. {self.right}")

    def _twin(self, given: Quantity) -> Verdict | None:
        """GB written where the number is in GiB, or the other way."""
        twin = TWIN.get(given.unit)
        if twin is None or not self._near(given.value * UNITS["bytes"][twin], self.value):
            return None
        size = [f"a {unit} is {UNITS['bytes'][unit]:,} bytes" for unit in (given.unit, twin)]
        return Verdict(False, f"Your number is right in {twin}, not in {given.unit}: {', '.join(size)}.", GIB)

    def _known(self, given: Quantity) -> Verdict | None:
        near = [slip for slip in self.slips if self._near(given.base, slip.value)]
        if not near:
            return None
        slip = min(near, key=lambda slip: abs(given.base - slip.value))
        return Verdict(False, slip.message, slip.name)

    def _power(self, given: Quantity) -> Verdict | None:
        """A prefix too many: a slip that any size can have."""
        if not given.base:
            return None
        ratio = given.base / self.value
        factor, way = (ratio, "large") if ratio > 1 else (1 / ratio, "small")
        for power in (1000, 1000**2, 1000**3):
            if self._near(factor, power):
                return Verdict(False, f"Your digits are right, but the size is {power:,} times too {way}. "
                               "Check the prefix: kilo, mega and giga are 1000 apart.", "prefix")  # fmt: skip
        return None

    def _direction(self, given: Quantity) -> Verdict:
        """By how much it is off, in steps too coarse to divide by."""
        ratio = given.base / self.value
        factor, way = (ratio, "large") if ratio > 1 else (1 / ratio if ratio else math.inf, "small")
        size = next((words for limit, words in _OFF if factor < limit), "more than 1,000 times")
        return Verdict(False, f"{given} is too {way}: {size}.", f"too-{way}")


@dataclass(frozen=True)
class Option:
    """One choice. `why` says why it is right, or what the misconception behind it is."""

    name: str
    label: str
    why: str
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice(Exercise):
    """One right option among several; each wrong one has its own explanation.

    They are shown in an order that is the same everywhere and says nothing about which is right.
    """

    kind: ClassVar[str] = "choice"
    options: tuple[Option, ...]

    def spec(self) -> dict:
        shown = sorted(self.options, key=lambda option: crc32(f"{self.key} {option.name}".encode()))
        return {**super().spec(), "options": [[option.name, option.label] for option in shown]}

    def judge(self, answer: object) -> Verdict:
        for option in self.options:
            if answer in (option.name, option.label):
                return Verdict(option.right, option.why, "" if option.right else option.name)
        names = ", ".join(option.name for option in self.options)
        return Verdict(False, f"Choose one of the answers: {names}.", INPUT)


@dataclass(frozen=True, kw_only=True)
class Lab(Exercise):
    """A function in torch: written in a file, checked by `command` on real processes, never in the page."""

    kind: ClassVar[str] = "torch"
    stub: str
    command: str

    def spec(self) -> dict:
        return {**super().spec(), "stub": self.stub, "command": self.command}

    def judge(self, answer: object) -> Verdict:
        return Verdict(False, f"This one needs torch and several processes: save it in a file and run "
                              f"{self.command}",
                       INPUT)  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
