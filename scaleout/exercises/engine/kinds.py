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
_MORE = "Rounded so far, your answer could be one of several: give one more digit."
_EXACT = 1e-6
_MINUTES = {1: 1, 2: 3, 3: 10}  # by level, for most readers
_ONE_DIGIT = 0.15  # a rounding to one digit that is further off is taken for another number
_BY_FAR = 4  # a slip is sure where the next one is this many times as far away
_OFF = (
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
    where it takes most readers another time than its level says."""

    kind: ClassVar[str]
    key: str
    title: str
    prompt: str
    hints: tuple[str, ...]
    solution: str
    level: int
    minutes: int | None = None

    def spec(self) -> dict:
        """All that a front end shows, as JSON can carry it."""
        return {
            "key": self.key,
            "title": self.title,
            "kind": self.kind,
            "level": self.level,
            "minutes": self.minutes or _MINUTES[self.level],
            "prompt": self.prompt,
            "hints": list(self.hints),
            "solution": self.solution,
        }

    def judge(self, answer: object) -> Verdict:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(Exercise):
    """A size with its unit.

    `value` is in base units. An answer in any unit of the dimension counts, or in those of `only` where the
    exercise is about units. Where the prompt has `said` in which unit, a bare number is in that. Two or three right
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
    only: tuple[str, ...] = ()
    said: bool = False
    slips: tuple[Slip, ...] = ()
    right: str

    def spec(self) -> dict:
        return {**super().spec(), "units": list(self.units), "unit": self.unit}

    def judge(self, answer: object) -> Verdict:
        try:
            given = parse(answer, self.dimension, self.unit, self.only, self.said)
        except ValueError as error:
            return Verdict(False, _sentence(str(error)), INPUT)
        candidates = [self, *self.slips, *self._twin(given)]
        met = _met(given, candidates, self.tolerance)
        if self in met:
            return self._right(given) if len(met) == 1 else Verdict(False, _MORE, ROUNDED)
        if self._few_digits(given, met):
            alike = [one for one in candidates if abs(given.base - one.value) <= given.lone * (1 + _EXACT)]
            return Verdict(False, _MORE if met or len(alike) > 1 else _CLOSE, ROUNDED)
        return _named(met or _met(given, self._powers(), self.tolerance)) or self._direction(given)

    def _right(self, given: Quantity) -> Verdict:
        if self.only and given.unit not in self.only:
            if "bit" in given.unit:
                return Verdict(
                    False, f"That is the right rate. A byte is 8 bits: how many {self.unit} is that?", "other-unit"
                )
            return Verdict(False, f"{given} is the right size, but this one asks for {self.unit}.", "other-unit")
        return Verdict(True, f"Right: {show(self.value, self.unit, self.dimension)}. {self.right}")

    def _few_digits(self, given: Quantity, met: list[Number | Slip]) -> bool:
        """The value's own rounding to one digit, where that is no far cry, or the value cut off after two or more. A
        count is no measure: it has all of its digits or is wrong."""
        if self.dimension in _COUNTS:
            return False
        if given.lone:
            own = float(f"{self.value / UNITS[self.dimension][given.unit]:.0e}")
            near = math.isclose(given.base, self.value, rel_tol=_ONE_DIGIT)
            return near and not met and math.isclose(given.value, own, rel_tol=_EXACT)
        exact = any(math.isclose(given.base, one.value, rel_tol=_EXACT) for one in met)
        return not exact and 0 < self.value - given.base < 2 * max(given.halves, default=0) * (1 - _EXACT)

    def _twin(self, given: Quantity) -> list[Slip]:
        """GB written where the number is in GiB, or the other way. One digit says too little for that."""
        twin = TWIN.get(given.unit)
        if twin is None:
            return []
        factors = UNITS["bytes"]
        value = self.value * factors[given.unit] / factors[twin]
        if given.lone and not math.isclose(given.base, value, rel_tol=_EXACT):
            return []
        size = ", ".join(f"a {unit} is {factors[unit]:,} bytes" for unit in (given.unit, twin))
        return [Slip(GIB, value, f"Your number is right in {twin}, not in {given.unit}: {size}.")]

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

    def _direction(self, given: Quantity) -> Verdict:
        """By how much it is off, in steps too coarse to divide by, or of a share to subtract."""
        large = given.base > self.value
        if self.dimension == "share":
            off, steps, most = 100 * abs(given.base - self.value), _POINTS, "more than 30 points"
        else:
            low, high = sorted((given.base, self.value))
            off, steps, most = high / low if low else math.inf, _OFF, "a factor of more than 1,000"
        size = next((words for limit, words in steps if off < limit), most)
        way = _WAYS.get(self.dimension, ("large", "small"))[not large]
        verb = "are" if self.dimension in _COUNTS and given.base != 1 else "is"
        return Verdict(False, f"{given} {verb} too {way}, by {size}.", "too-large" if large else "too-small")


def _met(given: Quantity, candidates: list[Number | Slip], tolerance: float) -> list[Number | Slip]:
    """Whose value was given. Several: the answer does not tell which of them is meant.

    The first of these that a candidate passes decides: it is the number given; it rounds to the digits given, zeros at
    the end counted; the same with those zeros not counted; it is within the tolerance. One digit alone, which rounds
    too much, is not taken for a rounding.
    """
    if same := [one for one in candidates if math.isclose(given.base, one.value, rel_tol=_EXACT)]:
        return same
    for half in given.halves:
        if rounded := [one for one in candidates if abs(given.base - one.value) <= half * (1 + _EXACT)]:
            return rounded
    near = [one for one in candidates if math.isclose(given.base, one.value, rel_tol=tolerance)]
    far = sorted((abs(given.base - one.value), index) for index, one in enumerate(near))
    met = [near[index] for distance, index in far if distance <= _BY_FAR * far[0][0]]
    own = [one for one in met if isinstance(one, Number)]  # nearest, or not known from a slip
    return met if not own else own if met[0] is own[0] else []


def _named(slips: list[Slip]) -> Verdict | None:
    """What leads to the number: one misconception where it is sure, each of them where several give it."""
    if not slips:
        return None
    before = "More than one mistake gives this number. " if len(slips) > 1 else ""
    return Verdict(False, before + " Or: ".join(slip.message for slip in slips), "|".join(slip.name for slip in slips))


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
        return {**super().spec(), "options": [[option.name, option.label] for option in self.shown]}

    @property
    def shown(self) -> list[Option]:
        return sorted(self.options, key=lambda option: crc32(f"{self.key} {option.name}".encode()))

    def judge(self, answer: object) -> Verdict:
        for option in self.options:
            if answer in (option.name, option.label):
                return Verdict(option.right, option.why, "" if option.right else option.name)
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
    return tuple(sorted((one for module in modules for one in module.EXERCISES), key=lambda one: one.level))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
