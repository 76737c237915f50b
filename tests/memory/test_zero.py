"""ZeRO's grid holds at rest what `state_bytes` says, moves the paper's pieces, and gives back all that it borrowed."""

import json
from itertools import product
from pathlib import Path

import pytest
from cases import refused, refuses_nonsense

from scaleout.memory import zero
from scaleout.memory.states import state_bytes
from scaleout.memory.zero import at_rest, fullest
from scaleout.memory.zero_frames import MAX_PASSES, MAX_RANKS, frame_bytes, frames
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

TABLE = json.loads((Path(__file__).parents[1] / "published" / "zero_memory.json").read_text())
ADAMW = Recipe("bf16-master")
RECIPES = [Recipe(precision, optimizer) for precision, optimizer in product(CHOICES["precision"], CHOICES["optimizer"])]
RECIPES += [Recipe("bf16-master", main_gradients=how) for how in ("instead", "beside")] + [Recipe(gradients="kept")]
SIZES = (1, 2, 3, 4, 8)
OFFLOADS = [(zero_, how) for zero_ in (1, 2, 3) for how in zero.OFFLOADS if how != "parameters" or zero_ == 3]


def moment(play, phase):
    return next(frame for frame in play if frame.phase == phase)


def test_figure_1_of_the_paper():
    """7.5 billion parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB, to the last printed digit."""
    held = [sum(at_rest(7_500_000_000, ADAMW, Layout(dp=64, zero=z))["device"].values()) / 1e9 for z in range(4)]
    said = [TABLE["table1"]["7.5B"][name][3] for name in ("os", "os_g", "os_g_p")]
    assert held[0] == 120 and held[1:] == pytest.approx(said, abs=0.1)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.precision}-{r.optimizer}-{r.main_gradients}")
def test_the_grid_holds_what_states_say(recipe):
    """Where shards are equal, the update finds the bytes of `state_bytes` on every rank, in the frames and at rest."""
    for n, stage in product(SIZES, range(4)):
        layout, parameters = Layout(dp=n, zero=stage), 24 * 2048
        play, said = frames(recipe, layout), state_bytes(parameters, recipe, layout)
        held = [frame_bytes(moment(play, "update"), parameters, recipe, rank) for rank in range(n)]
        assert {sum(one.values()) for one in held} == {sum(said.values())}
        assert at_rest(parameters, recipe, layout)["device"] == held[0]
        left = frame_bytes(play[-1], parameters, recipe)
        assert left == frame_bytes(play[0], parameters, recipe)
        assert left["gradients"] == (held[0]["gradients"] if recipe.keeps_gradients else 0)


def test_odd_sizes_keep_their_sum():
    for recipe, stage in product(RECIPES, range(4)):
        layout = Layout(dp=7, zero=stage)
        assert sum(at_rest(1_000_003, recipe, layout)["device"].values()) == sum(
            state_bytes(1_000_003, recipe, layout).values()
        )


@pytest.mark.parametrize("n", SIZES)
def test_pieces(n):
    """2, 2, 2 and 3 times the weights; kept weights are gathered once; one rank sends nothing."""
    sent = [frames(ADAMW, Layout(dp=n, zero=stage))[-1].sent for stage in range(4)]
    assert sent == ([2, 2, 2, 3] if n > 1 else [0] * 4)
    assert frames(ADAMW, Layout(dp=n, zero=3), keep=True)[-1].sent == 2 * (n > 1)
    again = [frames(ADAMW, Layout(dp=n, zero=stage), passes=3)[-1].sent for stage in range(4)]
    assert again == ([2, 2, 4, 9] if n > 1 else [0] * 4)


@pytest.mark.parametrize(("n", "stage"), list(product((2, 3, 4), range(4))))
def test_who_sends_and_who_receives(n, stage):
    """Followed shard by shard, each rank sends as many as it receives, and as many as `sent` says: pieces of n - 1."""
    sends, receives = [0] * n, [0] * n
    play = frames(ADAMW, Layout(dp=n, zero=stage))
    for _, s, way in (frame.move for frame in play if frame.move):
        for r in set(range(n)) - {s}:
            for leg in ("in", "out") if way == "both" else (way,):
                a, b = (r, s) if leg == "in" else (s, r)
                sends[a] += 1
                receives[b] += 1
    assert sends == receives == [play[-1].sent * (n - 1)] * n


