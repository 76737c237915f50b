"""What policies keep and repeat in torch, by hand and by torch.utils.checkpoint: bytes and FLOPs to the last one,
gradients to the last bit."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scaleout.measure import fsdp_memory
from scaleout.measure import recompute as measure
from scaleout.memory import recompute
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.memory.fsdp import fsdp_account
from scaleout.parallel import recompute_ways
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape

LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "kv_heads": 2}
SHAPES = {"gpt": Shape(2, 32, 4, 64, max_seq=16), "llama": Shape(2, 32, 4, 64, **LLAMA)}
CASES = [("gpt", "sdpa", 0.0), ("gpt", "naive", 0.1), ("llama", "sdpa", 0.1), ("llama", "naive", 0.0)]
MLP = {"gate", "up", "product", "GELU", "SiLU"}


def policies(z):
    own, products = recompute.names(z), {"q", "k", "v", "gate", "up", "middle", "attention"}
    return {
        "none": recompute.none(z),
        "full": recompute.full(z),
        "every second": recompute.every_kth(z, 2),
        "segments of two": recompute.segments(z, 2),
        "the core": recompute.selective(z, recompute.core(z)),
        "products kept": recompute.selective(z, own - products),
        "attention kept": recompute.selective(z, own - {"attention"}),
        "one block's MLP": recompute.Policy((own & MLP, frozenset())),
    }


def run(name, attention, dropout, policy, via, keepable, random=True):
    """(bytes, gradients, FLOPs) of a model under a policy."""
    torch.manual_seed(0)
    model = Transformer(SHAPES[name], attention, dropout)
    recompute_ways.apply(model, policy, keepable, via, random)
    x = torch.randn(2, 16, 32, requires_grad=True)
    return measure.kept_bytes(model, x), *measure.gradients(model, x)


@pytest.mark.parametrize(("name", "attention", "dropout"), CASES)
def test_bytes_flops_and_gradients(name, attention, dropout):
    z = Sizes(SHAPES[name], 2, 16, Recipe("fp32", attention=attention, dropout=dropout), Layout())
    keepable = frozenset(recompute.outputs(z))
    whole = run(name, attention, dropout, recompute.none(z), "torch", keepable)
    assert whole[0] == recompute.kept(z, recompute.none(z))
    for (words, policy), via in itertools.product(policies(z).items(), recompute_ways.VIAS):
        bytes_, gradients, flops = run(name, attention, dropout, policy, via, keepable)
        assert bytes_ == recompute.kept(z, replace(policy, outputs=True)), (words, via)
        assert flops - whole[2] == recompute.outputs_flops(z, policy, early_stop=via == "torch"), (words, via)
        assert measure.equal(gradients, whole[1]), (words, via)
        if (name, attention, dropout) == CASES[0]:  # where each tile is one operation's output
            assert bytes_ == recompute.kept(z, policy), words
            assert recompute.outputs_flops(z, policy) == recompute.flops(z, policy), words


@pytest.mark.parametrize(
    "recipe", [Recipe("fp32"), Recipe("fp32", attention="naive", dropout=0.1), Recipe("autocast-bf16")]
)
@pytest.mark.parametrize("name", SHAPES)
def test_the_peak_of_a_step_under_any_policy(name, recipe):
    torch.manual_seed(0)
    z, batch = Sizes(SHAPES[name], 2, 16, recipe, Layout()), torch.randint(64, (2, 2, 16))
    for words, policy in policies(z).items():
        o = SimpleNamespace(shape=z.shape, recipe=recipe, sizes=z, lr=1e-3, seed=0)
        training = measure.make(SimpleNamespace(device="cpu"), o, policy, "torch")
        found = measure.peak(training, batch)
        wanted = account(z.shape, 2, 16, recipe, policy=replace(policy, outputs=True)).peak_bytes
        assert found == pytest.approx(wanted, rel=2e-3), words  # AdamW's counters, a scalar for each tensor


@pytest.mark.parametrize("words", ["every second", "products kept"])
def test_the_peak_under_fsdp(words, monkeypatch):
    z, sharding = Sizes(SHAPES["llama"], 2, 16, Recipe("fp32"), Layout()), Sharding(4)
    policy = policies(z)[words]

    def made(*args):
        model = Transformer(*args)
        recompute_ways.apply(model, policy, frozenset(recompute.outputs(z)), "torch")
        return model

    monkeypatch.setattr(fsdp_memory, "Transformer", made)
    found = fsdp_memory.measure_fsdp(z.shape, 2, 16, z.recipe, sharding, fake=False).peak_bytes
    wanted = fsdp_account(z.shape, 2, 16, z.recipe, sharding, "cpu", replace(policy, outputs=True)).peak_bytes
    assert found == pytest.approx(wanted, rel=2e-3)


def test_accelerates_fsdp2_draws_other_numbers_in_the_second_run():
    """Version 1.15: fsdp2_apply_ac passes preserve_rng_state=False. Without dropout it is as good as torch's own."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_apply_ac

    for dropout in (0.0, 0.1):
        torch.manual_seed(0)
        model, x = Transformer(SHAPES["gpt"], "sdpa", dropout), torch.randn(2, 16, 32, requires_grad=True)
        right, _ = measure.gradients(model, x)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
            activation_checkpointing=True,
        )
        plugin.set_auto_wrap_policy(model)
        wrapped = fsdp2_apply_ac(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)
        assert measure.kept_bytes(wrapped, x) == 2 * x.nbytes, "each block keeps its input"
        assert measure.equal(measure.gradients(wrapped, x)[0], right) is (dropout == 0)


def test_other_random_numbers_in_the_second_run_give_other_gradients_and_say_nothing():
    z = Sizes(SHAPES["gpt"], 2, 16, Recipe("fp32", dropout=0.1), Layout())
    args = "gpt", "sdpa", 0.1, recompute.full(z)
    for via in recompute_ways.VIAS:
        right, wrong = (run(*args, via, frozenset(), random)[1] for random in (True, False))
        assert max(((a - b).norm() / b.norm()).item() for a, b in zip(wrong, right, strict=True)) > 0.1


def test_a_kept_dropout_shifts_the_numbers_of_those_behind_it():
    """Which is why `outputs` has none of them; torch's checkpoint restores the state once, at the start."""
    z = Sizes(SHAPES["gpt"], 2, 16, Recipe("fp32", attention="naive", dropout=0.1), Layout())
    policy = recompute.selective(z, recompute.names(z) - {"dropped scores"})
    right = run("gpt", "naive", 0.1, recompute.none(z), "torch", frozenset())[1]
    for via in recompute_ways.VIAS:
        wrong = run("gpt", "naive", 0.1, policy, via, frozenset({"dropped scores"}))[1]
        assert not measure.equal(wrong, right)


def test_refusals():
    z = Sizes(SHAPES["gpt"], 2, 16, Recipe("fp32"), Layout())
    with pytest.raises(ValueError, match="via must be one of hand, torch, not 'deepspeed'"):
        recompute_ways.apply(Transformer(SHAPES["gpt"]), recompute.full(z), frozenset(), "deepspeed")
    with pytest.raises(ValueError, match="the policy is of 1 blocks, and the model has 2"):
        recompute_ways.apply(Transformer(SHAPES["gpt"]), recompute.Policy((frozenset(),)), frozenset(), "hand")
    model = Transformer(SHAPES["gpt"])
    recompute_ways.apply(model, recompute.full(z), frozenset(), "hand")
    with pytest.raises(ValueError, match="the input needs no gradient, so the weights behind it would get none"):
        model.blocks[0](torch.randn(2, 16, 32))
