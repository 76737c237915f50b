"""What must hold of the memory model whatever the numbers: growth, limits, conservation over ranks, refusals."""

import random
from dataclasses import replace
from math import isclose

import pytest
from cases import over, refused

from scaleout.memory import allocator
from scaleout.memory.accounts import KINDS, MOMENTS, Recipe, account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.states import STATES, rank_parameters, state_bytes, states
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS, Shape, flops, parameters, preset, total_parameters

GPT = Shape(4, 256, 8, 1000, max_seq=512)
LLAMA = Shape(
    4, 256, 8, 1000, kv_heads=4, ff=704, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)


def recipes(count: int = 40) -> list[Recipe]:
    """Random recipes of every kind, adapters and 8-bit included; the seed is fixed."""
    dice, out = random.Random(7), []
    while len(out) < count:
        chosen = {name: dice.choice(options) for name, options in CHOICES.items()}
        if chosen["precision"] != "bf16-master":
            chosen["main_gradients"] = "none"
        if chosen["attention"] == "flash" and chosen["precision"] == "fp32":
            chosen["attention"] = "sdpa"
        if chosen["operations"] in ("liger", "lit-gpt"):  # of Llama's blocks alone
            chosen["operations"] = "transformers"
        if chosen["checkpointing"] == "selective":
            chosen["operations"] = "book"
        if chosen["main_gradients"] != "none" or chosen["buckets"] != "none":
            chosen["gradients"] = "fresh" if chosen["gradients"] == "released" else chosen["gradients"]
        out.append(Recipe(**chosen, foreach=dice.random() < 0.5, dropout=dice.choice((0.0, 0.1))))
    return out


SHAPES, RECIPES = (GPT, LLAMA), recipes()
BOOKS = [replace(recipe, operations="book") for recipe in RECIPES]


@over(shape=SHAPES, recipe=RECIPES)
def test_every_moment_has_every_kind_and_none_is_negative(shape, recipe):
    held = account(shape, 2, 128, recipe)
    assert set(held.moments) <= set(MOMENTS) and {"forward", "loss", "head", "block", "optimizer"} <= set(held.moments)
    for kinds in held.moments.values():
        assert tuple(kinds) == KINDS
        assert all(isinstance(n, int) and n >= 0 for n in kinds.values())
    assert held.peak_bytes == max(sum(kinds.values()) for kinds in held.moments.values())
    assert held.peak == held.moments[held.peak_moment] and set(held.states) == set(STATES)


@over(shape=SHAPES, recipe=RECIPES)
def test_the_walk_ends_with_the_states_and_the_batch(shape, recipe):
    """Conservation: all that was allocated is freed, but for states, gradients that are not released, and tokens."""
    from scaleout.memory.walk import walk

    held = states(shape, recipe, Layout())
    held["gradients"] *= recipe.gradients != "released"
    z = Sizes(shape, 2, 128, recipe, Layout())
    end = walk(z, held).held
    assert end == {**dict.fromkeys(KINDS, 0), **held, "activations": z.batch_bytes} and z.batch_bytes >= 16 * 2 * 128


@over(shape=SHAPES, recipe=RECIPES)
def test_what_rests_is_there_all_the_time_and_copies_come_on_top(shape, recipe):
    held = account(shape, 2, 128, recipe)
    assert tuple(held.rest) == KINDS and not any(held.rest[kind] for kind in ("activations", "logits", "temporaries"))
    for moment, kinds in held.moments.items():
        assert all(kinds[kind] >= size for kind, size in held.rest.items() if kind != "gradients")
        assert held.copies(moment) == kinds["weights"] - held.rest["weights"] >= 0
    assert held.copies("optimizer") == 0
    kept = recipe.keeps_gradients or recipe.buckets == "beside"
    assert bool(held.rest["gradients"]) is kept and held.rest["gradients"] <= held.states["gradients"]


@pytest.mark.parametrize("shape", SHAPES)
def test_autocast_copies_two_bytes_of_every_matrix(shape):
    matrices = sum(parameters(shape)[part] for part in ("attention", "mlp")) + shape.hidden * shape.vocab
    biases = sum(b for _, b in Sizes(shape, 1, 8, Recipe(), Layout()).matrices.values()) * shape.layers * shape.bias
    assert account(shape, 1, 8).copies("loss") == 2 * (matrices - biases)
    assert not any(account(shape, 1, 8, Recipe(precision)).copies("loss") for precision in ("fp32", "bf16"))


