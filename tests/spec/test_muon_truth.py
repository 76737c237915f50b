"""What `spec.muon` says of torch.optim.Muon, asked of torch."""

import pytest
import torch
from cases import refused
from torch.utils.flop_counter import FlopCounterMode

from scaleout.memory.zero import muon_bytes
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.muon import matrices, matrix_parameters, newton_schulz_flops, step_flops
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

TINY = Shape(2, 32, 4, 64, kv_heads=2, ff=96, gated_mlp=True, max_seq=16)


def stepped(*sizes):
    """(weights after a step from zero, state by weight, FLOPs) of torch's Muon on the same random gradients."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    for one in weights:
        one.grad = torch.randn(one.shape)
    optimizer = torch.optim.Muon(weights)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    return weights, optimizer.state, counter.get_total_flops()


@pytest.mark.parametrize("size", [(32, 128), (128, 32), (64, 64), (3, 50)])
def test_flops_are_what_torch_multiplies(size):
    assert stepped(size)[2] == newton_schulz_flops(*size)


def test_a_model_is_split_in_two():
    """Muon takes every matrix of the blocks and refuses a bias; each has one state of its size, AdamW's have two."""
    model = Transformer(TINY)
    named = dict(model.named_parameters())
    assert {name: tuple(named[name].shape) for name in matrices(TINY)} == matrices(TINY)
    taken = [name for name, one in named.items() if name.startswith("blocks.") and one.ndim == 2]
    assert taken == list(matrices(TINY))
    _, state, flops = stepped(*matrices(TINY).values())
    kept = sum(tensor.numel() for one in state.values() for tensor in one.values())
    assert kept == matrix_parameters(TINY) and flops == step_flops(TINY)
    held, rest = muon_bytes(TINY, Recipe("fp32"), Layout()), total_parameters(TINY) - matrix_parameters(TINY)
    assert held == {"momentum": 4 * (kept + rest), "variance": 4 * rest}
    with pytest.raises(ValueError, match="2D"):
        torch.optim.Muon([torch.nn.Parameter(torch.zeros(8))])


def test_a_shard_is_not_made_orthogonal_as_the_whole_is():
    """Half of the rows alone: a step as long as it should be, in a direction that is off by a fifth and more."""
    whole = stepped((64, 128))[0][0].detach()[:32]
    shard = torch.nn.Parameter(torch.zeros(32, 128))
    torch.manual_seed(0)
    shard.grad = torch.randn(64, 128)[:32]
    torch.optim.Muon([shard]).step()
    found = shard.detach()
    assert float(found.norm() / whole.norm()) == pytest.approx(1, abs=0.1)
    assert float((found - whole).norm() / whole.norm()) > 0.2


def test_what_it_costs_in_tokens():
    """Making all matrices of GPT-2 orthogonal once takes the FLOPs of 25/6 h tokens, forward and backward; of Llama 2
    7B those of 17,600: whether that is little depends on how many tokens a rank has in a step."""
    for name, tokens in (("gpt2", 25 / 6 * 768), ("gpt2-xl", 25 / 6 * 1600), ("llama-2-7b", 17_615)):
        shape = PRESETS[name]
        assert step_flops(shape) / (6 * matrix_parameters(shape)) == pytest.approx(tokens, rel=1e-4)
    assert matrix_parameters(PRESETS["llama-2-7b"]) / total_parameters(PRESETS["llama-2-7b"]) == pytest.approx(
        0.961, abs=5e-4
    )


@pytest.mark.parametrize("given", [(0, 4), (4, 2.0), (4, 4, 0)])
def test_refusals_are_one_line(given):
    refused(lambda: newton_schulz_flops(*given), "must be a whole number of at least 1")
