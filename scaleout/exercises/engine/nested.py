"""Lists of numbers, and lists of such lists, as results of a reader's function."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import Any

LONGEST = 1000  # numbers and lists of a result, at all depths together; what is right has 35 at most


class TooLong(Exception):
    """A result of more than LONGEST numbers and lists."""


def plain(result: object) -> object:
    """Tuples and arrays as lists, so that they count as what they hold, and decimals as floats; all else as it is.

    Raises TooLong once more than LONGEST was read, however many there are: a list can be in another many times.
    """
    return _plain(result, count(1))


def _plain(result: object, seen: Iterator[int]) -> object:
    if next(seen) > LONGEST:
        raise TooLong
    if isinstance(result, Decimal):
        return float(result)
    if hasattr(result, "tolist"):  # numpy and torch
        if math.prod(getattr(result, "shape", ())) > LONGEST:
            raise TooLong
        result = result.tolist()
    return [_plain(element, seen) for element in result] if isinstance(result, (list, tuple)) else result


def too_long(result: object) -> bool:
    """Whether `plain` would not read it to its end."""
    try:
        plain(result)
    except TooLong:
        return True
    return False


def begins(value: Any, length: int) -> Any:
    """A value whose repr begins as this one's, for `most` characters, and is not much longer than that."""
    return _begins(value, count(length, -1))


def _begins(value: Any, budget: Iterator[int]) -> Any:
    kind = type(value)
    if kind in (str, bytes):
        return value[: max(1, next(budget) + 1)]
    if kind not in (list, tuple, set, frozenset, dict):
        return value
    shown = []
    for element in value.items() if kind is dict else value:
        if next(budget) < 0:  # each is a character at least
            break
        shown.append((element[0], _begins(element[1], budget)) if kind is dict else _begins(element, budget))
    return kind(shown)


def written(value: object) -> object:
    """A list with its whole floats as ints, as a reader writes them: 35000, not 35000.0."""
    if type(value) is list:
        return [written(element) for element in value]
    return int(value) if type(value) is float and value.is_integer() and abs(value) < 1e15 else value


def unfit(result: object) -> str:
    """Why a plain result is no list of numbers or of such lists, in words; "" where it is one."""
    if not isinstance(result, list):
        return f"of type {type(result).__name__}: it should give a list"
    for element in result:
        if isinstance(element, list):
            if words := unfit(element):
                return words
        elif element is None or element is ...:
            return f"with {'None' if element is None else '...'} in it: every place needs a number"
        elif isinstance(element, bool) or not isinstance(element, numbers.Real):
            return f"with a {type(element).__name__} in it: every place needs a number"
        elif element != element:
            return "with NaN in it, which is no number"
    return ""


def carried(result: Any) -> object:
    """A number, or lists of them, as JSON can carry it: a number that is too large for a float as words."""
    if isinstance(result, list):
        return [carried(element) for element in result]
    try:
        number = int(result) if isinstance(result, numbers.Integral) else float(result)
        size = abs(float(number))
    except OverflowError:
        return f"a value of type {type(result).__name__} that cannot be shown"
    return number if math.isfinite(size) else str(number)


def read(result: object) -> object:
    """What `carried` made, with infinities as numbers again; words stay words, which equal nothing."""
    if isinstance(result, list):
        return [read(element) for element in result]
    return float(result) if result in ("inf", "-inf") else result


def reordered(result: Any, expected: Any) -> bool:
    """Two plain lists of numbers that are equal but for the order."""
    flat = all(
        isinstance(values, list) and all(isinstance(x, (int, float)) for x in values) for values in (result, expected)
    )
    return flat and equal(sorted(result), sorted(expected))


def equal(result: Any, expected: Any) -> bool:
    """Equal in shape, and each number within a relative 1e-6. What is no number equals nothing."""
    if isinstance(result, list) or isinstance(expected, list):
        lists = isinstance(result, list) and isinstance(expected, list) and len(result) == len(expected)
        return lists and all(equal(*pair) for pair in zip(result, expected, strict=True))
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        return False
    try:
        return math.isclose(result, expected, rel_tol=1e-6)
    except OverflowError:  # an int too large for a float
        return False
