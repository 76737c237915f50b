"""What is no pipeline's step is refused in one line."""

import pytest
from cases import refused

from scaleout.spec.pipeline import Action
from scaleout.timing.pipeline import Costs, even, step, timeline
from scaleout.timing.pipeline_waits import blocked


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Costs(1.0, 1.0, 1.0), "one number for each stage: give as many of each"),
        (lambda: Costs((1.0,), (1.0,), ("1",)), "weight must be a finite number from 0 up, not '1'"),
        (lambda: even(2, forward=[1.0, 1.0]), "forward must be a finite number from 0 up"),
        (lambda: timeline(None, even(2)), "give one such list a rank"),
        (lambda: blocked([Action("F", 0, 0)] * 2 + [0]), "give one such list a rank"),
        (lambda: blocked(4), "give one such list a rank"),
        *(
            (lambda look=look: look(step("1f1b", 4, 8, 1, even(4))), "rank must be a whole number from 0 to 3, not 4")
            for look in (lambda t: t.held(4), lambda t: t.lane(4), lambda t: t.window(4, 0.0, 1.0))
        ),
    ],
)
def test_nonsense_is_one_line(call, words):
    refused(call, words)
