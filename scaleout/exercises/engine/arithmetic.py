"""The number at the start of an answer: '7,500', '12,5', '1.2·10¹²', '7/4', '2 * (70 + 1)', '√(2·20·14400)'. Nothing
is evaluated but + - * / ^, brackets and the functions of FUNCTIONS and OF_SEVERAL, over numbers only.

Which mark is the decimal one: "1,024" is 1024, because a comma before exactly three digits parts thousands;
"12,5" and "0,125" have a decimal comma; "1.024" has a point, "1.000.000" has thousands.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

LARGEST = 1e30
_LONGEST = 100  # characters; what a person types has twenty
_STEEPEST = 60  # the largest exponent
_DEEPEST = 30  # brackets within brackets, and signs before signs

FUNCTIONS = {"sqrt": math.sqrt, "√": math.sqrt, "log2": math.log2, "log10": math.log10, "ln": math.log,
             "ceil": math.ceil, "floor": math.floor}  # fmt: skip
OF_SEVERAL = {"max": max, "min": min}

_SUPER = {ord(raised): plain for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True)}
_SIGNS = str.maketrans(
    {
        "−": "-",
        "－": "-",
        "＋": "+",
        "×": "*",
        "·": "*",
        "⋅": "*",
        "∙": "*",
        "÷": "/",
        "∕": "/",
        "⁄": "/",
        "₂": "2",
        "’": "'",
        "，": ",",
        "．": ".",
        "（": "(",
        "）": ")",
    }
)
WORDS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TEN_TO = re.compile(r"(?<![\w^*.,])([\d.,]*\d)\s*[*x]\s*10\s*(?:\^|\*\*)\s*([+-]?\d{1,3})(?![\d.,])", re.I)
_FIGURE = re.compile(r"((?:\d|[.,]\d)(?:[\d.,_']| (?=\d))*)(e[+-]?\d+(?!\w))?", re.I)
_GROUPED = re.compile(r"\d{1,3}(?:[ _']\d{3})+(?:[.,]\d*)?")
_DO = {"+": operator.add, "-": operator.sub, "*": operator.mul, "x": operator.mul, "/": operator.truediv}
_CALL = re.compile(r"(√|(?:sqrt|log_?2|log_?10|ln|ceil|floor|max|min)(?=\())\s*", re.I)
_OPERATOR = re.compile(rf"\s*(\*\*|[-+*/^x])\s*(?=[-+\d.,(]|{_CALL.pattern})", re.I)
_TIMES = re.compile(rf"(log_?(?:2|10)\()|(?<=\d)(?=\()|(?<=[\d)])\s*(?={_CALL.pattern})", re.I)  # 20(8-1), 2√3
# "140-141", "140 GB to 141", "between 140 and 141": from one number to a larger one, which no difference of sizes is.
_END = r"\d[\d.,]*(?:e[+-]?\d+)?"
_RANGE = re.compile(
    rf"(?:from\s+)?({_END})\s*(?:(?!e-)[a-z]+|%)?\s*(?:[-\u2013\u2014]|\.\.+|\u2026|\bto\b)\s*({_END})"
    rf"(?!\s*[-+*/^x(])|between\s+({_END})\s*(?:[a-z]+|%)?\s*\band\s+({_END})",
    re.I,
)
_LIST = re.compile(r"(?:max|min)\([^()]*\)", re.I)


class MathError(Exception):
    """A function of a number that it has no value for."""


@dataclass(frozen=True)
class Figure:
    """A number as it was read. `halves`: how far the size meant may be from it, were each digit that is written
    counted, and were the zeros at the end of a whole number not counted, where two digits are left. `lone`: the
    same where only one is. A sum has neither: it is meant exactly."""

    value: float
    halves: tuple[float, ...] = ()
    lone: float = 0.0

    def __mul__(self, factor: float) -> Figure:
        return Figure(self.value * factor, tuple(half * factor for half in self.halves), self.lone * factor)


def plain(text: str) -> str:
    """Signs, digits and spaces of any script as ASCII; a raised number after a digit as a power."""
    text = re.sub(r"(?<=[\d)])[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda raised: "^" + raised.group().translate(_SUPER), text)
    return "".join(_ascii_character(character) for character in text.translate(_SIGNS))


def read(text: str) -> tuple[Figure, str]:
    """The number or sum at the start of `text` (see `plain`), and what stands after it.

    Raises ValueError, a few words: that there is none, that it is not one number, negative, or too large.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters are no number")
    words = "|".join(WORDS)
    text = _TIMES.sub(lambda match: match[1] or "*", text)
    text = _LIST.sub(lambda call: re.sub(r",\s+", ";", call[0]), text)  # what is left of commas is within numbers
    text = re.sub(
        rf"\s*\b({words})\b(?=\s*(?:[-+*/^)]|x\s*[\d(]))", lambda word: f"e{WORDS[word[1].lower()]}", text, flags=re.I
    )
    sum_ = _Sum(_TEN_TO.sub(r"\1e\2", text))
    try:
        figure = sum_.total()
    except (OverflowError, ZeroDivisionError, MathError):
        raise ValueError("that sum has no result of a size that can be measured") from None
    if figure.value < 0:
        raise ValueError("a size is not negative")
    if not figure.value <= LARGEST:
        raise ValueError("that is larger than anything measured")
    return figure, sum_.text[sum_.at :].strip()


