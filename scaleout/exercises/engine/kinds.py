"""Kinds of exercise and how an answer is judged. A judgement never says only "wrong".

Every exercise gives `spec()`, all that a front end shows, and `judge(answer)`. Texts are in the small
Markdown of `scaleout.page.form`; what `judge` says is plain text. Functions are in their own module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar
from zlib import crc32

from scaleout.exercises.engine.units import TWIN, UNITS, Quantity, parse, show

INPUT = "input"  # the slip of an answer that could not be read at all
GIB = "gb-gib"
ROUNDED = "rounded"
_CLOSE = "Close: give three digits."
_ONE_MORE_DIGIT = "Rounded so far, your answer could be one of several: give one more digit."
_EXACT = 1e-6
_MINUTES = {1: 1, 2: 3, 3: 10}  # by level, for most readers
_ONE_DIGIT = 0.15  # a rounding to one digit that is further off is taken for another number
_BY_FAR = 4  # a slip is sure where the next one is this many times as far away
_FACTORS = (
    (1.1, "less than 10%"), (1.5, "less than half"), (2, "less than a factor of 2"), (5, "a factor of 2 to 5"),
    (20, "a factor of 5 to 20"), (1000, "a factor of more than 20"),
)  # fmt: skip
_POINTS = ((2, "less than 2 points"), (10, "2 to 10 points"), (30, "10 to 30 points"))
_COUNTS = ("steps", "sequences")
_WAYS = {"share": ("high", "low"), **dict.fromkeys(_COUNTS, ("many", "few"))}  # of what has no size
_PREFIXES = {
    **dict.fromkeys(("bytes", "bytes/s"), "Check the prefix: kilo, mega and giga are 1000 apart."),
    "seconds": "Check the prefix: micro and milli are 1000 apart.",
    "parameters": "Check the word: thousand, million and billion are 1000 apart.",
    "share": "A share of 1 is 100%.",
}


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
    """What all kinds share. `level`: 1 is one multiplication, 2 puts a few facts together, 3 a whole run. `minutes`
    where it takes most readers another time than its level says; `short` where the chapter's short path has it."""

    kind: ClassVar[str]
    key: str
    title: str
    prompt: str
    hints: tuple[str, ...]
    solution: str
    level: int
    minutes: int | None = None
    short: bool = False

    def spec(self) -> dict:
        """All that a front end shows, as JSON can carry it."""
        return {
            "key": self.key,
            "title": self.title,
            "kind": self.kind,
            "level": self.level,
            "minutes": self.minutes or _MINUTES[self.level],
            "short": self.short,
            "prompt": self.prompt,
            "hints": list(self.hints),
            "solution": self.solution,
        }

    def judge(self, answer: object) -> Verdict:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(Exercise):
    """A size with its unit.

    `value` is in base units. An answer in any unit of the dimension counts, or in `accepted_units` where the
    exercise is about units. Where `unit_given`, the prompt names the unit of a bare number. Two or three right
    digits are right; where a slip has the same two, or where only one was given, more are asked for. A slip is named
    only where its value is met; what else is off is said by size, and the hints lead on, so that a wrong guess gives
    nothing away.
    """

    kind: ClassVar[str] = "number"
    value: float
    unit: str
    units: tuple[str, ...]
    dimension: str = "bytes"
    tolerance: float = 0.01
    accepted_units: tuple[str, ...] = ()
    unit_given: bool = False
    slips: tuple[Slip, ...] = ()
    right: str

    def spec(self) -> dict:
        return {**super().spec(), "units": list(self.units), "unit": self.unit}

    def judge(self, answer: object) -> Verdict:
        try:
            quantity = parse(answer, self.dimension, self.unit, self.accepted_units, self.unit_given)
        except ValueError as error:
            return Verdict(False, _sentence(str(error)), INPUT)
        candidates: list[Number | Slip] = [self, *self.slips, *self._twin(quantity)]
        met = _met(quantity, candidates, self.tolerance)
        if self in met:
            return self._right(quantity) if len(met) == 1 else Verdict(False, _ONE_MORE_DIGIT, ROUNDED)
        if self._few_digits(quantity, met):
            alike = [
                candidate
                for candidate in candidates
                if abs(quantity.base - candidate.value) <= quantity.lone * (1 + _EXACT)
            ]
            return Verdict(False, _ONE_MORE_DIGIT if met or len(alike) > 1 else _CLOSE, ROUNDED)
        slips = met or _met(quantity, [*self._powers()], self.tolerance)
        return _named([slip for slip in slips if isinstance(slip, Slip)]) or self._direction(quantity)

    def _right(self, quantity: Quantity) -> Verdict:
        if self.accepted_units and quantity.unit not in self.accepted_units:
            if "bit" in quantity.unit:
                return Verdict(
                    False, f"That is the right rate. A byte is 8 bits: how many {self.unit} is that?", "other-unit"
                )
            return Verdict(False, f"{quantity} is the right size, but this one asks for {self.unit}.", "other-unit")
        return Verdict(True, f"Right: {show(self.value, self.unit, self.dimension)}. {self.right}")

    def _few_digits(self, quantity: Quantity, met: list[Number | Slip]) -> bool:
        """The value's own rounding to one digit, where that is no far cry, or the value cut off after two or more. A
        count is no measure: it has all of its digits or is wrong."""
        if self.dimension in _COUNTS:
            return False
        if quantity.lone:
            rounded = float(f"{self.value / UNITS[self.dimension][quantity.unit]:.0e}")
            close = math.isclose(quantity.base, self.value, rel_tol=_ONE_DIGIT)
            return close and not met and math.isclose(quantity.value, rounded, rel_tol=_EXACT)
        exact = any(math.isclose(quantity.base, candidate.value, rel_tol=_EXACT) for candidate in met)
        return not exact and 0 < self.value - quantity.base < 2 * max(quantity.halves, default=0) * (1 - _EXACT)

    def _twin(self, quantity: Quantity) -> list[Slip]:
        """GB written where the number is in GiB, or the other way. One digit says too little for that."""
        twin = TWIN.get(quantity.unit)
        if twin is None:
            return []
        factors = UNITS["bytes"]
        value = self.value * factors[quantity.unit] / factors[twin]
        if quantity.lone and not math.isclose(quantity.base, value, rel_tol=_EXACT):
            return []
        size = ", ".join(f"a {unit} is {factors[unit]:,} bytes" for unit in (quantity.unit, twin))
        return [Slip(GIB, value, f"Your number is right in {twin}, not in {quantity.unit}: {size}.")]

    def _powers(self) -> list[Slip]:
        """Prefixes too many, in what has prefixes, and per cent taken for a share."""
        words = _PREFIXES.get(self.dimension)
        return [
            Slip(
                "prefix",
                self.value * (power if way == "large" else 1 / power),
                f"Your digits are right, but the size is {power:,} times too {way}. {words}",
            )
            for power in ((100,) if self.dimension == "share" else (1000, 1000**2, 1000**3))
            for way in ("large", "small")
            if words
        ]

    def _direction(self, quantity: Quantity) -> Verdict:
        """By how much it is off, in steps too coarse to divide by, or of a share to subtract."""
        large = quantity.base > self.value
        if self.dimension == "share":
            distance, beyond = 100 * abs(quantity.base - self.value), "more than 30 points"
        else:
            low, high = sorted((quantity.base, self.value))
            distance, beyond = high / low if low else math.inf, "a factor of more than 1,000"
        steps = _POINTS if self.dimension == "share" else _FACTORS
        size = next((words for limit, words in steps if distance < limit), beyond)
        way = _WAYS.get(self.dimension, ("large", "small"))[not large]
        verb = "are" if self.dimension in _COUNTS and quantity.base != 1 else "is"
        return Verdict(False, f"{quantity} {verb} too {way}, by {size}.", "too-large" if large else "too-small")


