"""Tiles, policies and the step under them: against the account, against published figures, and by what must hold."""

import json
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path

import pytest
from cases import refused

from scaleout.memory import recompute
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, flops

SAID = json.loads((Path(__file__).parents[1] / "published" / "activation_recomputation.json").read_text())
LLAMA, GPT = PRESETS["llama-2-7b"], PRESETS["gpt2"]


def sizes(shape=LLAMA, batch=1, seq=1024, layout=None, stage=0, **recipe):
    return Sizes(shape, batch, seq, Recipe(**{"precision": "bf16-master"} | recipe), layout or Layout(), stage)


@pytest.mark.parametrize("name", PRESETS)
def test_tiles_are_the_accounts_activations_told_apart(name):
    shape, layouts = (
        PRESETS[name],
        [
            Layout(),
            Layout(tp=2),
            Layout(tp=4, sequence_parallel=True),
            Layout(tp=4, sequence_parallel=True, gather_again=False),
        ],
    )
    for precision, attention, dropout, layout in product(
        ("fp32", "autocast-bf16", "bf16"), ("sdpa", "naive"), (0.0, 0.1), layouts
    ):
        if shape.heads % layout.tp:
            continue
        z = sizes(shape, 2, 1024, layout, precision=precision, attention=attention, dropout=dropout)
        tiles = recompute.tiles(z)
        assert sum(tile.bytes for tile in tiles) == sum(block_kept(z, "none").values())
        assert len({tile.name for tile in tiles}) == len(tiles)
        assert recompute.block_bytes(z, recompute.names(z)) == z.x
        if layout.tp == 1:  # without dropout torch stops before the last product, which the FLOPs of a model count
            last = 0 if dropout else 2 * z.tokens * shape.hidden * shape.h_ff * shape.layers
            assert recompute.flops(z, recompute.full(z)) + last == flops(shape, 2, 1024, "full")["recompute"]
            assert recompute.flops(z, recompute.selective(z, recompute.core(z))) == (
                flops(shape, 2, 1024, "selective")["recompute"] // (2 if attention == "naive" else 1)
            )  # Q K^T alone
            assert recompute.flops(z, recompute.none(z)) == 0
            every = recompute.outputs_flops(z, recompute.full(z), early_stop=False)
            assert every == flops(shape, 2, 1024, "full")["recompute"]


def test_a_step_that_keeps_everything_or_the_inputs_is_the_accounts_own():
    layouts = (Layout(), Layout(tp=2), Layout(pp=2), Layout(dp=4, zero=2), Layout(dp=4, zero=3))
    for shape, precision, layout, dropout in product((LLAMA, GPT), ("fp32", "autocast-bf16"), layouts, (0.0, 0.1)):
        recipe, z = Recipe(precision, dropout=dropout), sizes(shape, 2, 512, layout, precision=precision)
        z = replace(z, recipe=recipe)
        for how, policy in (("none", recompute.none(z)), ("full", recompute.full(z))):
            own = account(shape, 2, 512, replace(recipe, checkpointing=how), layout)
            found = account(shape, 2, 512, recipe, layout, policy)
            totals = [{at: sum(held.values()) for at, held in one.moments.items()} for one in (found, own)]
            # a block that keeps its input alone frees what it has made again a bias gradient earlier
            assert totals[0] == (totals[1] if how == "none" else pytest.approx(totals[1], rel=2e-3))


def test_dropping_the_core_is_selective_recomputation():
    for shape, attention in product((LLAMA, GPT, PRESETS["gpt2-xl"]), ("sdpa", "naive")):
        recipe, z = (
            Recipe("bf16-master", attention=attention, dropout=0.1),
            sizes(shape, 2, 1024, attention=attention, dropout=0.1),
        )
        policy = recompute.selective(z, recompute.core(z))
        own = account(shape, 2, 1024, replace(recipe, checkpointing="selective"))
        # torch's checkpoint of a fused core keeps its output, which the projection reads, and a tile drops that too
        output = 0 if attention == "naive" or shape.positions == "rotary" else z.q
        found = account(shape, 2, 1024, recipe, policy=policy)
        assert recompute.block_bytes(z, recompute.core(z)) + output == sum(block_kept(z, "selective").values())
        assert sum(found.moments["loss"].values()) + shape.layers * output == sum(own.moments["loss"].values())
        there = sum(found.moments["block"].values()) + (shape.layers - 1) * output
        assert there == pytest.approx(sum(own.moments["block"].values()), rel=0.01)


