"""Many cases in one test, which of them are quicker on fake tensors, and what every refusal is.

pytest takes a millisecond to collect a case, which is more than most of them take to run.
"""

import functools
import itertools
import math

import pytest


def over(**values):
    """Run a test with every combination of these values, as one test; what fails says with which.

    For grids of hundreds that are never run one by one. Where a case is slow or has a name: pytest's parametrize.
    """
    grid = [dict(zip(values, given, strict=True)) for given in itertools.product(*values.values())]
    return functools.partial(_as_one, [((), case) for case in grid])


def each(cases):
    """Run a test for every case, as one test: what fails names its case. A case that is a tuple gives several
    arguments; of two of these decorators, the upper one gives the first."""
    return functools.partial(_as_one, [(case if isinstance(case, tuple) else (case,), {}) for case in cases])


def _as_one(cases, test):
    @functools.wraps(test)
    def run(*before):
        for given, named in cases:
            try:
                test(*before, *given, **named)
            except BaseException as error:
                error.add_note(f"with {named or ', '.join(str(getattr(one, 'key', one))[:100] for one in given)}")
                raise

    del run.__wrapped__  # else pytest takes the test's own parameters for fixtures
    return run


def quicker_fake(shape, batch, seq):
    """True where fake tensors are quicker to measure than real ones: from 250,000 elements per block on."""
    return batch * seq * shape.hidden > 250_000


def refused(call, words):
    """`call` raises a ValueError of one line that has these words in it; the line is returned."""
    with pytest.raises(ValueError) as error:
        call()
    line = str(error.value)
    assert words in line and "\n" not in line
    return line


NONSENSE = (None, True, -1, 0, 2.5, 10**400, 10**5000, math.nan, math.inf, "", "x", "a\nb", [], [1], {}, {"a": 1})


def refuses_nonsense(function, *good, allowed=()):
    """Each argument of a function in turn, the others good, is refused where it is nonsense: a ValueError of one line
    that is short enough to read. allowed: (which argument, a value of NONSENSE that it may have)."""
    function(*good)
    for at, value in itertools.product(range(len(good)), NONSENSE):
        wrong = (*good[:at], value, *good[at + 1 :])
        if any(at == which and type(one) is type(value) and one == value for which, one in allowed):
            function(*wrong)
            continue
        try:
            with pytest.raises(ValueError) as error:
                function(*wrong)
            words = str(error.value)
            assert "\n" not in words and len(words) < 250, words
        except BaseException as caught:
            caught.add_note(
                f"{function.__name__}: argument {at} is a {type(value).__name__}, {str(value)[:40]!r}"
                if not isinstance(value, int)
                else f"{function.__name__}: argument {at}, an int"
            )
            raise
