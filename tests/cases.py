"""Many cases in one test, which of them are quicker on fake tensors, and what every refusal is.

pytest takes a millisecond to collect a case, which is more than most of them take to run.
"""

import functools
import itertools

import pytest


def over(**values):
    """Run a test with every combination of these values; what fails says with which.

    For grids of hundreds that are never run one by one. Where a case is slow or has a name: pytest's parametrize.
    """

    def wrap(test):
        @functools.wraps(test)
        def run():
            for given in itertools.product(*values.values()):
                case = dict(zip(values, given, strict=True))
                try:
                    test(**case)
                except BaseException as error:
                    error.add_note(f"with {case}")
                    raise

        del run.__wrapped__  # else pytest takes the test's own parameters for fixtures
        return run

    return wrap


def quicker_fake(shape, batch, seq):
    """True where fake tensors are quicker to measure than real ones: from 250,000 elements a block on."""
    return batch * seq * shape.hidden > 250_000


def refused(call, words):
    """`call` raises a ValueError of one line that has these words in it."""
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value) and "\n" not in str(error.value)
