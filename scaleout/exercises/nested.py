"""Lists of numbers, and lists of such lists, as results of a reader's function."""

from __future__ import annotations

import math
import numbers


def plain(result: object) -> object:
    """Tuples and arrays as lists, so that they count as what they hold; everything else as it is."""
    if hasattr(result, "tolist"):  # numpy and torch
        result = result.tolist()
    return [plain(one) for one in result] if isinstance(result, (list, tuple)) else result


def unfit(result: object) -> str:
    """Why a plain result is no list of numbers or of such lists, in words; "" where it is one."""
    if not isinstance(result, list):
        return f"of type {type(result).__name__}: it should give a list"
    for one in result:
        if isinstance(one, list):
            if words := unfit(one):
                return words
        elif one is None or one is ...:
            return f"with {'None' if one is None else '...'} in it: every place needs a number"
        elif isinstance(one, bool) or not isinstance(one, numbers.Real):
            return f"with a {type(one).__name__} in it: every place needs a number"
        elif one != one:
            return "with NaN in it, which is no number"
    return ""


def same(given: object, expected: object) -> bool:
    """Equal in shape, and each number within a relative 1e-6."""
    if isinstance(given, list) or isinstance(expected, list):
        both = isinstance(given, list) and isinstance(expected, list) and len(given) == len(expected)
        return both and all(same(*pair) for pair in zip(given, expected, strict=True))
    try:
        return math.isclose(given, expected, rel_tol=1e-6)
    except OverflowError:  # an int too large for a float
        return False
