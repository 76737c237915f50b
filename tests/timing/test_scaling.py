"""Efficiency of a scaling curve, by seconds and by tokens per second."""

import pytest
from cases import refused

from scaleout.timing.scaling import efficiency, strong_efficiency, weak_efficiency


def test_efficiency_is_relative_to_the_fewest_ranks():
    assert strong_efficiency({1: 8.0, 2: 4.0, 4: 4.0}) == {1: 1.0, 2: 1.0, 4: 0.5}
    assert weak_efficiency({4: 6.0, 2: 3.0}) == {2: 1.0, 4: 0.5}
    assert strong_efficiency({2: 3.0, 8: 1.0})[8] == pytest.approx(0.75)


def test_tokens_a_second_give_what_seconds_give():
    seconds, batch = {2: 3.0, 4: 2.0, 8: 1.5}, 16 * 128
    strong = efficiency({ranks: batch / t for ranks, t in seconds.items()})
    weak = efficiency({ranks: ranks * batch / t for ranks, t in seconds.items()})
    assert strong == pytest.approx(strong_efficiency(seconds))
    assert weak == pytest.approx(weak_efficiency(seconds))


@pytest.mark.parametrize("wrong", [{}, {0: 1.0}, {1: 0.0}, {1: float("inf")}])
def test_bad_input_is_one_line(wrong):
    refused(lambda: strong_efficiency(wrong), "seconds above 0 by rank count")
    refused(lambda: weak_efficiency(wrong), "seconds above 0 by rank count")
    refused(lambda: efficiency(wrong), "tokens per second above 0 by number of ranks")
