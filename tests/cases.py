"""Many cases in one test: pytest takes a millisecond to collect each case, which is more than most of them take."""

import functools
import itertools


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