def range_in(text: str) -> str:
    """The range that `text` begins with, such as "140-141" or "140 GB to 141"; "" for anything else."""
    match = _RANGE.match(text)
    if not match:
        return ""
    try:
        low, high = (read(end)[0].value for end in match.groups() if end)
    except ValueError:
        return ""
    return match[0] if low < high else ""


def _ascii_character(character: str) -> str:
    digit = unicodedata.decimal(character, None)  # not ², which is no digit of a number
    return " " if character.isspace() else character if digit is None else str(digit)


class _Sum:
    """Reads its text from the left: brackets before powers before multiplication before addition."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def total(self) -> Figure:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Figure:
        return self._chain(("*", "x", "/"), self._signed)

    def _chain(self, signs: tuple[str, ...], part: Callable[[], Figure]) -> Figure:
        total = part()
        while sign := self._sign(*signs):
            total = Figure(_DO[sign](total.value, part().value))
        return total

    def _signed(self) -> Figure:
        self.depth += 1  # every way down leads through here
        if self.depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} brackets or signs are not read")
        figure = self._power()
        self.depth -= 1
        return figure

    def _power(self) -> Figure:
        if sign := self._sign("+", "-"):
            value = self._signed().value
            return Figure(-value if sign == "-" else value)
        base = self._atom()
        if not self._sign("^", "**"):
            return base
        power = self._signed().value
        if abs(power) > _STEEPEST or base.value < 0:
            raise ValueError(f"a power of at most {_STEEPEST} can be read here")
        return Figure(base.value**power)

    def _atom(self) -> Figure:
        if call := _CALL.match(self.text, self.at):
            self.at = call.end()
            return self._call(call[1].lower().replace("_", ""))
        if self._next("("):
            inside = self.total()
            self._close()
            return Figure(inside.value)
        match = _FIGURE.match(self.text, self.at)
        if not match:
            raise ValueError(
                f"{self.text[self.at :]!r} does not start with a number"
                if self.at == 0
                else f"a number is missing after {self.text[: self.at].strip()!r}"
            )
        self.at = match.end()
        return _figure(match[1].strip(), match[2] or "e0")

    def _call(self, name: str) -> Figure:
        """The value of a function; its bracket, or behind √ its number, comes next."""
        if name in FUNCTIONS:
            inside = self._atom().value
            try:
                return Figure(float(FUNCTIONS[name](inside)))
            except ValueError:
                raise MathError from None
        self._next("(")
        numbers = [self.total().value]
        while self._next(";"):
            numbers.append(self.total().value)
        self._close()
        if len(numbers) == 1:
            raise ValueError(f"{name} is of several numbers")
        return Figure(OF_SEVERAL[name](numbers))

    def _next(self, mark: str) -> bool:
        match = re.compile(rf"\s*\{mark}\s*").match(self.text, self.at)
        self.at = match.end() if match else self.at
        return bool(match)

    def _close(self) -> None:
        match = re.compile(r"\s*\)").match(self.text, self.at)  # what is behind belongs to the unit
        if not match:
            raise ValueError("a bracket is not closed")
        self.at = match.end()

    def _sign(self, *signs: str) -> str:
        match = _OPERATOR.match(self.text, self.at)
        if not match or match[1].lower() not in signs:
            return ""
        self.at = match.end()
        return match[1].lower()


def _figure(written: str, power: str) -> Figure:
    digits = _point(written.rstrip(".,"))
    integer, _, decimals = digits.partition(".")
    zeros = 0 if decimals else len(integer) - len(integer.rstrip("0"))
    count = len((integer + decimals).lstrip("0"))
    halves = {count - dropped: float(f"0.5e{dropped - len(decimals)}") * float(f"1{power}") for dropped in (0, zeros)}
    return Figure(
        float(digits + power),
        tuple(half for significant, half in halves.items() if significant > 1),
        halves.get(1, 0.0),
    )


def _point(written: str) -> str:
    """The digits with a point for decimals and nothing between thousands. Of two kinds of mark the last is the
    decimal one."""
    digits = written
    if re.search("[ _']", digits):
        if not _GROUPED.fullmatch(digits):
            raise ValueError(f"{written!r} is not one number")
        digits = re.sub("[ _']", "", digits).replace(",", ".")
    elif "," in digits and "." in digits:
        thousands, decimal = sorted(",.", key=digits.rfind)
        if re.fullmatch(rf"\d{{1,3}}(?:\{thousands}\d{{3}})+\{decimal}\d+", digits):
            return digits.replace(thousands, "").replace(decimal, ".")
    elif re.fullmatch(r"[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?:\.\d{3}){2,}", digits):
        return re.sub("[.,]", "", digits)
    if not re.fullmatch(r"\d*(?:[.,]\d+)?", digits) or re.fullmatch(r"[1-9]\d{3,},\d{3}", digits):
        raise ValueError(f"{written!r} is not one number")
    return digits.replace(",", ".")
