"""Bytes of every rank of a mesh: held against the account of a pipeline, sums of the whole model, and one another."""

from dataclasses import replace

import pytest
from cases import over, refused

from scaleout.memory import mesh_torch
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.mesh import (
    accounts,
    fullest,
    passing,
    rank_account,
    rank_parameters,
)
from scaleout.memory.mesh_peaks import Peaks, ends_of
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import blocks_of, rank_blocks
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

SMALL = Shape(
    12, 64, 8, 1000, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
RECIPE = Recipe("bf16-master", main_gradients="instead")


@over(batch=[2, 4, 16], zero=[0, 1])
def test_without_a_pipeline_more_sequences_take_what_they_take_in_the_account(batch, zero):
    shape, recipe, layout = PRESETS["gpt2"], Recipe("fp32", foreach=False), Layout(dp=2, zero=zero)
    peaks, known = (
        [peak(shape, n, 1024, recipe, layout) for n in (1, batch)]
        for peak in (mesh_torch.peak, lambda *job: account(*job).peak_bytes)
    )
    assert peaks[1] - peaks[0] == known[1] - known[0]


@over(tp=[1, 2], pp=[1, 2, 4], dp=[1, 4], zero=[0, 1, 2], v=[1, 3], sequence_parallel=[False, True])
def test_the_ends_of_even_stages_are_the_account_of_a_pipeline(tp, pp, dp, zero, v, sequence_parallel):
    if pp == 1 and v > 1:
        return
    schedule = "interleaved" if v > 1 else "1f1b"
    layout = Layout(dp, tp, pp, zero, sequence_parallel, chunks=v, micro_batches=2 * pp, schedule=schedule)
    found = accounts(SMALL, 2, 64, RECIPE, layout)
    whole = account(SMALL, 2, 64, RECIPE, layout)
    assert max(found[0].peak_bytes, found[-1].peak_bytes) == whole.peak_bytes
    assert found[fullest(found)].peak_bytes == max(one.peak_bytes for one in found) >= whole.peak_bytes


def test_sharded_data_parallelism_alone_is_fsdps_account():
    recipe, layout = Recipe("bf16-master"), Layout(dp=8, zero=3)
    assert rank_account(SMALL, 2, 64, recipe, layout) == account(SMALL, 2, 64, recipe, layout)
    assert (
        rank_account(SMALL, 2, 128, recipe, replace(layout, dp=4, cp=2)).states
        == account(SMALL, 2, 64, recipe, layout).states
    )


@over(pp=[1, 2, 5], v=[1, 2], each=[None, "heavy end"])
def test_stages_hold_each_parameter_once(pp, v, each):
    if pp == 1 and v > 1:
        return
    layout = Layout(pp=pp, chunks=v, schedule="interleaved" if v > 1 else "1f1b", micro_batches=2 * pp)
    stages = pp * v
    given = (*[1] * (stages - 1), 12 - stages + 1) if each else None
    held = [rank_parameters(SMALL, layout, rank, given) for rank in range(pp)]
    assert sum(held) == total_parameters(SMALL)
    if given:
        assert held[-1] == max(held)
    assert sum(len(rank_blocks(layout, rank, blocks_of(SMALL, layout, given))) for rank in range(pp)) == stages


def test_the_first_rank_has_the_most_in_flight_and_the_last_the_logits():
    layout = Layout(pp=4, micro_batches=8)
    first, second, third, last = accounts(SMALL, 2, 64, RECIPE, layout)
    kept = 3 * sum(block_kept(Sizes(SMALL, 2, 64, RECIPE, layout), "none").values())
    fall = [one.moments["forward"]["activations"] for one in (first, second, third)]
    assert fall[0] - fall[1] == fall[1] - fall[2] == kept
    assert [one.peak["logits"] > 0 for one in (first, second, third, last)] == [False, False, False, True]
    assert second.states == third.states and sum(first.states.values()) > sum(second.states.values())


def test_a_stage_with_more_blocks_holds_more():
    layout = Layout(pp=3, micro_batches=6)
    even, skewed = accounts(SMALL, 2, 64, RECIPE, layout), accounts(SMALL, 2, 64, RECIPE, layout, (3, 6, 3))
    assert [a.peak_bytes < b.peak_bytes for a, b in zip(even, skewed, strict=True)] == [False, True, False]
    ratio = skewed[1].states["weights"] / even[1].states["weights"]
    assert ratio == 6 / 4


@over(context=["ring", "gather"], cp=[2, 4], tp=[1, 2])
def test_a_context_rank_is_one_of_a_shorter_sequence_beside_passing_keys(context, cp, tp):
    layout = Layout(dp=2, cp=cp, tp=tp, pp=2, zero=1, sequence_parallel=tp > 1, micro_batches=4)
    ours = rank_account(SMALL, 2, 256, RECIPE, layout, 0, context=context)
    short = Layout(dp=2 * cp, tp=tp, pp=2, zero=1, sequence_parallel=tp > 1, micro_batches=4)
    theirs = rank_account(SMALL, 2, 256 // cp, RECIPE, short, 0)
    assert ours.states == theirs.states
    keys = 2 * 2 * (256 // cp) * 2 * 8 // tp * 2  # K and V of 2 sequences: 2 heads of 8, or a tp-th of them, 16 bits
    more = keys * (min(2, cp - 1) if context == "ring" else cp - 1)
    z = Sizes(SMALL, 2, 256 // cp, RECIPE, short)
    assert passing(z, cp, context) == more
    for moment, held in ours.moments.items():
        extra = sum(held.values()) - sum(theirs.moments[moment].values())
        assert extra == (more if moment in ("forward", "block") else 0), moment


def test_context_parallelism_shares_the_optimizers_state_with_data_parallelism():
    states = [rank_account(SMALL, 1, 256, RECIPE, Layout(dp=8 // cp, cp=cp, zero=1)).states for cp in (1, 2, 8)]
    assert states[0] == states[1] == states[2]


@over(
    batch=[1, 4],
    checkpointing=["none", "selective", "full"],
    degrees=[(1, 1, 1, 4), (2, 1, 2, 4), (8, 2, 4, 2)],
    zero=[0, 1, 3],
    v=[1, 2],
    name=["llama-3-70b", "gpt-3-175b"],
)
def test_peaks_at_once_are_those_of_whole_accounts(batch, checkpointing, degrees, zero, v, name):
    tp, cp, pp, dp = degrees
    if v > 1 and (pp == 1 or zero == 3):
        return
    layout = Layout(
        dp, tp, pp, zero, tp > 1, chunks=v, micro_batches=2 * pp, cp=cp, schedule="interleaved" if v > 1 else "1f1b"
    )
    shape, recipe = PRESETS[name], replace(RECIPE, checkpointing=checkpointing)
    seq = shape.tokens(8192)
    each = blocks_of(shape, layout)
    quick, rank = PEAKS.setdefault(name, Peaks(shape, seq)).peak(batch, recipe, layout, ends_of(layout, each))
    slow = rank_account(shape, batch, seq, recipe, layout, rank).peak_bytes
    other = rank_account(shape, batch, seq, recipe, layout, pp - 1 - rank).peak_bytes
    assert quick == pytest.approx(slow, rel=0.01) and slow >= other * 0.99


def test_a_rank_between_the_ends_may_hold_most():
    shape, layout = PRESETS["llama-3-405b"], Layout(pp=16, tp=8, sequence_parallel=True, micro_batches=32)
    recipe, each = replace(RECIPE, checkpointing="full"), blocks_of(PRESETS["llama-3-405b"], layout)
    found = accounts(shape, 1, 8192, recipe, layout)
    assert (each[0], each[1], fullest(found)) == (7, 8, 1)
    quick, rank = Peaks(shape, 8192).peak(1, recipe, layout, ends_of(layout, each))
    assert rank == 1 and quick == pytest.approx(found[1].peak_bytes, rel=0.01)


PEAKS: dict[str, Peaks] = {}


def test_what_cannot_be():
    refused(lambda: rank_account(SMALL, 1, 64, RECIPE, Layout(pp=2), 2), "rank 2 of the pipeline is not there")
    refused(lambda: rank_account(SMALL, 1, 60, RECIPE, Layout(cp=8)), "use 64")
    refused(lambda: rank_account(SMALL, 1, 64, replace(RECIPE, attention="naive"), Layout(cp=2)), "use attention sdpa")
    refused(
        lambda: rank_account(SMALL, 1, 64, RECIPE, Layout(pp=2), stage_blocks=(6, 5)), "2 stages of 12 blocks in all"
    )
    refused(
        lambda: rank_account(SMALL, 1, 64, RECIPE, Layout(pp=2), stage_blocks=(12, 0)), "the blocks of a stage must be"
    )
    refused(lambda: rank_account(SMALL, 1, 64, RECIPE, Layout(cp=2), context="tree"), "context must be one of ring")
    refused(lambda: account(SMALL, 1, 64, RECIPE, Layout(cp=2)), "use cp 1, not 2")


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_adapters_are_priced_on_a_mesh(adapter):
    recipe = Recipe("autocast-bf16", adapter=adapter, adapter_targets="attention")
    assert rank_account(SMALL, 1, 64, recipe, Layout()) == account(SMALL, 1, 64, recipe)
    assert rank_account(SMALL, 1, 64, recipe, Layout(tp=2)) == account(SMALL, 1, 64, recipe, Layout(tp=2))