def test_each_frame_follows():
    """A shard is computed with only where every GPU has it; nothing is lost; a GPU never holds a shard twice."""
    cases = product(OFFLOADS, SIZES, (1, 2))
    for (stage, offload), n, passes in cases:
        for keep in {False, stage == 3}:
            play = frames(ADAMW, Layout(dp=n, zero=stage), keep, passes, offload)
            assert play[0].held == play[-1].held and [play[0].phase, play[-1].phase] == ["at rest", "step done"]
            for frame, before in zip(play[1:], play, strict=False):
                assert frame.sent >= before.sent and frame.crossed >= before.crossed
                for kind, grid in frame.held.items():
                    if kind != "gradients":
                        assert all(any(row[s] for row in grid) for s in range(n)), (frame.phase, kind)
                here = [all(row[s] in (1, 2) for row in frame.held["weights"]) for s in range(n)]
                if frame.phase == "backward" or frame.phase.startswith("gather"):
                    assert all(here) if stage < 3 else any(here)
                    assert sum(here) == 1 or stage < 3 or keep or n == 1


def test_stages_agree_on_one_rank():
    """But for the words of what is split: one GPU owns all, and nothing is borrowed."""
    plays = [frames(ADAMW, Layout(zero=stage)) for stage in range(4)]
    assert len({tuple((frame.phase, frame.sent) for frame in play) for play in plays}) == 1
    for layout in (Layout(zero=stage) for stage in range(4)):
        assert at_rest(1000, ADAMW, layout) == at_rest(1000, ADAMW, Layout())
        assert fullest(1000, ADAMW, layout, 10) == fullest(1000, ADAMW, Layout(), 10)


def test_a_later_stage_holds_less():
    for n in SIZES[1:]:
        held = [sum(at_rest(10**9, ADAMW, Layout(dp=n, zero=stage))["device"].values()) for stage in range(4)]
        assert held == sorted(held, reverse=True) and len(set(held)) == 4


def test_offload_of_the_paper():
    """ZeRO-Offload on one GPU (2101.06840, section 4): 2 bytes per parameter stay, 14 go; 2 cross down and 2 up."""
    found = at_rest(10**9, ADAMW, Layout(zero=2), "optimizer")
    assert sum(found["device"].values()) == 2 * 10**9 and sum(found["host"].values()) == 14 * 10**9
    for n in SIZES:
        play = frames(ADAMW, Layout(dp=n, zero=2), offload="optimizer")
        assert play[-1].crossed == 2 and play[-1].sent == 2 * (n > 1)
        held = at_rest(840 * 10**6, ADAMW, Layout(dp=n, zero=2), "optimizer")
        assert sum(held["device"].values()) == 2 * 840 * 10**6 and sum(held["host"].values()) * n == 14 * 840 * 10**6


def test_offload_moves_states_and_loses_none():
    for (stage, offload), n in product(OFFLOADS, SIZES):
        layout, to, many = Layout(dp=n, zero=stage), "nvme" if stage == 3 else "host", 24 * 10**6
        found, plain = at_rest(many, ADAMW, layout, offload, to), at_rest(many, ADAMW, layout)
        for kind, all_of_it in plain["device"].items():
            both = stage == 1 and offload == "optimizer" and kind == "gradients"
            assert sum(found[tier][kind] for tier in zero.TIERS) == all_of_it + both * 2 * many // n
        play = frames(ADAMW, layout, offload=offload)
        crossed = {"none": 0, "optimizer": 2, "parameters": 3}[offload]
        assert play[-1].crossed == crossed
        here = frame_bytes(moment(play, "update"), many, ADAMW)
        assert here == found["device"]


def test_without_a_master_the_host_steps_a_copy():
    held = at_rest(1000, Recipe("fp32"), Layout(dp=4, zero=2), "optimizer")
    assert held["device"]["weights"] == 4000 and held["host"]["weights"] == 1000
    assert at_rest(1000, Recipe("fp32"), Layout(dp=4, zero=3), "parameters")["device"]["weights"] == 0


def test_the_fullest_moment():
    """Buffers of one unit lie beside the shards: 2 bytes of gathered weights, 2 of gradients that are not yet sums."""
    n, unit = 10**9, 10**8
    most = {z: sum(fullest(n, ADAMW, Layout(dp=4, zero=z), unit)[1]["device"].values()) for z in range(4)}
    rest = {z: sum(at_rest(n, ADAMW, Layout(dp=4, zero=z))["device"].values()) for z in range(4)}
    assert [most[z] - rest[z] for z in range(4)] == [0, 0, 2 * unit, 4 * unit]
    kept = fullest(n, ADAMW, Layout(dp=4, zero=3), unit, keep=True)[1]["device"]
    assert kept["weights"] == 2 * n + 2 * n // 4
    host = fullest(n, ADAMW, Layout(zero=3), unit, offload="parameters", offload_tier="nvme")[1]
    assert sum(host["device"].values()) == 4 * unit and sum(host["nvme"].values()) == 16 * n


