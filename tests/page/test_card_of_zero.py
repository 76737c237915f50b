"""The card of rung 05: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout.collectives import zero as wire
from scaleout.memory.allocator import usable
from scaleout.memory.states import state_bytes
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

CARD, G = cards.load("zero"), usable(DEVICES["h100-sxm"].memory_bytes)
MIXED, N = Recipe(precision="bf16-master"), total_parameters(PRESETS["llama-2-7b"])


def held(stage, ranks=4, parameters=N):
    return sum(state_bytes(parameters, MIXED, Layout(dp=ranks, zero=stage)).values())


def pieces(stage, way="paper", **options):
    return wire.pieces(N, MIXED, Layout(dp=4, zero=stage), way, **options)


@pytest.mark.parametrize("ranks", [1, 4, 64, 1000])
def test_bytes_of_a_parameter_are_the_stages(ranks):
    found = [held(stage, ranks, 10**9) / 10**9 for stage in (1, 2, 3)]
    assert [value(one["tex"], W=ranks) for one in CARD["formulas"][:3]] == pytest.approx(found, rel=1e-6)


def test_where_stages_end_is_what_they_leave_whole():
    first, second = CARD["formulas"][3]["tex"].split(r",\ ")
    whole = [held(stage, 10**6, 10**9) / 10**9 for stage in (1, 2)]
    assert [80 / value(one, G=80) for one in (first, second)] == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("passes", [1, 2, 16])
def test_pieces_are_those_of_the_messages(passes):
    said = CARD["formulas"][4]["tex"].split(r",\ ")
    assert [value(one, m=passes) for one in said] == [pieces(stage, passes=passes) for stage in range(4)]


def test_numbers_are_the_packages():
    gigabytes = [f"{held(stage) / 1e9:.1f}" for stage in range(4)]
    sixteen = ", ".join(f"{pieces(stage, passes=16):g}" for stage in range(4))
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{gigabytes[0]} GB",
        f"{', '.join(gigabytes[1:])} GB",
        f"{G / 4e9:.0f} and {G / 2e9:.0f} billion",
        sixteen,
        f"{pieces(1, 'ZeroRedundancyOptimizer'):g}",
    ]
    assert f"({G / 1e9:.1f} GB)" in CARD["numbers"][2]["words"]
