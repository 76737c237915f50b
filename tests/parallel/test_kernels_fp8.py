"""FP8 in attention, number by number, and linear layers in FP8 against the emulated ones of `low`."""

import pytest
import torch
from torch import nn

from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded
from scaleout.parallel import kernels, kernels_fp8
from scaleout.parallel.low import LowLinear
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

CHANCE = torch.Generator().manual_seed(5)


def draw(*shape):
    return torch.randn(*shape, generator=CHANCE)


@pytest.mark.parametrize("size", [1, 2, 8, 128])
def test_a_rotation_is_orthogonal_and_spreads_one_number_over_all(size):
    turn = kernels_fp8.rotation(size, seed=1)
    assert torch.allclose(turn @ turn.T, torch.eye(size), atol=1e-6)
    assert torch.allclose(turn.abs(), torch.full((size, size), size**-0.5))


@pytest.mark.parametrize("size", [0, 3, 96])
def test_a_size_that_is_no_power_of_two_is_refused(size):
    with pytest.raises(ValueError, match=f"not {size}: use 64, 128 or 256"):
        kernels_fp8.hadamard(size)


def test_a_rotation_leaves_the_scores_and_takes_the_outlier():
    q, k = draw(1, 2, 32, 64), draw(1, 2, 32, 64)
    q[0, 0, 3, 5] = 40.0
    turn = kernels_fp8.rotation(64)
    assert torch.allclose((q @ turn) @ (k @ turn).mT, q @ k.mT, atol=1e-4)
    assert q.abs().max() == 40 and (q @ turn).abs().max() < 12


@pytest.mark.parametrize("rows", [None, 4, 8])
def test_numbers_are_rounded_as_numerics_rounds_them(rows):
    """Each block over its scale, the largest |x| over 448, to the nearest e4m3."""
    x = draw(1, 2, 8, 4) * torch.tensor([1.0, 30.0])[:, None, None]
    found, f = kernels_fp8.quantized(x, rows), FORMATS["e4m3"]
    blocks = [x] if rows is None else list(x.unflatten(-2, (-1, rows)).flatten(0, 2))
    backs = [found] if rows is None else list(found.unflatten(-2, (-1, rows)).flatten(0, 2))
    for block, back in zip(blocks, backs, strict=True):
        scale = block.abs().max() / 448
        wanted = [rounded(value, f) for value in (block / scale).flatten().tolist()]
        assert torch.allclose(back.flatten(), torch.tensor(wanted) * scale, rtol=1e-6)
        assert back.abs().max() == pytest.approx(block.abs().max().item(), rel=1e-6), "the largest one fits"


def test_attention_that_rounds_nothing_is_attention():
    q, k, v = (draw(1, 2, 32, 16) for _ in range(3))
    for turn in (None, kernels_fp8.rotation(16)):
        found = kernels_fp8.attention(q, k, v, 8, turn, low=())
        assert torch.allclose(found, kernels.naive(q, k, v), atol=1e-5)


def test_in_half_precision_stored_scores_cost_more():
    q, k, v = (4 * draw(1, 2, 64, 32) for _ in range(3))
    right = kernels.naive(q.double(), k.double(), v.double())
    stored, fused = ((kernels_fp8.in_half(q, k, v, f) - right).square().mean().sqrt() for f in (False, True))
    assert fused < stored < 0.05


# --- linear layers ----------------------------------------------------------------------------------------------------


def test_a_linear_layer_in_fp8_is_the_emulated_one():
    """Forward and both gradients, e4m3 and e5m2 with a scale per tensor: equal but for the 16 bits of the results."""
    layer, x, upstream = nn.Linear(32, 48), draw(16, 32), draw(16, 48).bfloat16()
    results = []
    for low in (kernels_fp8.Fp8Linear(layer), LowLinear(layer, "fp8-tensor", "fp8-tensor-e5m2")):
        layer.zero_grad()
        x16 = x.bfloat16().requires_grad_()
        if isinstance(low, LowLinear):  # on the same 16-bit weights
            low.weight = nn.Parameter(layer.weight.detach().bfloat16().float())
            y = low(x16.float())
        else:
            y = low(x16)
        y.backward(upstream.to(y.dtype))
        results.append((y, x16.grad, low.weight.grad))
    for found, wanted in zip(*results, strict=True):
        assert (found.float() - wanted.float()).abs().max() < 2.0**-7 * wanted.float().abs().max()


def test_an_fp8_layer_is_near_and_not_equal_to_the_layer_it_replaces():
    layer, x = nn.Linear(64, 32), draw(16, 64).bfloat16()
    right = layer(x.float())
    error = (kernels_fp8.Fp8Linear(layer)(x) - right).norm() / right.norm()
    assert 0.01 < error < 0.06  # e4m3 has steps of an eighth: 3.6% at random


def test_linear_layers_are_converted_where_an_fp8_unit_takes_their_sizes():
    block = Transformer(Shape(1, 32, 2, 64, max_seq=16)).blocks[0]
    assert kernels_fp8.convert(block) == 6
    assert sum(isinstance(m, kernels_fp8.Fp8Linear) for m in block.modules()) == 6
    assert not any(isinstance(m, nn.Linear) for m in block.modules())
    assert kernels_fp8.convert(nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 40))) == 0, "24 and 40 are no multiples"


def test_a_block_in_fp8_trains_in_16_bits():
    torch.manual_seed(0)
    block = Transformer(Shape(1, 32, 2, 64, max_seq=16)).blocks[0]
    kernels_fp8.convert(block)
    with torch.autocast("cpu", torch.bfloat16):
        block(draw(2, 16, 32)).float().square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in block.parameters())
    assert block.mlp.up.weight.grad.abs().max() > 0


def test_a_block_in_fp8_is_one_graph():
    """A graph that breaks inside a block would silently run its casts unfused."""
    torch.manual_seed(0)
    block = Transformer(Shape(1, 32, 2, 64, max_seq=16)).blocks[0]
    kernels_fp8.convert(block)
    x = draw(2, 16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        plain, compiled = block(x), torch.compile(block, backend="eager", fullgraph=True)(x)
    assert (plain - compiled).abs().max() < 0.02 * plain.abs().max()
