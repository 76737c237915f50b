"""The memory model of FSDP by what must hold of it: repeated blocks, limits, what each choice does."""

from dataclasses import replace
from itertools import product

import pytest
from cases import refused

from scaleout.memory import fsdp
from scaleout.memory.accounts import account
from scaleout.memory.fsdp import collectives, fsdp_account
from scaleout.memory.fsdp_tape import KINDS
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape, preset, total_parameters

SMALL = Shape(
    12, 64, 4, 500, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
GPT = Shape(12, 64, 4, 500, max_seq=64)
SEVEN = preset("llama-2-7b")
MIXED = Recipe("fp32", checkpointing="full")


@pytest.mark.parametrize("wrap", ["model", "block", "layer", "size"])
def test_repeating_a_block_is_walking_them_all(wrap):
    for shape, reshard, ahead, how in product((SMALL, GPT), (True, False, 2), (0, 1, 9), ("none", "full")):
        sharding = Sharding(
            4,
            2,
            wrap=wrap,
            least_parameters=10_000,
            reshard=reshard,
            prefetch=ahead,
            reduce="bf16",
            parameter="bf16" if ahead else "fp32",
        )
        recipe = Recipe("fp32", checkpointing=how)
        walked = fsdp._walk(shape, 2, 48, recipe, sharding, True, 99, 0)[0]
        found = fsdp_account(shape, 2, 48, recipe, sharding)
        assert (found.moments, found.states, found.host) == (walked.walked, walked.states, walked.host)
        assert found.peak_bytes == max(moment.bytes for moment in walked.walked)


@pytest.mark.parametrize("wrap", ["model", "block", "layer", "size"])
def test_a_block_that_is_replayed_is_one_that_is_walked(wrap, monkeypatch):
    """Moment by moment, with what is fullest within each, as operation by operation."""
    cases = [
        (shape, Recipe("fp32", checkpointing=how, attention=attention), Sharding(4, wrap=wrap, least_parameters=10_000))
        for shape, how, attention in product((SMALL, GPT), ("none", "selective", "full"), ("sdpa", "naive"))
    ]
    replayed = [fsdp_account(shape, 2, 48, recipe, sharding).walked for shape, recipe, sharding in cases]
    monkeypatch.setattr(fsdp.BlockTape, "recorded", lambda *_walk: None)
    monkeypatch.setattr(fsdp.BlockTape, "replay", lambda *_block: pytest.fail("nothing was recorded"))
    for (shape, recipe, sharding), moments in zip(cases, replayed, strict=True):
        assert fsdp_account(shape, 2, 48, recipe, sharding).walked == moments and len(moments) > 6


def test_moments_tell_a_whole_step_and_nothing_is_left_over():
    held = fsdp_account(SMALL, 2, 48, Recipe("fp32"), Sharding(4))
    phases = [moment.phase for moment in held.moments]
    assert sorted(set(phases), key=phases.index) == ["forward", "loss", "backward", "update"]
    assert {moment.activity for moment in held.moments} == {"gather", "compute", "reduce"}
    assert all(n >= 0 for moment in held.moments for n in moment.held.values())
    assert all(tuple(moment.held) == KINDS for moment in held.moments)
    last = held.moments[-1]
    assert last.gathered == () and last.held["gathered"] == last.held["buffers"] == last.held["activations"] == 0
    assert {kind: last.held[kind] for kind in ("weights", "gradients", "optimizer")} == {
        kind: held.states[kind] for kind in ("weights", "gradients", "optimizer")
    }
    gathers = [moment.unit for moment in held.moments if moment.activity == "gather"]
    blocks = [f"blocks.{i}" for i in range(12)]
    assert gathers == ["", *blocks, *blocks[::-1]]


def test_states_are_a_rank_of_16_bytes_a_parameter():
    for ranks in (1, 8, 64):
        states = fsdp_account(SEVEN, 1, 512, Recipe("fp32"), Sharding(ranks)).states
        assert sum(states.values()) == 16 * total_parameters(SEVEN) // ranks


def test_one_rank_alone_has_the_plain_step_and_a_whole_copy():
    """Nothing is shared: beside the plain step there are whole parameters, and a unit's buffers of the reduction."""
    plain = account(SMALL, 2, 48, Recipe("fp32"))
    held = fsdp_account(SMALL, 2, 48, Recipe("fp32"), Sharding(1, wrap="model"))
    whole = 4 * total_parameters(SMALL)
    forward = [m for m in held.moments if m.phase == "forward"][-1]
    assert forward.bytes == sum(plain.moments["forward"].values()) + whole
    reduced = next(m for m in held.moments if m.activity == "reduce")
    assert reduced.bytes == 3 * whole + 2 * whole + 2 * 8 * 2 * 48  # states; then the two buffers; tokens and targets


def test_what_each_choice_does_to_the_peak():
    def peak(recipe=MIXED, kind="cuda", **how):
        sharding = Sharding(**({"ranks": 64, "parameter": "bf16"} | how))
        return fsdp_account(SEVEN, 1, 2048, recipe, sharding, kind).peak_bytes

    assert peak() < peak(ranks=8) < peak(ranks=2)
    assert peak(wrap="block") < peak(wrap="model")
    kept = [peak(reshard=how) for how in (True, 16, 8, 2, False)]
    assert kept == sorted(kept) and kept[0] < kept[2] < kept[3] < kept[4]
    assert peak(prefetch=0) < peak(prefetch=1) < peak(prefetch=3)
    assert peak(parameter="bf16") < peak(parameter="fp32")
    assert peak(recipe=MIXED) < peak(recipe=Recipe("fp32"))
    assert peak(offload=True) < peak() and peak(offload=True, kind="cpu") == peak(kind="cpu")
    assert peak(replicas=8) == peak()


def test_offload_moves_the_states_to_the_host():
    there = fsdp_account(SEVEN, 1, 512, MIXED, Sharding(8, offload=True))
    here = fsdp_account(SEVEN, 1, 512, MIXED, Sharding(8))
    assert there.host == here.states and sum(there.states.values()) == sum(here.host.values()) == 0
    assert there.moments[-1].bytes == 0


def test_reshard_tells_which_units_are_whole_at_the_loss():
    def whole(reshard):
        moments = fsdp_account(SEVEN, 1, 64, MIXED, Sharding(8, reshard=reshard)).moments
        return next(moment.gathered for moment in moments if moment.phase == "loss")

    assert whole(True) == whole(2) == ("",)
    assert whole(False) == ("", *[f"blocks.{i}" for i in range(32)])


def test_collectives_of_a_7b():
    """3 n against 2 n: parameters are gathered twice but for the root's, gradients are reduced once."""
    n = total_parameters(SEVEN)
    root = 2 * SEVEN.vocab * SEVEN.hidden + SEVEN.hidden
    sent = collectives(SEVEN, Sharding(8))
    assert sent["all_gather"] == {"count": 2 * 32 + 1, "bytes": 4 * (2 * n - root)}
    assert sent["reduce_scatter"] == {"count": 33, "bytes": 4 * n}
    assert sent["all_reduce"] == {"count": 0, "bytes": 0}
    kept = collectives(SEVEN, Sharding(8, 4, reshard=False, parameter="bf16", reduce="fp32"))
    assert kept["all_gather"] == {"count": 33, "bytes": 2 * n}
    assert kept["all_reduce"] == {"count": 33, "bytes": 4 * n // 8}
    assert {kind["count"] for kind in collectives(SEVEN, Sharding(1)).values()} == {0}


def test_one_rank_that_casts_has_its_largest_tensor_on_its_way_beside_the_root():
    """The embedding and the head in 16 bits, and one of the two once more while it is copied into its place."""
    wide = replace(SMALL, vocab=5000)
    moments = fsdp_account(wide, 1, 4, Recipe("fp32"), Sharding(1, parameter="bf16")).moments
    assert max(moment.held["gathered"] for moment in moments) == 2 * (3 * 5000 * 64 + 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": Recipe()}, "precision must be fp32 or bf16 beside a Sharding"),
        ({"recipe": Recipe("bf16", adapter="lora")}, "adapters are not priced under FSDP"),
        ({"sharding": 8}, "sharding must be a Sharding, not 8"),
        ({"device_kind": "tpu"}, "device_kind must be cuda or cpu, not 'tpu'"),
        ({"shape": GPT, "seq": 65}, "seq 65 is longer than the position table"),
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
    ],
)
def test_one_line_says_what_is_wrong(change, said):
    given = {"shape": SMALL, "batch": 1, "seq": 48, "recipe": Recipe("fp32"), "sharding": Sharding(4)} | change
    refused(lambda: fsdp_account(**given), said)


def test_a_deeper_model_is_walked_no_longer():
    """The widget draws at every move of a slider: 80 layers cost what five do, but for their moments."""
    deep = fsdp_account(replace(SMALL, layers=80), 1, 48, Recipe("fp32"), Sharding(8))
    per_block = sum(moment.unit == "blocks.40" for moment in deep.moments)
    flat = fsdp_account(replace(SMALL, layers=5), 1, 48, Recipe("fp32"), Sharding(8))
    assert len(deep.moments) - len(flat.moments) == 75 * per_block
    assert fsdp._walked_shape(replace(SMALL, layers=80), Sharding(8))[0].layers == 5