@pytest.mark.parametrize("shape", SHAPES)
def test_zero_over_one_gpu_splits_nothing(shape):
    assert account(shape, 2, 64, layout=Layout(zero=3)) == account(shape, 2, 64)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_of_blocks_alike_the_first_or_the_last_is_the_fullest(checkpointing):
    """What an account of FSDP's may leave out: whole gradients grow, or activations shrink, from block to block."""
    given = replace(LLAMA, layers=24), 2, 64, Recipe("fp32", checkpointing=checkpointing), Sharding(8)
    every = fsdp_account(*given)
    assert every.peak_bytes == max(one.bytes for one in every.moments) and len(every.ends) < len(every.moments)
    for phase in ("forward", "loss", "backward", "update"):
        most = [max(one.bytes for one in held if one.phase == phase) for held in (every.ends, every.moments)]
        assert most[0] == most[1], phase
    there = account(*given[:3], given[3], Layout(dp=8, zero=3))
    gathered = max(every.moments, key=lambda one: one.bytes if one.phase == "forward" else 0).held["gathered"]
    assert there.copies("forward") == gathered


@over(shape=SHAPES, recipe=RECIPES)
def test_the_peak_grows_with_all_that_makes_it(shape, recipe):
    base = account(shape, 2, 128, recipe).peak_bytes
    assert account(shape, 3, 128, recipe).peak_bytes >= base
    assert account(shape, 2, 192, recipe).peak_bytes >= base
    assert account(replace(shape, layers=5), 2, 128, recipe).peak_bytes > base
    assert account(replace(shape, vocab=1100), 2, 128, recipe).peak_bytes > base
    assert account(replace(shape, ff=shape.h_ff + 64), 2, 128, recipe).peak_bytes > base


@over(shape=SHAPES, recipe=BOOKS)
def test_recomputing_more_keeps_less(shape, recipe):
    kept = [sum(block_kept(Sizes(shape, 2, 128, recipe, Layout()), how).values()) for how in CHOICES["checkpointing"]]
    assert kept[0] >= kept[1] > kept[2] > 0


@over(shape=SHAPES, recipe=RECIPES)
def test_gradients_that_are_kept_are_there_at_every_moment(shape, recipe):
    fresh, kept = (account(shape, 2, 128, replace(recipe, gradients=how)) for how in ("fresh", "kept"))
    assert kept.peak_bytes >= fresh.peak_bytes
    assert {kinds["gradients"] for kinds in kept.moments.values()} == {kept.states["gradients"]}


@over(shape=SHAPES, recipe=BOOKS)
def test_activations_are_linear_in_the_batch(shape, recipe):
    one, two, three = (sum(block_kept(Sizes(shape, b, 128, recipe, Layout()), "none").values()) for b in (1, 2, 3))
    assert three - two == two - one > 0


@pytest.mark.parametrize("attention", ["sdpa", "naive"])
def test_naive_attention_is_quadratic_in_the_sequence(attention):
    kept = [
        sum(block_kept(Sizes(LLAMA, 1, s, Recipe(attention=attention), Layout()), "none").values())
        for s in (1024, 2048, 4096)
    ]
    second = (kept[2] - kept[1]) / (kept[1] - kept[0])
    assert second == 2 if attention == "sdpa" else 2 < second < 4


# --- ranks ---------------------------------------------------------------------------------------------------


@over(shape=SHAPES, recipe=RECIPES, stage=(0, 1, 2, 3))
def test_one_rank_shards_nothing(shape, recipe, stage):
    assert states(shape, recipe, Layout(zero=stage)) == states(shape, recipe, Layout())


@over(shape=SHAPES, recipe=RECIPES, dp=(2, 4, 64))
def test_zero_shards_add_up_to_the_whole(shape, recipe, dp):
    """What N ranks hold of a sharded state is one whole, rounded up on each rank; of a copied one it is N."""
    whole = states(shape, recipe, Layout())
    for stage in range(4):
        part = states(shape, recipe, Layout(dp=dp, zero=stage))
        for state, first in (("weights", 3), ("master", 1), ("optimizer", 1)):
            if stage >= first:
                assert whole[state] <= dp * part[state] < whole[state] + 2 * dp + dp
            else:
                assert part[state] == whole[state]
        previous = states(shape, recipe, Layout(dp=dp, zero=max(0, stage - 1)))
        assert sum(part.values()) <= sum(previous.values())


