"""Refusals that many rooms share, in one line each. `name` is what the caller calls the value."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

V = TypeVar("V")

NUMBERS = {float, int}
LONGEST = 80  # characters of a refused value that are repeated


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a real number that a float can hold, a finite one; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def said(value: object) -> str:
    """A value as a refusal repeats it: in one line of at most LONGEST characters."""
    try:
        text = repr(value)
    except ValueError:  # of more digits than Python writes out
        text = f"a value of type {type(value).__name__} that is too long to write out"
    text = " ".join(text.split("\n"))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def whole(name: str, value: object, least: int = 1, unit: str = "", limit: float = sys.float_info.max) -> None:
    """ValueError unless value is a whole number from least to limit, both included. Without a limit it is the largest
    float, so that a share of the number can be taken. unit: words behind "whole number", such as " of bytes"."""
    if type(value) is int and least <= value <= limit:  # the usual case, at once
        return
    if is_whole(value) and least <= value <= limit:
        return
    if is_whole(value) and value > limit:
        end = format(limit, "," if is_whole(limit) else "g")
        raise ValueError(f"{name} must be a whole number{unit} from {least} to {end}, not {said(value)}")
    raise ValueError(f"{name} must be a whole number{unit} of at least {least}, not {said(value)}")


def number(name: str, value: object, low: float, high: float = math.inf) -> None:
    """ValueError unless value is a finite number from low to high, both included."""
    if not is_number(value) or not low <= value <= high:
        allowed = f"from {low:g} up" if high == math.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} must be a finite number {allowed}, not {said(value)}")


def amounts(fields: Mapping[str, Any]) -> None:
    """ValueError unless each field but the first, which is a label, is a finite number of at least 0. A model has
    hundreds of layers: the usual case is told at once."""
    _, *numbers = fields.items()
    for name, value in numbers:
        if type(value) not in NUMBERS or not 0 <= value < math.inf:
            number(name, value, 0)


def above_0(name: str, value: object) -> None:
    if not is_number(value) or not value > 0:
        raise ValueError(f"{name} must be a finite number above 0, not {said(value)}")


def share(name: str, value: object) -> None:
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} is a share, above 0 and at most 1, not {said(value)}")


def flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {said(value)}")


def known(word: str, key: object, table: Mapping[str, V]) -> V:
    """The entry of a table under `key`. Raises ValueError that lists the keys when there is none."""
    if not isinstance(key, str) or key not in table:
        raise ValueError(f"{word} {said(key)} is unknown: use one of {', '.join(table)}")
    return table[key]


def instance(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, not {said(value)}")


def built(name: str, kind: type[V], values: Mapping[str, Any]) -> V:
    """kind(**values); ValueError for values that it does not take, or lacks."""
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).partition(') ')[2] or error}") from None


def one_of(name: str, value: object, options: tuple[object, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, not {said(value)}")


def divisors(n: int) -> list[int]:
    """The whole numbers that divide n, the smallest first."""
    root = math.isqrt(n)  # a billion's are found in a moment
    low = [k for k in range(1, root + 1) if not n % k]
    return low + [n // k for k in reversed(low) if k * k != n]


def nearest(value: int, allowed: Iterable[int]) -> int:
    """The allowed whole number that is nearest to value; of two the smaller."""
    return min(allowed, key=lambda number: (abs(number - value), number))
