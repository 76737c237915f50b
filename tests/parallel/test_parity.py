"""What is compared of two runs, and when: gradients while the weights are still the same."""

import math

import pytest
import torch

from scaleout.parallel import parity


class Counter:
    """A way whose gradient is its weight times per step, and whose update moves the weight by it."""

    def __init__(self):
        self.weight, self.gradient = torch.tensor([2.0]), None

    def gradients(self, step, sign=1):
        self.gradient = sign * step * self.weight
        return float(step)

    def update(self):
        self.weight = self.weight - self.gradient
        self.gradient = None

    def whole(self, gradients=False):
        return {"w": (self.gradient if gradients else self.weight).clone()}


def test_gradients_are_the_first_steps_and_weights_the_lasts():
    result = parity.trained(Counter(), [3, 5])
    assert (result["losses"], result["gradients"], result["weights"]) == ([3.0, 5.0], {"w": 6.0}, {"w": 16.0})
    assert parity.trained(Counter(), [3, 5], -1)["gradients"]["w"].item() == -6.0


class Ranks:
    """Two ranks, of which the other found other numbers: `others` by what this one has."""

    def __init__(self, others):
        self.others = others

    def gathered(self, value):
        return [value, self.others]

    def largest(self, value):
        return value

    def mean(self, value):
        return (value + self.others[value]) / 2


def test_losses_are_compared_by_their_mean_or_by_each_rank_and_tensors_by_each():
    wanted = {"losses": [2.0, 1.0], "weights": {"w": torch.tensor([4.0]), "v": torch.tensor([4.0])}}
    halves = {"losses": [1.0, 0.75], "weights": {"w": torch.tensor([5.0]), "v": torch.tensor([4.0])}}
    assert parity.errors(Ranks({1.0: 3.0, 0.75: 1.0}), halves, wanted) == {"losses": 0.125, "weights": 0.25}
    whole = {"losses": [2.0, 1.5], "weights": {"w": torch.tensor([5.0])}}
    assert parity.errors(Ranks(["v"]), whole, wanted, shared=True) == {"losses": 0.5, "weights": 0.25}
    assert parity.errors(Ranks(["w"]), whole, wanted, shared=True)["weights"] == math.inf, "v is nowhere"


def test_an_error_is_of_a_tensors_largest_entry_but_of_no_less_than_a_thousandth_of_all():
    wanted = {"a": torch.tensor([4.0, 1.0]), "bias": torch.tensor([0.0])}
    assert parity.relative_error({"a": torch.tensor([4.0, 1.5]), "bias": torch.tensor([0.0])}, wanted) == 0.125
    near = {"a": torch.tensor([4.0, 1.0]), "bias": torch.tensor([4e-6])}
    assert parity.relative_error(near, wanted) == pytest.approx(1e-3)
    assert parity.relative_error({"a": wanted["a"]}, wanted) == math.inf
    assert parity.relative_error(wanted | {"bias": torch.tensor([math.nan])}, wanted) == math.inf
