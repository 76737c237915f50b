"""A second run is where the first one was: its random numbers, autocast, and the numbers that others draw."""

import pytest
import torch
from torch import nn

from scaleout.parallel import recompute


def layer(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 16))


def gradients(run, again, cast=None):
    """Of one layer, its backward outside autocast; then the next random number. Another layer draws between the two."""
    torch.manual_seed(1)
    x = torch.randn(4, 8, 16, requires_grad=True)
    with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
        out = recompute.checkpoint(run, x) if again else run(x)
    torch.rand(3)
    out.float().square().sum().backward()
    found = [x.grad, *(p.grad for p in run.parameters())]
    return found, torch.rand(())


@pytest.mark.parametrize("cast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_and_what_others_draw_are_as_without_a_second_run(dropout, cast):
    (wanted, drawn), (found, then) = (gradients(layer(dropout), again, cast) for again in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and drawn == then
    if dropout:
        assert (found[0] != 0).any() and not torch.equal(found[0], gradients(layer(0.0), True, cast)[0][0])


def test_a_run_that_only_draws_repeats_and_one_that_counts_does_not():
    calls = []

    def counting(x):
        calls.append(1)
        return x + len(calls)

    x = torch.randn(4, 16)
    assert recompute.repeats(layer(0.5), x) and not recompute.repeats(counting, x)


def test_where_nothing_is_recorded_an_input_without_gradient_is_taken():
    x = torch.randn(4, 16)
    with torch.no_grad():
        assert torch.equal(recompute.checkpoint(layer(), x), layer()(x))
    with pytest.raises(ValueError, match="the input needs no gradient"):
        recompute.checkpoint(layer(), x)