def test_bytes_of_a_layer_are_korthikantis():
    """34 and 5as/h of sbh, of which selective recomputation saves the second and full all but 2; section 5."""
    for name, told in {"175B": "GPT-3", "530B": "MT-NLG"}.items():
        c, seq = SAID["configurations"][name], SAID["sequence"]
        shape = Shape(c["L"], c["h"], c["a"], SAID["vocabulary"], max_seq=seq)
        z = sizes(shape, c["mbs"], seq, precision="bf16", attention="naive", dropout=0.1)
        sbh = z.tokens * shape.hidden
        statistics = 2 * 2 * 2 * z.tokens  # of two layer norms, which the paper does not list, nor the causal mask
        assert recompute.block_bytes(z, recompute.core(z)) == 34 * sbh + statistics
        assert recompute.block_bytes(z, recompute.names(z)) == 2 * sbh
        whole = recompute.block_bytes(z, frozenset()) - seq**2 - statistics
        assert whole == (34 + SAID["5as/h"][told]) * sbh
        assert 1 - 34 * sbh / whole == pytest.approx(SAID["selective_saves"][told], abs=0.005)


def test_half_of_the_blocks_keep_half_of_the_tiles():
    z = sizes()
    none, full, half = recompute.none(z), recompute.full(z), recompute.every_kth(z, 2)
    assert 2 * recompute.kept(z, half) == recompute.kept(z, none) + recompute.kept(z, full)
    assert 2 * recompute.flops(z, half) == recompute.flops(z, full)
    assert [bool(drop) for drop in recompute.every_kth(z, 3).drops[:4]] == [True, False, False, True]


def test_moments_rise_and_fall_to_nothing():
    z = sizes()
    for policy in (
        recompute.none(z),
        recompute.full(z),
        recompute.every_kth(z, 3),
        recompute.segments(z, 5),
        recompute.selective(z, {"SiLU", "norm 1"}),
    ):
        found = recompute.moments(z, policy)
        assert found[-1].held == 0
        assert all(one.held >= 0 for one in found)
        forward = [one.held for one in found if one.phase == "forward"]
        assert forward == sorted(forward) and forward[-1] == recompute.kept(z, policy)
        assert sum(one.phase == "rebuild" for one in found) == ceil(
            sum(bool(drop) for drop in policy.drops) / policy.segment
        )
    waiting = sizes(layout=Layout(pp=4))  # the first of four ranks has three more micro-batches in flight
    policy = recompute.full(waiting)
    assert recompute.moments(waiting, policy)[-1].held == 3 * recompute.kept(waiting, policy) == 3 * 8 * waiting.x


def test_the_square_root_is_best_only_where_a_block_keeps_little_beside_its_input():
    """Chen's segments: ceil(L / k) inputs and k blocks at once. 20 inputs' worth of tiles a block leave k at 1."""
    z = sizes()
    block = recompute.block_bytes(z, frozenset())
    most = {k: max(one.held for one in recompute.moments(z, recompute.segments(z, k))) for k in range(1, 33)}
    assert all(most[k] == (ceil(32 / k) - 1) * z.x + k * block for k in most if 32 % k == 0)
    assert min(most, key=most.get) == 1
    assert min(range(1, 33), key=lambda k: 32 / k + k) in (5, 6), "were a block one tensor"
    again = [recompute.flops(z, recompute.segments(z, k)) for k in (1, 2, 4)]
    assert again == sorted(set(again)), "the last product too, of every block but a segment's last"


def test_a_step_takes_less_the_more_is_dropped():
    recipe, z = Recipe("bf16-master"), sizes(GPT, 4)
    order, before = [tile.name for tile in recompute.tiles(z)[1:]], None
    for n in range(len(order) + 1):
        policy = recompute.selective(z, order[:n])
        found = account(GPT, 4, 1024, recipe, policy=policy)
        assert recompute.kept(z, policy) == 12 * recompute.block_bytes(z, order[:n])
        if before:
            assert all(sum(found.moments[at].values()) <= sum(before.moments[at].values()) for at in before.moments)
        before = found
    assert before.moments["optimizer"] == account(GPT, 4, 1024, recipe).moments["optimizer"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: recompute.tiles(sizes(checkpointing="full")), "use checkpointing none, not full"),
        (lambda: recompute.tiles(sizes(adapter="lora")), "use adapter none"),
        (lambda: recompute.selective(sizes(), {"softmax"}), "no tile 'softmax' to drop: use some of norm 1, q, k, v"),
        (lambda: recompute.selective(sizes(), {"block input"}), "no tile 'block input' to drop"),
        (lambda: recompute.every_kth(sizes(), 0), "k must be a whole number of at least 1, not 0"),
        (lambda: recompute.segments(sizes(), 1.5), "k must be a whole number of at least 1, not 1.5"),
        (lambda: recompute.kept(sizes(GPT), recompute.none(sizes())), "of 32 blocks, and a rank has 12: make it anew"),
        (
            lambda: recompute.flops(sizes(GPT), recompute.Policy((frozenset({"gate"}),) * 12)),
            "the policy drops 'gate', and a block has no such tile: make it anew",
        ),
        (
            lambda: recompute.dropped_bytes(sizes(GPT), recompute.Policy((frozenset({"gate"}),) * 12, outputs=True)),
            "the policy drops 'gate', and a block has no such tile: make it anew",
        ),
        (
            lambda: recompute.moments(sizes(GPT), recompute.Policy((frozenset(),) * 12, 0)),
            "segment must be a whole number of at least 1, not 0",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(make, said):
    refused(make, said)