@over(shape=SHAPES, tp=(1, 2, 4), pp=(1, 2, 4))
def test_model_parallel_ranks_hold_the_model(shape, tp, pp):
    """Summed over ranks: every matrix once; norms, position table and the biases of split inputs once a tensor rank;
    a tied table once more where first and last stage differ."""
    found = tp * sum(rank_parameters(shape, Layout(tp=tp, pp=pp), stage) for stage in range(pp))
    part = parameters(shape)
    copied = part["norms"] + part["positions"] + (2 * shape.layers * shape.hidden if shape.bias else 0)
    tied = part["tokens"] if shape.tied_head and pp > 1 else 0
    assert found == total_parameters(shape) + (tp - 1) * copied + tied


@over(shape=SHAPES, recipe=BOOKS)
def test_sequence_parallel_divides_what_tensor_parallel_leaves(shape, recipe):
    whole, tensor, both = (
        sum(block_kept(Sizes(shape, 2, 128, recipe, layout), "none").values())
        for layout in (Layout(), Layout(tp=4), Layout(tp=4, sequence_parallel=True))
    )
    casts = (2 + shape.gated_mlp) * Sizes(shape, 2, 128, recipe, Layout()).y if recipe.autocast else 0
    assert whole > tensor > both >= (whole - casts) / 4  # what is gathered is cast once, and not for each matrix


@over(shape=SHAPES)
def test_first_pipeline_stage_keeps_the_activations_of_all_layers(shape):
    """p micro-batches of L/p layers (arXiv 2205.05198, section 4.2.3), less what the last stage alone has."""
    plain = Recipe(precision="bf16", attention="sdpa")
    one, four = (account(shape, 2, 128, plain, Layout(pp=p)) for p in (1, 4))
    z = Sizes(shape, 2, 128, plain, Layout())
    layers = shape.layers * sum(block_kept(z, "none").values())
    assert layers <= four.moments["forward"]["activations"] <= one.moments["forward"]["activations"]


@over(shape=SHAPES)
def test_flops_backward_is_twice_forward_and_recompute_is_in_between(shape):
    none, some, full = (flops(shape, 2, 128, how) for how in CHOICES["checkpointing"])
    assert none["backward"] == 2 * none["forward"] and none["recompute"] == 0
    assert 0 < some["recompute"] < full["recompute"] < full["forward"]


def test_flops_of_a_long_model_tend_to_6_a_parameter_and_token():
    """Kaplan et al. 2020, arXiv 2001.08361: 6 N D, attention and embedding aside."""
    shape = PRESETS["llama-3-405b"]
    spent = flops(shape, 1, 128)
    exact = 6 * 128 * (total_parameters(shape) - parameters(shape)["tokens"])
    assert isclose(spent["forward"] + spent["backward"], exact, rel_tol=0.005)


# --- the band of GPU effects ----------------------------------------------------------------------------------


def test_the_band_is_above_the_account_and_names_its_parts():
    low, high = allocator.band(10**10, 500)
    assert 10**10 < low < high < 1.5 * 10**10
    found = allocator.effects(10**10, 500)
    assert [effect.name for effect in found] == ["rounding", "fragments", "workspaces", "context"]
    assert all(0 <= effect.low <= effect.high and effect.why for effect in found)
    assert high == 10**10 + sum(effect.high for effect in found)


def test_the_band_is_never_in_the_account():
    """An empty model has no rounding and no context in its account: bytes are sums of tensors alone."""
    small = account(Shape(1, 2, 1, 2, max_seq=1), 1, 1, Recipe("fp32", "sgd"))
    assert small.peak_bytes < 5_000 < allocator.band(small.peak_bytes)[0]


# --- refusals -------------------------------------------------------------------------------------------------

