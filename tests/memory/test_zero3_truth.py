"""ZeRO's stage 3 has one answer: `memory`'s account and `fsdp`'s give the same bytes for the same question."""

from itertools import product

import pytest

from scaleout import views
from scaleout.measure.fsdp_memory import measure_fsdp
from scaleout.memory.accounts import KINDS, MOMENTS, Layout, Recipe, _stage, account
from scaleout.memory.fsdp import fsdp_account
from scaleout.spec.sharding import Sharding
from scaleout.spec.slices import block_parameters
from scaleout.spec.transformer import PRESETS, Shape

MODELS = ("gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-3-70b")
# By the recipe's precision: what is stored, what is computed in, and what is reduced in, as wide as its gradients.
HOW = {"fp32": ("fp32", "fp32", "fp32"), "autocast-bf16": ("fp32", "bf16", "fp32"),
       "bf16-master": ("fp32", "bf16", "bf16"), "bf16": ("bf16", "fp32", "fp32")}  # fmt: skip


@pytest.mark.parametrize(("ranks", "seq"), [(2, 512), (8, 1024), (64, 1024), (512, 512)])
@pytest.mark.parametrize("model", MODELS)
def test_both_chapters_say_the_same(model, ranks, seq):
    shape = PRESETS[model]
    for precision, checkpointing in product(HOW, ("none", "selective", "full")):
        stored, parameter, reduce = HOW[precision]
        sharding = Sharding(ranks, parameter=parameter, reduce=reduce)
        there = fsdp_account(shape, 2, seq, Recipe(stored, checkpointing=checkpointing), sharding)
        here = account(shape, 2, seq, Recipe(precision, checkpointing=checkpointing), Layout(dp=ranks, zero=3))
        assert here.peak_bytes == there.peak_bytes and here.states == there.states
        assert tuple(here.moments) == MOMENTS and all(tuple(kinds) == KINDS for kinds in here.moments.values())


def test_the_70b_question():
    """Llama 3 70B, one sequence of 2,048 tokens, full checkpointing: 25 to 26.5 GB and 8 to 13.5 were said before."""
    shape, recipe = PRESETS["llama-3-70b"], Recipe(checkpointing="full")
    found = [account(shape, 1, 2048, recipe, Layout(dp=n, zero=3)).peak_bytes / 1e9 for n in (64, 512)]
    assert [round(peak, 1) for peak in found] == [32.6, 19.4]


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_it_is_what_torch_allocates(checkpointing):
    shape = Shape(6, 256, 4, 4096, max_seq=256)
    recipe = Recipe("fp32", checkpointing=checkpointing)
    truth = measure_fsdp(shape, 4, 256, recipe, Sharding(ranks=64), fake=False).peak_bytes
    assert account(shape, 4, 256, recipe, Layout(dp=64, zero=3)).peak_bytes == pytest.approx(truth, rel=0.02)


def test_the_widgets_agree():
    """One step on 64 GPUs: the memory widget at stage 3 and the FSDP widget with its opening units."""
    given = {"model": "llama-3-8b", "batch": 2, "seq": "4096", "checkpointing": "full"}
    here = views.render("memory", {**given, "gpus": 64, "zero": "3"})["values"]
    there = views.render("fsdp", {**given, "ranks": "64"})["values"]
    assert here["peak_gib"] == pytest.approx(there["peak_gib"]) and here["fits"] == there["fits"]


@pytest.mark.parametrize("recipe", [Recipe("bf16"), Recipe("bf16", adapter="lora")], ids=["all", "lora"])
def test_beside_other_degrees_the_units_are_there_too(recipe):
    """A tensor-parallel rank gathers its part of a block; an adapter's rank the frozen one."""
    shape = PRESETS["llama-2-7b"]
    layout = Layout(dp=8, tp=2, zero=3)
    held = account(shape, 1, 512, recipe, layout)
    units = 2 * (block_parameters(shape, 2) * 2 + shape.vocab * shape.hidden + shape.hidden)
    assert held.moments["forward"]["weights"] == held.states["weights"] + units
    assert held.moments["optimizer"]["weights"] == held.states["weights"]


@pytest.mark.parametrize("model", MODELS)
def test_the_unit_rule_is_near_the_walk(model):
    """Where both can answer, the rule that prices units by their sizes is within 5% of the walk."""
    given = (PRESETS[model], 1, 1024, Recipe("bf16"), Layout(dp=64, zero=3))
    assert _stage(*given, 0).peak_bytes == pytest.approx(account(*given).peak_bytes, rel=0.05)