@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
def test_muon_keeps_one_number_of_32_bits_for_each_parameter(precision):
    """Its momentum alone, half of what AdamW keeps (arXiv 2502.16982, section 2.3); a variance of the rest: the
    embeddings, nine biases and two norms of each block, and the last norm."""
    sizes = zero.muon_bytes(PRESETS["gpt2"], Recipe(precision), Layout(dp=8, zero=1))
    rest = 50257 * 768 + 1024 * 768 + 12 * (9 + 2 * 2) * 768 + 2 * 768
    assert sizes["momentum"] == 4 * total_parameters(PRESETS["gpt2"]) / 8
    assert sizes["variance"] == 4 * rest / 8


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: frames(ADAMW, Layout(dp=4, zero=2), keep=True), "use stage 3"),
        (lambda: frames(ADAMW, Layout(dp=4), offload="optimizer"), "use stage 1, 2 or 3"),
        (lambda: frames(ADAMW, Layout(dp=4, zero=2), offload="parameters"), "offload the optimizer alone"),
        (lambda: at_rest(10, ADAMW, Layout(dp=4, zero=2), "optimizer", "nvme"), "offload to the host"),
        (
            lambda: at_rest(10, ADAMW, Layout(dp=4, zero=2), "weights"),
            "offload must be one of none, optimizer, parameters",
        ),
        (
            lambda: at_rest(10, ADAMW, Layout(dp=4, zero=2), offload_tier="disk"),
            "offload_tier must be one of host, nvme",
        ),
        (lambda: frames(Recipe(adapter="lora"), Layout()), "use adapter none"),
        (lambda: frames(ADAMW, 3), "layout must be a Layout"),
        (lambda: frames("bf16", Layout()), "recipe must be a Recipe"),
        (lambda: frames(ADAMW, Layout(dp=65)), "at most 64 ranks, not 65"),
        (lambda: frames(ADAMW, Layout(), passes=0), "passes must be a whole number of at least 1"),
        (lambda: fullest(10, ADAMW, Layout(), 11), "unit 11 is more than all 10 parameters"),
        (lambda: fullest("10", ADAMW, Layout(), 11), "parameters must be a whole number"),
        (lambda: zero.dealt([3, -1], 2), "each size must be a whole number"),
        (lambda: zero.dealt(5, 2), "sizes must be a Sequence"),
        (lambda: zero.muon_bytes("7b", ADAMW, Layout()), "shape must be a Shape"),
    ],
)
def test_refusals_are_one_line(wrong, says):
    refused(wrong, says)


def test_nonsense_is_refused():
    layout = Layout(dp=4, zero=3)
    frame = frames(ADAMW, layout)[3]
    refuses_nonsense(zero.widths, ADAMW)
    refuses_nonsense(zero.splits, "master")
    refuses_nonsense(frame_bytes, frame, 1000, ADAMW, 3, allowed=[(3, 0)])
    refuses_nonsense(at_rest, 1000, ADAMW, layout, allowed=[(0, 0)])
    refuses_nonsense(fullest, 1000, ADAMW, layout, 10)
    refuses_nonsense(zero.dealt, [3, 1], 2, allowed=[(0, ""), (0, []), (0, [1])])
    refuses_nonsense(lambda passes: frames(ADAMW, layout, False, passes), 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda frame: zero.splits("optimizer"),
            "use one of weights, gradients, main gradients, master, momentum, varian",
        ),
        (lambda frame: frame_bytes(frame, 10, ADAMW, 4), "rank must be a whole number from 0 to 3, not 4"),
        (lambda frame: frame_bytes(frame, 10, ADAMW, -1), "rank must be a whole number of at least 0, not -1"),
        (
            lambda frame: frame_bytes(frame, 10, Recipe("bf16-master", main_gradients="beside")),
            "this frame has no main gradients: give the recipe that `frames` was given",
        ),
        (
            lambda frame: frames(ADAMW, Layout(), passes=10**400),
            "passes must be a whole number from 1 to 8, not 10000000",
        ),
        (lambda frame: frames(ADAMW, Layout(), passes=9), "passes must be a whole number from 1 to 8, not 9"),
    ],
)
def test_what_a_frame_has_not_is_said(wrong, says):
    refused(lambda: wrong(frames(ADAMW, Layout(dp=4, zero=3))[3]), says)


def test_of_more_ranks_than_tensors_the_last_get_none():
    assert zero.dealt([5, 7, 0], 10**15) == [1, 0, 2] and zero.dealt([], 4) == []


def test_the_longest_picture_ends():
    play = frames(ADAMW, Layout(dp=8, zero=3), passes=MAX_PASSES)
    assert play[-1].sent == 3 * MAX_PASSES and len(frames(ADAMW, Layout(dp=MAX_RANKS, zero=3))) == 4 * MAX_RANKS + 3