REFUSED = [
    (lambda: Shape(0, 8, 2, 10), "layers must be a whole number of at least 1, not 0"),
    (lambda: Shape(2, 8.0, 2, 10), "hidden must be a whole number"),
    (lambda: Shape(2, 8, 3, 10), "3 heads do not divide hidden size 8"),
    (lambda: Shape(2, 8, 4, 10, kv_heads=3), "3 key-value heads do not divide 4 heads"),
    (lambda: Shape(2, 8, 2, True), "vocab must be a whole number"),
    (lambda: Shape(2, 8, 2, 10, norm="batch"), "norm must be layernorm or rmsnorm"),
    (lambda: Shape(2, 8, 2, 10, positions="none"), "positions must be learned or rotary"),
    (lambda: Shape(2, 6, 2, 10, positions="rotary"), "head_dim must be even, not 3"),
    (lambda: preset("gpt-5"), "model 'gpt-5' is unknown: use one of gpt2"),
    (lambda: flops(GPT, 1, 1, "some"), "checkpointing must be none, selective or full"),
    (lambda: flops(GPT, float("nan"), 1), "batch must be a whole number of at least 1, not nan"),
    (lambda: Layout(dp=0), "dp must be a whole number of at least 1, not 0"),
    (lambda: Layout(zero=4), "zero must be 0, 1, 2 or 3, not 4"),
    (lambda: Recipe(precision="fp8"), "precision must be one of fp32, autocast-bf16, bf16-master, bf16, not 'fp8'"),
    (lambda: Recipe(precision=["fp32"]), "precision must be one of"),
    (lambda: Recipe(foreach=1), "foreach must be True or False, not 1"),
    (lambda: Recipe(dropout=float("nan")), "dropout must be a number from 0 up to but not including 1, not nan"),
    (lambda: Recipe(dropout=1), "dropout must be a number from 0"),
    (lambda: Recipe(adapter="lora", adapter_rank=0), "adapter_rank must be a whole number of at least 1, not 0"),
    (lambda: Recipe(adapter="lora", adapter_targets="q+w"), "adapter_targets must be all, attention, mlp or of q+k"),
    (lambda: Recipe(adapter="lora", adapter_targets=7), "adapter_targets must be all, attention, mlp"),
    (lambda: Recipe(adapter_dropout=1), "adapter_dropout must be a number from 0 up to but not including 1, not 1"),
    (lambda: Recipe(paged=True, optimizer="sgd"), "paged states are bitsandbytes': not with optimizer sgd"),
    (lambda: Recipe(fused_update=True, optimizer="lion"), "fused_update is AdamW's: not with optimizer lion"),
    (lambda: Recipe(gradients="released", buckets="views"), "released gradients leave nothing to accumulate"),
    (lambda: Recipe(main_gradients="instead"), "main_gradients need precision bf16-master, not autocast-bf16"),
    (lambda: account(GPT, 0, 1), "batch must be a whole number of at least 1, not 0"),
    (lambda: account(GPT, 1, 10**9), "use at most 512"),
    (lambda: account(GPT, 1, 1, Recipe(), Layout(tp=3)), "tp 3 does not divide 8 heads: the nearest that works is 2"),
    (lambda: account(GPT, 1, 1, Recipe(), Layout(pp=3)), "pp 3 does not divide 4 layers: the nearest that works is 2"),
    (lambda: account(GPT, 1, 6, Recipe(), Layout(tp=4, sequence_parallel=True)), "does not divide 6 tokens"),
    (lambda: Layout(gather_again=1), "gather_again must be True or False, not 1"),
    (lambda: account(Shape(2, 24, 6, 10, kv_heads=2, max_seq=8), 1, 1, Recipe(), Layout(tp=3)), "divide one another"),
    (lambda: state_bytes(-1, Recipe(), Layout()), "parameters must be a whole number of at least 0, not -1"),
    (lambda: allocator.band(-1), "peak_bytes must be a whole number of at least 0, not -1"),
    (lambda: allocator.band(1, 1.5), "tensors must be a whole number of at least 0, not 1.5"),
    (lambda: account("gpt2", 1, 1), "shape must be a Shape"),
    (lambda: account(GPT, 1, 1, "fp32"), "recipe must be a Recipe"),
    (lambda: account(GPT, 1, 1, Recipe(), 8), "layout must be a Layout"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_bad_input_is_refused_in_one_line(call, says):
    refused(call, says)


def test_huge_sizes_are_computed_at_once():
    held = account(PRESETS["zero-1t"], 10**6, 2048, Recipe(attention="naive"), Layout(dp=10**6, zero=3))
    assert held.peak_bytes > 10**15
