"""The card of rung 09: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout.draw import recompute_hills as hills
from scaleout.memory import recompute as memory
from scaleout.memory.activations import Sizes
from scaleout.page import cards
from scaleout.spec.layout import Layout
from scaleout.timing import compute, machine
from scaleout.timing import recompute as timing

CARD = cards.load("recompute")
FORMULAS = [one["tex"] for one in CARD["formulas"]]
Z, RANK = hills.sizes(), machine.from_datasheet(hills.JOB)
RATES, SPENT = RANK.rates, timing.phases(hills.JOB, RANK)
TILES = {tile.name: tile for tile in memory.tiles(Z)}
WHOLE = sum(tile.bytes for tile in TILES.values())


def price(name):
    """Seconds for a byte of a tile, but for the gap before its kernel."""
    return (SPENT[name].seconds - SPENT[name].launches) / TILES[name].bytes


@pytest.mark.parametrize(("name", "moves"), [("norm 1", 2), ("SiLU", 2), ("copy", 2), ("product", 3)])
def test_what_waits_for_memory_costs_what_it_moves(name, moves):
    assert value(FORMULAS[0], k=moves, B=RATES.memory_bytes_per_s) == pytest.approx(price(name), rel=1e-3)


@pytest.mark.parametrize("name", ["v", "gate", "up"])
def test_a_product_costs_what_it_sums_over(name):
    """Nearly: its tiles begin and end, and their last wave is not full."""
    assert value(FORMULAS[1], h=hills.SHAPE.hidden, R=RATES.matmul_flop_per_s) == pytest.approx(price(name), rel=0.04)


def test_attention_costs_its_sequence():
    """A sequence of 4,096 tokens does not quite reach what long ones do."""
    rate = RATES.attention_flop_per_s[0]
    assert value(FORMULAS[2], s=hills.SEQ, R=rate) == pytest.approx(price("attention"), rel=0.11)


def test_bytes_with_inputs_alone_are_the_highest_moment():
    found = value(FORMULAS[3], L=hills.SHAPE.layers, x=Z.x, A=WHOLE)
    assert found == max(one.held for one in memory.moments(Z, memory.full(Z)))


def test_bytes_of_the_first_stage_count_what_is_in_flight():
    z = Sizes(hills.SHAPE, 1, hills.SEQ, hills.RECIPE, Layout(pp=4, micro_batches=8))
    block = sum(tile.bytes for tile in memory.tiles(z))
    found = value(FORMULAS[4], p=4, L=8, x=z.x, A=block)
    assert found == max(one.held for one in memory.moments(z, memory.full(z)))


def test_numbers_are_the_packages():
    cheap = [TILES[name] for name in hills.CHEAP]
    share = sum(SPENT[name].seconds for name in hills.CHEAP) / compute.block(hills.JOB, RANK).forward.seconds
    assert round(1 / share) == 10
    assert [one["value"] for one in CARD["numbers"]] == [
        f"1/{WHOLE / Z.x:.0f}", f"{sum(tile.bytes for tile in cheap) / WHOLE:.0%}",
        f"{1e12 * price('norm 1'):.1f} and {1e12 * price('up'):.1f} ms", "1/3",
        str(timing.gathers(memory.full(Z))[0]),
    ]  # fmt: skip
