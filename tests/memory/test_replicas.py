"""What a rank uses under hybrid sharding, kept weights, offload and gradients that add up whole: by its own formula."""

from dataclasses import replace

import pytest

from scaleout.memory.accounts import account
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.job import fullest, rank_account
from scaleout.memory.mesh_peaks import ends_of, peaks
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import fp32_shards
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, total_parameters

SHAPE = PRESETS["llama-2-7b"]
N = total_parameters(SHAPE)
MIXED = Recipe("autocast-bf16")
MAIN = Recipe("bf16-master", main_gradients="instead")  # 2 bytes of weights, 4 each of master, gradients, two moments
WIDE = Job(SHAPE, 4096, DEVICES["h100-sxm"], cluster(4, 8), 1, Layout(dp=32, zero=3), MIXED)


@pytest.mark.parametrize("recipe", [MIXED, MAIN])
@pytest.mark.parametrize("shards", [1, 8, 32])
def test_states_are_cut_by_the_ranks_that_share_a_copy(recipe, shards):
    """And not by all replicas: of 16 or 18 bytes each, hybrid sharding over 8 of 32 keeps four times as many."""
    states = rank_account(WIDE.other(recipe=recipe, shards=shards)).states
    width = 18 if recipe == MAIN else 16
    assert sum(states.values()) == pytest.approx(width * N / shards, rel=2e-4)  # FSDP pads what does not divide
    one_axis, two_axes = (
        (sum(rank_account(WIDE.other(recipe=MAIN, tp=tp, shards=shards)).states.values()) for tp in (1, 2))
        if shards < 32
        else (2, 1)
    )
    assert two_axes == pytest.approx(one_axis / 2, rel=2e-3)  # norms are on both


@pytest.mark.parametrize("changes", [{}, {"shards": 8}, {"tp": 2}, {"offload": "parameters"}])
def test_torchtitan_has_fp32_shards_alone(changes):
    """Its weights are fp32 and `fully_shard` casts what it gathers: 16 bytes, not 18, and at each moment so much less.
    With stage 2 it keeps the 16-bit weights that it gathered, as everybody does."""
    job = WIDE.other(recipe=MAIN, **changes)
    usual, titan = rank_account(job), rank_account(job.other(program="compiled"))
    shards = 2 * N / job.shards / job.layout.tp
    places = [usual, titan]
    total = [sum(account.states.values()) + sum(account.host.values()) for account in places]
    assert total[0] / shards == pytest.approx(9, rel=2e-3) and total[1] / shards == pytest.approx(8, rel=2e-3)
    if not changes.get("offload"):
        assert usual.peak_bytes - titan.peak_bytes == pytest.approx(shards, rel=2e-3)
        assert sum(usual.rest.values()) - sum(titan.rest.values()) == pytest.approx(shards, rel=2e-3)
    if not changes.get("offload") and job.shards == job.layout.replicas:
        known = peaks(SHAPE, 4096, job.context, job.recipe, fp32_shards(PROGRAMS["compiled"], job.recipe))
        quick, _ = known.peak(1, job.other(gradients="kept").recipe, job.layout, ends_of(job.layout, job.stages))
        assert quick == pytest.approx(titan.peak_bytes, rel=1e-6), "the search counts as the account does"
    two = job.other(zero=2, offload="none", recipe=MAIN)
    assert rank_account(two) == rank_account(two.other(program="compiled"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"shards": 8}, {"shards": 1}, {"reshard": 8}, {"zero": 2, "reshard": False}, {"offload": "parameters"},
     {"wrap": "model"}, {"wrap": "layer", "prefetch": 3}, {"checkpointing": "full", "shards": 8, "prefetch": 0}],
)  # fmt: skip
def test_one_axis_has_the_account_of_fully_shard(changes):
    job = WIDE.other(**changes)
    account = fsdp_account(SHAPE, 1, 4096, Recipe("fp32", checkpointing=job.recipe.checkpointing), job.sharding)
    expected = account.peak_bytes if job.shards > 1 else None
    if expected is not None:
        assert fullest(job).peak_bytes == expected
        assert sum(fullest(job).host.values()) == sum(account.host.values())
    else:  # one rank gathers nothing
        assert fullest(job).states["weights"] == 4 * N


@pytest.mark.parametrize("changes", [{"recipe": MIXED}, {"recipe": MAIN}, {"recipe": MAIN, "tp": 2}])
def test_what_stays_gathered_is_paid_for(changes):
    """bf16 copies of all weights of a rank, or an eighth of them, beside the shards, in the forward and at the loss."""
    job = WIDE.other(**changes)
    freed, eighth, kept = (
        rank_account(job.other(**more)).moments["loss"]["weights"]
        for more in ({}, {"reshard": 8}, {"zero": 2, "reshard": False})
    )
    copy, tables = 2 * job.rank_parameters(), 2 * 2 * 32000 * 4096 / job.layout.tp  # the root has the tables
    assert eighth - freed == pytest.approx((copy - tables) / 8, rel=0.01)
    block = 2 * N / SHAPE.layers
    assert 0.85 * copy < kept - freed + 2.2 * block < 1.15 * copy and kept > eighth > freed


