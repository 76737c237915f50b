"""What is compared of two runs, and when: gradients while the weights are still the same."""

import math

import pytest
import torch

from scaleout.parallel import parity


class Counter:
    """A way whose gradient is its weight times a step, and whose update moves the weight by it."""

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
    losses, gradients, weights = parity.trained(Counter(), [3, 5])
    assert (losses, gradients["w"].item(), weights["w"].item()) == ([3.0, 5.0], 6.0, 16.0)
    assert parity.trained(Counter(), [3, 5], -1)[1]["w"].item() == -6.0


def test_an_error_is_of_a_tensors_largest_entry_but_of_no_less_than_a_thousandth_of_all():
    wanted = {"a": torch.tensor([4.0, 1.0]), "bias": torch.tensor([0.0])}
    assert parity.relative_error({"a": torch.tensor([4.0, 1.5]), "bias": torch.tensor([0.0])}, wanted) == 0.125
    near = {"a": torch.tensor([4.0, 1.0]), "bias": torch.tensor([4e-6])}
    assert parity.relative_error(near, wanted) == pytest.approx(1e-3)
    assert parity.relative_error({"a": wanted["a"]}, wanted) == math.inf
    assert parity.relative_error(wanted | {"bias": torch.tensor([math.nan])}, wanted) == math.inf
