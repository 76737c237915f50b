"""The answers of `mesh`'s exercises, against the grid, the schedule and arithmetic by hand."""

import random
from functools import partial
from itertools import product
from math import prod

import answers
import pytest

from scaleout.exercises.mesh import batch, places, wires
from scaleout.spec import mesh
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import Grid
from scaleout.spec.pipeline import orders
from scaleout.spec.topology import cluster
from scaleout.timing.pipeline import Costs, summary

value = partial(answers.value, "mesh")
right = partial(answers.right, "mesh")
solution = partial(answers.solution, "mesh")
texts = partial(answers.texts, "mesh")


def grids(count):
    draw = random.Random(3)
    for _ in range(count):
        sizes = [draw.randint(1, 5) for _ in range(draw.randint(1, 4))]
        yield sizes, Grid(tuple(zip("abcd", sizes, strict=False)))


def test_groups_are_the_grids():
    groups = solution("axis-groups")
    for sizes, grid in grids(60):
        for axis, name in enumerate(grid.names):
            assert groups(sizes, axis) == [list(group) for group in grid.groups(name)]


def test_the_axes_that_leave_a_node_are_the_meshs_crossing_ones():
    """With sizes that do not divide a node too."""
    for sizes, grid in grids(40):
        for node in (size for size in range(2, 9) if grid.ranks % size == 0):
            crossing = {name for name in grid.names if mesh.crosses(cluster(grid.ranks // node, node), grid, name)}
            assert places.leaves(dict(zip(grid.names, sizes, strict=True)), node) == crossing, (sizes, node)
    assert places.leaves(places.ORDER, places.NODE) == {"tp"} and right("which-crosses") == "tp"
    assert prod(places.ORDER.values()) == 4 * places.NODE and "(4, 2, 4)" in texts("which-crosses")


def test_a_steps_sequences_are_those_of_the_replicas():
    sequences, draw = solution("sequences-a-step"), random.Random(1)
    for _ in range(100):
        layout = Layout(
            dp=draw.randint(1, 5),
            tp=draw.randint(1, 4),
            pp=draw.randint(2, 4),
            cp=draw.randint(1, 3),
            micro_batches=draw.randint(4, 9),
        )
        ep = draw.choice([1, 2, 4])
        answer = sequences(layout.ranks, layout.tp, layout.pp, layout.cp, ep, layout.m, 3)
        assert answer == layout.dp * layout.m * 3
    assert sequences(64, 2, 4, 2, 8, 16, 1) == 64
    assert sequences(8, 1, 1, 8, 1, 1, 1) == 1 and "trains on 1 sequence instead of 8" in texts("sequences-a-step")


def test_the_bubble_is_that_of_the_schedule_with_each_replicas_micro_batches():
    shares = []
    for gpus in (batch.SMALL, batch.LARGE):
        p, m = batch.PP, batch.micro_batches(gpus)
        seconds = summary("1f1b", p, m, 1, Costs((1.0,) * p, (1.0,) * p, (1.0,) * p, 0.0)).seconds
        shares.append(1 - 3 * m / seconds)
        assert seconds == 3 * (m + p - 1)
    assert value("bubble-as-dp-grows") == pytest.approx(shares[1])
    assert f"before it was {shares[0]:.1%}" in texts("bubble-as-dp-grows")


def test_in_flight_on_the_first_stage_are_as_many_as_there_are_stages():
    for stage, actions in enumerate(orders("1f1b", 4, 16)):
        flying, peak = 0, 0
        for action in actions:
            flying += {"F": 1, "B": -1}[action.kind[0]]
            peak = max(peak, flying)
        assert peak == 4 - stage


def test_zero_beside_a_pipeline_frees_and_sends_what_is_said():
    words = texts("zero-beside-pp")
    assert right("zero-beside-pp") == "stage-1"
    assert 24 * 7 / 8 == 21 and "21 of 36" in words and 8 + 4 + 24 == 36
    assert 8 * 7 / 8 == 7 and "to free 7 GB" in words and 4 * 7 / 8 == 3.5 and "for 3.5 GB" in words
    assert 2 * 32 == 64 and "64 gathers" in words


def test_a_sketch_is_the_best_of_all_and_says_when_there_is_none():
    sketch, draw = solution("sketch-a-layout"), random.Random(4)
    for _ in range(200):
        gpus = draw.choice([6, 8, 12, 24])
        node = draw.choice([size for size in (2, 3, 4, 6, 8) if gpus % size == 0])
        case = (gpus, node, gpus * draw.randint(1, 4), draw.randint(20, 600), draw.randint(5, 80), 60.5, 0.07)
        priced = {}
        for pp, dp, tp in product(range(1, gpus + 1), repeat=3):
            m = case[2] / dp
            if pp * dp * tp == gpus and node % tp == 0 and m >= pp and case[3] / tp / pp + case[4] / tp <= 60.5:
                priced[pp, dp, tp] = (1 + (pp - 1) / m) * (1 + 0.07 * (tp - 1))
        chosen = sketch(*case)
        assert bool(chosen) == bool(priced)
        assert not chosen or priced[tuple(chosen)] == pytest.approx(min(priced.values()))


def test_what_the_order_costs_is_bytes_by_two_rates():
    stream = 8192 * 8192 * 2
    size = 20 * 64 * 4 * 2 * 7 / 8 * stream
    assert size == wires.INSIDE and value("order-seconds") == pytest.approx(size / 50e9 - size / 450e9)
    hops, replicas, _ = wires.sent(4, 2, 8, 64, 20, stream, 2 * 2.14e9)
    assert f"send {hops / 1e9:.0f} GB (pp) and {replicas / 1e9:.1f} GB (dp)" in texts("order-seconds")
    assert "gain 0.4 s" in texts("order-seconds") and round((hops + replicas) * (1 / 50e9 - 1 / 450e9), 1) == 0.4