@pytest.mark.parametrize("tp", [1, 4])
def test_offload_moves_states_and_loses_none(tp):
    job = WIDE.other(recipe=MAIN, tp=tp)
    plain = rank_account(job)
    for offload in ("optimizer", "parameters"):
        moved = rank_account(job.other(offload=offload))
        assert sum(moved.states.values()) + sum(moved.host.values()) == sum(plain.states.values())
        assert moved.peak_bytes < plain.peak_bytes
    first = rank_account(job.other(zero=1, offload="optimizer"))  # each rank has all gradients, and hands down its own
    assert first.states["gradients"] == 4 * job.rank_parameters()
    assert first.host["gradients"] == pytest.approx(4 * job.rank_parameters() / job.layout.replicas, abs=1)


def test_gradients_that_add_up_whole():
    """Four passes and one exchange: at the loss of the last a rank has all gradients in fp32, 27 GB of Llama 2 7B."""
    four = WIDE.other(recipe=MAIN, micro_batches=4)
    each, once = (rank_account(four.other(every_pass=every)) for every in (True, False))
    assert once.moments["loss"]["gradients"] == 4 * N
    assert each.moments["loss"]["gradients"] == pytest.approx(4 * N / 32, abs=1)
    assert (
        rank_account(WIDE.other(recipe=MAIN, every_pass=False)).peak_bytes
        == rank_account(WIDE.other(recipe=MAIN)).peak_bytes
    )  # with one pass there is nothing to add up


def test_the_optimizer_s_own_gradients_stay_split_where_others_add_up_whole():
    """bf16 gradients beside fp32 ones: with `no_sync` the former are whole, 2 bytes each, the latter 4 of every 32."""
    beside = WIDE.other(recipe=replace(MAIN, main_gradients="beside"), micro_batches=4)
    once, first = rank_account(beside.other(every_pass=False)), rank_account(beside.other(zero=1))
    assert once.moments["loss"]["gradients"] == first.states["gradients"] == pytest.approx((2 + 4 / 32) * N, abs=1)
    assert once.peak_bytes < first.peak_bytes  # whose weights are whole too


@pytest.mark.parametrize("layout", [Layout(dp=8), Layout(dp=4, tp=2), Layout(dp=4, pp=2, micro_batches=4)])
def test_ddp_s_buckets_are_a_second_set_of_gradients(layout):
    """Where gradients stay too: by the job's account and by the layout's, of Llama 2 7B 2 more bytes each."""
    kept = Recipe("bf16-master", gradients="kept")
    plain = replace(WIDE, cluster=cluster(1, 8), seq=2048, layout=layout, recipe=kept)
    beside = plain.other(buckets="beside")
    more = fullest(beside).peak_bytes - fullest(plain).peak_bytes
    assert more == 2 * plain.rank_parameters(layout.pp - 1)
    assert fullest(beside).peak_bytes == account(SHAPE, 1, 2048, beside.recipe, layout).peak_bytes


@pytest.mark.parametrize(("zero", "least"), [(0, 4 * N), (1, 4 * N), (2, 4 * N / 32)])
def test_a_second_micro_batch_finds_the_gradients_of_the_first(zero, least):
    """From then on they stand through forward and backward, and are no part of what a step begins with."""
    one, four = (rank_account(WIDE.other(zero=zero, micro_batches=m)) for m in (1, 4))
    assert one.moments["forward"]["gradients"] == 0 == four.rest["gradients"]
    assert four.moments["forward"]["gradients"] == pytest.approx(least, rel=1e-6)
    assert one.moments["loss"]["gradients"] == 0 and four.moments["loss"]["gradients"] == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("pp", "cp"), [(1, 4), (2, 2)])
def test_gathered_keys_and_values_are_kept_in_each_block_where_nothing_is_gathered_again(recompute, pp, cp):
    """Llama 3 8B at 32,768 tokens: two tensors of 8 heads of 128 in 16 bits, of the other ranks' tokens."""
    layout = Layout(dp=16 // pp // cp, cp=cp, pp=pp, zero=1, micro_batches=pp)
    again = Job(PRESETS["llama-3-8b"], 32_768, DEVICES["h100-sxm"], cluster(2, 8), 1, layout, context="gather").other(
        checkpointing=recompute
    )
    kept = again.other(gather_again=False)
    block = 2 * 2 * 8 * 128 * 32_768 * (cp - 1) // cp
    blocks = 0 if recompute == "full" else 32 // pp * (pp if pp > 1 else 1)
    for name, kinds in rank_account(again).moments.items():
        more = rank_account(kept).moments[name]["activations"] - kinds["activations"]
        assert more == (0 if name == "optimizer" else blocks * block), name
    price = peaks(again.shape, again.seq, "gather", again.recipe)
    for job in (again, kept):
        size, _ = price.peak(1, job.recipe, job.layout, ends_of(job.layout, job.stages))
        assert size == pytest.approx(fullest(job).peak_bytes, rel=0.01)