def _met(quantity: Quantity, candidates: list[Number | Slip], tolerance: float) -> list[Number | Slip]:
    """Whose value was given. Several: the answer does not tell which of them is meant.

    The first of these that a candidate passes decides: it is the number given; it rounds to the digits given, zeros at
    the end counted; the same with those zeros not counted; it is within the tolerance. One digit alone, which rounds
    too much, is not taken for a rounding.
    """
    if exact := [candidate for candidate in candidates if math.isclose(quantity.base, candidate.value, rel_tol=_EXACT)]:
        return exact
    for half in quantity.halves:
        if rounded := [
            candidate for candidate in candidates if abs(quantity.base - candidate.value) <= half * (1 + _EXACT)
        ]:
            return rounded
    close = [candidate for candidate in candidates if math.isclose(quantity.base, candidate.value, rel_tol=tolerance)]
    distances = sorted((abs(quantity.base - candidate.value), index) for index, candidate in enumerate(close))
    met = [close[index] for distance, index in distances if distance <= _BY_FAR * distances[0][0]]
    numbers = [candidate for candidate in met if isinstance(candidate, Number)]  # nearest, or not known from a slip
    return met if not numbers else [*numbers] if met[0] is numbers[0] else []


def _named(slips: list[Slip]) -> Verdict | None:
    """What leads to the number: one misconception where it is sure, each of them where several give it."""
    if not slips:
        return None
    opening = "More than one mistake gives this number. " if len(slips) > 1 else ""
    return Verdict(False, opening + " Or: ".join(slip.message for slip in slips), "|".join(slip.name for slip in slips))


@dataclass(frozen=True)
class Option:
    """One choice. `reason` says why it is right, or what the misconception behind it is."""

    name: str
    label: str
    reason: str
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice(Exercise):
    """One right option among several; each wrong one has its own explanation.

    They are shown in an order that is the same everywhere and says nothing about which is right.
    """

    kind: ClassVar[str] = "choice"
    options: tuple[Option, ...]

    def spec(self) -> dict:
        return {**super().spec(), "options": [[option.name, option.label] for option in self.shown]}

    @property
    def shown(self) -> list[Option]:
        return sorted(self.options, key=lambda option: crc32(f"{self.key} {option.name}".encode()))

    def judge(self, answer: object) -> Verdict:
        for option in self.options:
            if answer in (option.name, option.label):
                return Verdict(option.right, option.reason, "" if option.right else option.name)
        names = ", ".join(option.name for option in self.shown)
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
        return Verdict(
            False, f"This one needs torch and several processes: save it in a file and run {self.command}", INPUT
        )


def easy_to_hard(*modules: ModuleType) -> tuple[Exercise, ...]:
    """The EXERCISES of a chapter's modules by level; of one level in the order given."""
    return tuple(
        sorted((exercise for module in modules for exercise in module.EXERCISES), key=lambda exercise: exercise.level)
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
