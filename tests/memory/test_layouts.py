"""The account beyond one device, against sums written out here: what each degree of a layout divides, and what not."""

from dataclasses import replace

import pytest

from scaleout.memory.accounts import Layout, Recipe, account
from scaleout.memory.activations import Sizes
from scaleout.memory.states import states
from scaleout.memory.walk import walk
from scaleout.spec.adapters import NF4_BYTES
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

# 4 layers, hidden 64, 8 heads of 8 with 2 key-value heads, MLP 160, no biases: sums are short enough to check by eye
SMALL = Shape(
    4, 64, 8, 1000, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
ATTENTION = 64 * 64 + 2 * 64 * 16 + 64 * 64
MLP = 3 * 64 * 160
NORMS = 2 * 64
TABLE = 1000 * 64
LLAMA = PRESETS["llama-2-7b"]


def whole(layout, recipe=None, shape=SMALL, batch=2, seq=128):
    return account(shape, batch, seq, recipe or Recipe("bf16-master"), layout)


def test_tensor_parallel_divides_matrices_and_tables_and_leaves_norms_whole():
    held = states(SMALL, Recipe("bf16-master"), Layout(tp=2))
    rank = 4 * ((ATTENTION + MLP) // 2 + NORMS) + 2 * TABLE // 2 + 64
    assert held == {"weights": 2 * rank, "master": 4 * rank, "gradients": 2 * rank, "optimizer": 8 * rank}


def test_more_ranks_than_key_value_heads_copy_a_head():
    held = states(SMALL, Recipe("bf16"), Layout(tp=8))
    keys_and_values = 2 * 64 * 8  # one head of 8 each, on every rank
    rank = 4 * (2 * 64 * 64 // 8 + keys_and_values + MLP // 8 + NORMS) + 2 * TABLE // 8 + 64
    assert held["weights"] == 2 * rank


@pytest.mark.parametrize("stage", [0, 1])
def test_a_pipeline_stage_has_its_layers_and_one_table(stage):
    held = states(SMALL, Recipe("bf16"), Layout(pp=2), stage)
    assert held["weights"] == 2 * (2 * (ATTENTION + MLP + NORMS) + TABLE + (64 if stage else 0))


@pytest.mark.parametrize(
    ("zero", "split"), [(0, ()), (1, ("master", "optimizer")), (2, ("master", "optimizer", "gradients"))]
)
def test_each_zero_stage_splits_one_more_state(zero, split):
    alone, shared = whole(Layout()).states, whole(Layout(dp=8, zero=zero)).states
    for kind, n in alone.items():
        assert shared[kind] == (n / 8 if kind in split else n), kind


def test_the_third_zero_stage_splits_everything_and_its_shards_are_the_master_copy():
    alone, shared = whole(Layout()).states, whole(Layout(dp=8, zero=3)).states
    assert sum(shared.values()) == sum(alone.values()) / 8 and shared["master"] == 0
    assert shared["weights"] == alone["master"] / 8 and shared["optimizer"] == alone["optimizer"] / 8


@pytest.mark.parametrize("precision", ["fp32", "autocast-bf16", "bf16-master", "bf16"])
@pytest.mark.parametrize("zero", [1, 2])
def test_the_update_is_split_with_the_optimizer(precision, zero):
    alone = whole(Layout(), Recipe(precision)).moments["optimizer"]["temporaries"]
    shared = whole(Layout(dp=8, zero=zero), Recipe(precision)).moments["optimizer"]["temporaries"]
    assert alone > 0 and shared == alone / 8


def test_the_walk_ends_with_the_gradients_that_the_stage_keeps():
    for zero, share in ((0, 1), (1, 1), (2, 8), (3, 8)):
        at_update = whole(Layout(dp=8, zero=zero), Recipe("fp32")).moments["optimizer"]["gradients"]
        assert at_update == pytest.approx(4 * total_parameters(SMALL) / share, rel=1e-3), zero


def test_autocast_copies_are_split_by_tensor_parallel_and_absent_where_weights_are_sharded():
    at_loss = lambda layout: whole(layout, Recipe()).moments["loss"]["weights"]  # noqa: E731
    copies = at_loss(Layout()) - whole(Layout(), Recipe()).states["weights"]
    assert copies == 2 * (4 * (ATTENTION + MLP) + TABLE)
    split = at_loss(Layout(tp=2)) - whole(Layout(tp=2), Recipe()).states["weights"]
    assert split == copies / 2
    sharded = whole(Layout(dp=8, zero=3), Recipe())
    root = 2 * TABLE + 64  # which stays whole, in 16 bits
    assert sharded.moments["loss"]["weights"] == sharded.states["weights"] + 2 * root


def test_a_first_stage_holds_one_micro_batch_for_each_stage():
    """Without logits to speak of, the first stage of p holds p micro-batches of 1/p of the layers: the same bytes."""
    shape = Shape(8, 64, 8, 2, bias=False, tied_head=False)
    recipe = Recipe("bf16", optimizer="sgd")
    one, four = (account(shape, 2, 256, recipe, Layout(pp=pp)).moments["forward"]["activations"] for pp in (1, 4))
    assert four == pytest.approx(one, rel=0.05)


def test_of_a_pipeline_the_fuller_end_is_priced():
    logits = account(PRESETS["llama-3-8b"], 4, 8192, Recipe("bf16-master", checkpointing="full"), Layout(pp=4))
    assert logits.peak_moment == "loss"  # a vocabulary of 128,256: the last stage
    assert logits.peak["logits"] == 3 * 4 * 4 * 8192 * 128_256
    depth = account(PRESETS["gpt-3-175b"], 1, 2048, Recipe("bf16-master"), Layout(tp=8, pp=8))
    assert depth.peak["logits"] == 0  # 96 layers in flight: the first stage


def test_gradients_stand_beside_the_micro_batches_of_a_pipeline():
    assert whole(Layout()).moments["forward"]["gradients"] == 0
    piped = whole(Layout(pp=2))
    assert piped.moments["forward"]["gradients"] == piped.states["gradients"] > 0


def test_qlora_stores_the_matrices_of_the_blocks_in_four_bits():
    matrices = 4 * (ATTENTION + MLP)
    rest = total_parameters(SMALL) - matrices
    adapters = 4 * 16 * (2 * (64 + 64) + 2 * (64 + 16) + 3 * (64 + 160))
    held = states(SMALL, Recipe("bf16", adapter="qlora"), Layout())
    assert held["weights"] == pytest.approx(matrices * NF4_BYTES + 2 * rest + 2 * adapters, abs=1)
    assert held["gradients"] == 2 * adapters
    single = states(SMALL, Recipe("bf16", adapter="qlora", double_quantization=False), Layout())
    assert single["weights"] - held["weights"] == pytest.approx(
        matrices * (32 / 64 - 8 / 64 - 32 / 64 / 256) / 8, abs=1
    )
    prepared = states(SMALL, Recipe("bf16", adapter="qlora", unquantized="fp32"), Layout())
    assert prepared["weights"] - held["weights"] == 2 * rest
    split = states(SMALL, Recipe("bf16", adapter="qlora"), Layout(dp=4, zero=3))
    assert split["weights"] == pytest.approx(held["weights"] / 4, abs=2)


def test_qlora_unpacks_one_matrix_at_a_time():
    at = {name: account(LLAMA, 1, 128, Recipe(adapter=name)).moments["block"] for name in ("lora", "qlora")}
    largest = 2 * 4096 * 11_008
    assert at["qlora"]["temporaries"] - at["lora"]["temporaries"] == pytest.approx(largest, rel=0.35)


@pytest.mark.parametrize("degree", ["dp", "tp", "pp"])
def test_more_ranks_never_hold_more(degree):
    peaks = [
        account(LLAMA, 1, 2048, Recipe("bf16-master"), Layout(**{degree: n, "zero": 1})).peak_bytes
        for n in (1, 2, 4, 8)
    ]
    assert peaks == sorted(peaks, reverse=True) and peaks[-1] < peaks[0]


def test_one_tensor_at_a_time_is_split_with_the_tensors():
    recipe = Recipe("fp32", foreach=False)
    for tp in (1, 2):
        table = 4 * TABLE // tp
        update = whole(Layout(tp=tp), recipe).moments["optimizer"]["temporaries"]
        # the head's denominator and the copy that it is made from, beside the last norm's denominator
        assert update == 2 * table + 4 * 64


# --- sequence parallelism -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "autocast-bf16", "bf16-master"])
@pytest.mark.parametrize("again", [True, False])
def test_a_step_gives_back_what_sequence_parallelism_gathers(precision, checkpointing, again):
    recipe = Recipe(precision, checkpointing=checkpointing, dropout=0.1)
    layout = Layout(tp=4, sequence_parallel=True, gather_again=again)
    z = Sizes(SMALL, 2, 128, recipe, layout)
    held = states(SMALL, recipe, layout)
    end = walk(z, held).held
    assert end["activations"] == z.batch_bytes and end["temporaries"] == end["logits"] == 0
    assert {kind: end[kind] for kind in held} == held
    assert min(min(kinds.values()) for _, kinds in walk(z, held).fullest.values()) >= 0


def test_what_is_gathered_again_is_not_kept_and_stands_in_passing():
    recipe = Recipe("bf16-master")
    kept, again = (whole(Layout(tp=4, sequence_parallel=True, gather_again=way), recipe) for way in (False, True))
    y = 2 * 128 * 64 * 2  # (batch, seq, hidden) in 16 bits; two a block, and the head's
    three_quarters = (2 * 4 + 1) * y * 3 // 4
    forward = [one.moments["forward"]["activations"] for one in (kept, again)]
    assert forward[0] - forward[1] == pytest.approx(three_quarters, abs=y)
    head = [one.moments["head"]["temporaries"] for one in (kept, again)]
    assert head[1] - head[0] == y


def test_a_vocabulary_is_padded_to_equal_parts():
    z = Sizes(SMALL, 2, 128, Recipe("bf16"), Layout(tp=8))
    odd = Sizes(replace(SMALL, vocab=1001), 2, 128, Recipe("bf16"), Layout(tp=8))
    assert (z.vocab, odd.vocab, odd.vocab32) == (125, 126, 4 * 2 * 128 * 126)
