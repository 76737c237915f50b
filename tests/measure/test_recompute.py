"""What labs/recompute.py predicts for this machine, by parts that are known beforehand."""

from types import SimpleNamespace

import pytest
import torch
from cases import over
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from scaleout.measure import recompute as measure
from scaleout.measure.recompute_faults import RATE, Routed
from scaleout.memory import recompute as memory
from scaleout.memory.activations import Sizes
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

BATCH, SEQ = 4, 64
CPU = SimpleNamespace(device=torch.device("cpu"))


def options(via="hand", layers=2):
    """A job whose peak is in the backward of a block."""
    shape, recipe = Shape(layers, 16, 4, 16, max_seq=SEQ), Recipe("fp32", optimizer="sgd", foreach=False)
    return SimpleNamespace(
        shape=shape,
        recipe=recipe,
        sizes=Sizes(shape, BATCH, SEQ, recipe, Layout()),
        lr=0.1,
        seed=0,
        micro_batch=BATCH,
        seq=SEQ,
        via=via,
    )


@pytest.mark.parametrize("name", ["none", "full", "core"])
def test_by_hand_a_block_s_output_stands_beside_its_backward_and_is_predicted(name):
    o = options()
    z = o.sizes
    policy = {"none": memory.none(z), "full": memory.full(z), "core": memory.selective(z, memory.core(z))}[name]
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long)
    hand, torchs = (measure.peak(measure.make(CPU, o, policy, via), (tokens, tokens)) for via in ("hand", "torch"))
    said, torch_said = (measure.predicted(o, policy, via)["peak"] for via in ("hand", "torch"))
    assert hand - torchs == said - torch_said == (0 if name == "none" else z.x)
    assert said == pytest.approx(hand, rel=0.01)


@over(batch=[1, 3], heads=[1, 2], queries=[4, 6], keys=[4, 10], width=[8])
def test_fused_attention_has_the_flops_of_torch_s_own_count(batch, heads, queries, keys, width):
    q, k = torch.empty(batch, heads, queries, width), torch.empty(batch, heads, keys, width)
    assert measure._fused(q.shape, k.shape, k.shape) == sdpa_flop_count(q.shape, k.shape, k.shape)
    assert measure._fused_backward(q.shape, q.shape, k.shape, k.shape) == sdpa_backward_flop_count(
        q.shape, q.shape, k.shape, k.shape
    )


def rounds(o, policies, forward, looked_at, first):
    """A Rounds after its steps, with seconds that are given."""
    found = object.__new__(measure.Rounds)
    found.o, found.policies, found.names = o, policies, list(policies)
    found.forward, found.looked_at = [9.0, *forward], [9.0, *looked_at]
    found.seconds = {name: [9.0, first] for name in policies}
    return found


@pytest.mark.parametrize("via", ["hand", "torch"])
def test_a_step_is_that_of_everything_kept_and_what_is_made_again(via):
    o = options(via)
    z = o.sizes
    core = memory.selective(z, memory.core(z))
    policies = {"all": memory.none(z), "inputs": memory.full(z), "core": core}
    found = rounds(o, policies, [3.0, 1.0, 2.0], [5.0, 5.0, 4.0], 20.0).predicted(warmup=1)
    products = {name: 2 * BATCH * SEQ * 16 * width for name, width in (("attention", 64), ("mlp", 128))}
    scores = 2 * 2 * BATCH * SEQ * SEQ * 16
    whole = sum(products.values()) + scores
    assert found["all"] == 20, "the median of the rounds behind the warm-up, and nothing beside it"
    last = products["mlp"] / 2  # which torch's early stop leaves out
    assert found["inputs"] == pytest.approx(20 + 2 * (1 - (via == "torch") * last / whole))
    again = scores + (via == "hand") * last
    assert found["core"] == pytest.approx(20 + 2 * again / whole + 2 * (5 - 2))
    slower = rounds(o, policies, [2.0], [1.0], 20.0).predicted(warmup=1)["core"]
    assert slower == pytest.approx(20 + 2 * again / whole), "looking at operations never makes up for work"


def test_a_router_s_bias_goes_down_for_whom_is_busy():
    layer = Routed(4, ragged=False, inside=False)
    layer.load = torch.tensor([5.0, 2.0, 1.0, 0.0])
    layer.balance()
    assert layer.bias.tolist() == pytest.approx([-RATE, 0.0, RATE, RATE]) and RATE > 0
