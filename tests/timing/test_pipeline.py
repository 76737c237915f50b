"""A pipelined step: closed forms and published tables, hops, waits, the critical path, and its quick summary."""

import json
import random
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from cases import refused

from scaleout.spec.pipeline import SCHEDULES, Action, allowed, enough, orders
from scaleout.timing.pipeline import Costs, even, step, summary, timeline
from scaleout.timing.pipeline_sketch import sketch
from scaleout.timing.pipeline_waits import blocked, needs

FOLDER = Path(__file__).parents[1] / "published"
PUBLISHED = json.loads((FOLDER / "pipeline.json").read_text())
ZERO_BUBBLE = json.loads((FOLDER / "zero_bubble.json").read_text())["rows"]
F, B, I, W = ("F", "B", "I", "W")  # noqa: E741


def some_costs(stages: int, seed: int) -> Costs:
    dice = random.Random(seed)
    three = [tuple(dice.random() for _ in range(stages)) for _ in range(3)]
    return Costs(*three, hop=dice.choice((0.0, dice.random())), blocking=dice.random() < 0.5)


def nearly_even(stages: int, seed: int) -> Costs:
    """So near that a sum of some has to be looked at closely."""
    dice = random.Random(seed)
    return Costs(*(tuple(1 + 1e-8 * dice.random() for _ in range(stages)) for _ in range(3)), hop=0.25)


def cases(largest: int):
    """(schedule, p, m, v) that the schedules take."""
    for name, facts in SCHEDULES.items():
        for p in (1, 2, 3, largest):
            for m in (2, p + 1, 2 * p, 4 * p + 12):
                for v in {facts.chunks[0], facts.chunks[1] or 3}:
                    if allowed(name, p, m):
                        yield name, p, m, v


@pytest.mark.parametrize(("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)])
def test_published_bubbles_of_even_stages(schedule, v):
    for p, m in ((2, 2), (4, 8), (4, 32), (8, 16)):
        ideal = eval(PUBLISHED["bubbles_of_ideal"][schedule], {"p": p, "m": m, "v": v})
        found = summary(schedule, p, m, v, even(p * v, 0.8, 1.1, 0.5))
        assert found.bubble_of_ideal == pytest.approx(ideal)
        assert found.bubble == pytest.approx(ideal / (1 + ideal))  # for v = 1: (p-1)/(m+p-1)


@pytest.mark.parametrize(
    ("schedule", "forward", "whole", "weight"),
    [
        ("1f1b", 1, 2.5, 1),
        ("zb1", 1, 2, 1),
        ("zb1", 1, 1.9, 0.7),
        ("zb1", 1.2, 2.2, 1),
    ],
)
def test_published_idle_seconds(schedule, forward, whole, weight):
    for p, m in ((2, 4), (4, 8), (6, 12)):
        formula = PUBLISHED["idle_and_activations"][schedule]["idle"]
        idle = eval(formula, {"PP": p, "F": forward, "B": whole, "W": weight})
        found = summary(schedule, p, m, 1, even(p, forward, whole - weight, weight))
        assert found.idle == pytest.approx((idle,) * p)


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=lambda row: f"{row['model']}-{row['m']}")
def test_published_bubble_rates_of_profiled_times(row):
    """Uneven parts and a hop: 1F1B and ZB-H1 to the digits printed, interleaved within 4%."""
    rates = {}
    for schedule, v in (("1f1b", 1), ("zb1", 1), ("interleaved", row["layers_per_stage"])):
        parts = (row[part] / v for part in ("F", "I", "W"))
        rates[schedule] = summary(schedule, row["p"], row["m"], v, even(row["p"] * v, *parts, row["hop"])).bubble
    assert rates["1f1b"] == pytest.approx(row["1f1b"], abs=6e-5)
    assert rates["zb1"] == pytest.approx(row["zb-h1"], abs=6e-5)
    assert rates["interleaved"] == pytest.approx(row["interleaved"], rel=0.045)


def test_zero_bubble_of_three_equal_parts():
    for p, m in ((2, 4), (4, 8), (8, 32)):
        assert summary("zb1", p, m, 1, even(p)).bubble == pytest.approx((p - 1) / (3 * m + p - 1))


def test_a_hop_of_half_a_forward():
    """Four ranks, eight micro-batches: 1F1B holds too few to hide the way there and back."""
    slots = {
        name: summary(name, 4, 8, v, even(4 * v, 1 / v, 1 / v, 1 / v, hop=0.5)).seconds
        for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
    }
    assert slots == {"gpipe": 36, "1f1b": 41, "interleaved": 35.5}


def test_gpipe_has_a_closed_form_with_hops():
    for p, m in ((2, 3), (4, 8), (7, 5)):
        for blocking in (False, True):
            found = summary("gpipe", p, m, 1, even(p, 1, 1, 1, 0.25, blocking)).seconds
            sent = 2 * 0.25 * ((p - 1) + (m - 1) * blocking * (p > 1))  # a sender that blocks spends it on each
            assert found == (m + p - 1) * 3 + sent


def test_every_action_starts_as_soon_as_it_can():
    for seed, (schedule, p, m, v) in enumerate(cases(4)):
        costs = some_costs(p * v, seed)
        found = step(schedule, p, m, v, costs)
        ends = {run.action: run for row in found.runs for run in row}
        ends |= {Action("BI"[a.kind == "B"], *a[1:]): run for a, run in ends.items() if a.kind in "BI"}
        home = {run.action.stage: run.rank for row in found.runs for run in row}
        for row in found.runs:
            free = 0.0
            for run in row:
                need = needs(run.action, p * v)
                source = ends[need] if need else None
                came = source.end + costs.hop * (source.rank != run.rank) if source else 0.0
                assert run.start == pytest.approx(max(free, came)) and run.wait == pytest.approx(run.start - free)
                onward = run.action.stage + (1 if run.action.kind == F else -1)
                leaves = run.action.kind != W and home.get(onward, run.rank) != run.rank
                free = run.end + costs.hop * (costs.blocking and leaves)
        assert found.seconds >= max(run.end for row in found.runs for run in row)
        assert sum(found.work) == pytest.approx(sum(r.end - r.start for row in found.runs for r in row))


@pytest.mark.parametrize("seed", range(2))
def test_the_summary_is_the_timelines(seed):
    for schedule, p, m, v in cases(5):
        for costs in (some_costs(p * v, seed), nearly_even(p * v, seed), even(p * v, 1, 1.5, 0.5, seed / 4, seed == 1)):
            quick, whole = summary(schedule, p, m, v, costs), step(schedule, p, m, v, costs)
            assert quick.seconds == pytest.approx(whole.seconds, rel=1e-12), (schedule, p, m, v)
            assert (quick.work, quick.in_flight) == (whole.work, whole.in_flight)
            given = timeline(orders(schedule, p, m, v), costs)
            assert (given.starts, given.seconds, given.in_flight) == (whole.starts, whole.seconds, whole.in_flight)


@pytest.mark.parametrize(
    ("schedule", "v"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("zb1", 2),
        ("dualpipev", 2),
    ],
)
def test_the_critical_path_fills_the_step(schedule, v):
    hop = 0.25
    found = step(schedule, 4, 8, v, even(4 * v, 1, 1, 1, hop))
    path = found.critical
    assert path[0].start == 0 and path[-1].end == found.seconds and path[0].action == Action(F, 0, 0)
    for one, two in pairwise(path):
        assert two.start - one.end == (0 if one.rank == two.rank else hop)


def test_enough_micro_batches_fill_the_pipeline():
    """More do not fill it better; fewer than ranks leave more idle, but under GPipe, where it is always as much."""
    for name, facts in SCHEDULES.items():
        for p in (2, 3, 4, 6):
            v, n = max(1, facts.chunks[0]), enough(name, p)
            some = [m for m in range(1, 4 * p + 1) if allowed(name, p, m)]
            idle = {m: max(summary(name, p, m, v, even(p * v)).idle) for m in some}
            assert all(idle[m] == pytest.approx(idle[n]) for m in some if m >= n), (name, p)
            assert name == "gpipe" or all(idle[m] > idle[n] + 0.5 for m in some if m < p), (name, p)
            assert p <= n <= 2 * p


def test_held_over_time_and_windows():
    found = step("1f1b", 4, 8, 1, even(4))
    assert [max(n for _, n in found.held(rank)) for rank in range(4)] == [4, 3, 2, 1] == list(found.in_flight)
    assert found.held(3)[:3] == ((3.0, 1), (6.0, 0), (6.0, 1))
    seen = found.window(2, 7.5, 12)
    assert seen == tuple(run for run in found.runs[2] if run.end > 7.5 and run.start < 12) and len(seen) == 4
    row = found.runs[2]
    for start, end in combinations(sorted({at for run in row for at in (run.start, run.end)}), 2):
        wanted = tuple(run for run in row if run.end > start and run.start < end)
        assert found.window(2, start, end) == wanted, "what only touches the stretch is not in it"


def test_a_deadlock_is_named():
    order = [list(row) for row in orders("1f1b", 2, 2)]
    order[0] = [Action(F, 0, 0), Action(B, 0, 0), Action(F, 0, 1), Action(B, 0, 1)]
    order[1] = [Action(F, 1, 0), Action(F, 1, 1), Action(B, 1, 0), Action(B, 1, 1)]
    ring = blocked(order)
    assert {(wait.rank, wait.action, wait.for_action) for wait in ring} == {
        (0, Action(B, 0, 0), Action(B, 1, 0)),
        (1, Action(F, 1, 1), Action(F, 0, 1)),
    }
    with pytest.raises(ValueError, match="rank 0 waits at B0 of stage 0 for B0 of stage 1, of rank 1; rank 1 waits at"):
        timeline(order, even(2))
    alone = [[Action(W, 0, 0), Action(F, 0, 0), Action(I, 0, 0)]]
    with pytest.raises(ValueError, match="for I0 of stage 0, which comes later in its own order"):
        timeline(alone, even(1))


def test_ranks_that_both_send_first_hang_where_a_send_waits_for_its_receiver():
    assert not blocked(orders("gpipe", 4, 8), rendezvous=True)
    two = blocked(orders("1f1b", 2, 4), rendezvous=True)
    assert [(wait.rank, wait.sends, wait.action) for wait in two] == [
        (0, True, Action(F, 0, 1)),
        (1, True, Action(B, 1, 0)),
    ]
    for schedule, facts in SCHEDULES.items():
        assert not blocked(orders(schedule, 4, 8, facts.chunks[0]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda row: row.pop(), "micro-batch 1 on stage 0 has F: give it F and B, or F, I and W"),
        (lambda row: row.append(row[0]), "F0 of stage 0 is there twice, on ranks 0 and 0"),
        (lambda row: row.append(Action(F, 5, 0)), "there is no F0 of stage 5: kinds are F, B, I and W, stages 0 to 1"),
    ],
)
def test_what_is_no_order(change, line):
    order = [list(row) for row in orders("1f1b", 2, 2)]
    change(order[0])
    with pytest.raises(ValueError, match=line):
        timeline(order, even(2))


def test_a_stage_is_on_one_rank():
    order = [list(row) for row in orders("1f1b", 2, 2)]
    order[0].append(order[1].pop())
    with pytest.raises(ValueError, match="stage 1 is on ranks 0 and 1: give it to one"):
        timeline(order, even(2))


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: step("foo", 4, 8, 1, even(4)), "schedule 'foo' is unknown: use one of gpipe, 1f1b, "),
        (lambda: summary("foo", 4, 8, 1, even(4)), "schedule 'foo' is unknown"),
        (lambda: step("1f1b", 4, 0.5, 1, even(4)), "m must be a whole number"),
        (lambda: summary("1f1b", 4, 8, "1", even(4)), "v must be a whole number"),
        (lambda: step("1f1b", 4, 8, 1, 3.0), "costs must be a Costs, not 3.0"),
        (lambda: timeline([], 3.0), "costs must be a Costs, not 3.0"),
        (lambda: timeline([], even(2)), "the order has no action in it: give each stage a forward and a backward of"),
        (lambda: timeline([[], []], even(2)), "the order has no action in it"),
        (lambda: timeline([[Action(F, 0, 0.5), Action(B, 0, 0.5)]], even(1)), "there is no F0.5 of stage 0: kinds are"),
        (lambda: timeline([[Action("FB", 0, 0)]], even(1)), "there is no FB0 of stage 0"),
        (lambda: timeline([[("F", 0, 0)]], even(1)), "there is no ('F', 0, 0): kinds are"),
        (lambda: blocked([[Action(F, 0, 0), ("F", 0, 0)]]), "there is no ('F', 0, 0)"),
        (lambda: blocked([[Action(F, 0.5, 0)]]), "there is no F0 of stage 0.5"),
    ],
)
def test_what_cannot_be_is_one_line(call, line):
    refused(call, line)


def test_costs_of_another_pipeline_and_below_zero():
    with pytest.raises(ValueError, match="costs are of 4 stages, p \\* v is 8: give costs of 8"):
        summary("interleaved", 4, 8, 2, even(4))
    with pytest.raises(ValueError, match="hop must be a finite number from 0 up"):
        even(4, hop=-1)
    with pytest.raises(ValueError, match="one number for each stage"):
        Costs((1.0,), (1.0, 1.0), (1.0,))


def test_a_sketch_is_the_whole_of_some_ranks():
    """What is swept or queued starts when the clock says, for each action of the ranks that are asked for; and turns
    that are left out, since they come again, are as they would have been."""
    longer = [
        ("1f1b", 4, 40, 1),
        ("zb1", 4, 48, 1),
        ("zb1", 4, 48, 2),
        ("interleaved", 4, 64, 3),
        ("bfs", 4, 50, 2),
        ("zbv", 4, 61, 2),
        ("dualpipev", 4, 63, 2),
    ]
    for seed, (name, p, m, v) in enumerate([*cases(5), *longer, *longer, *longer]):
        head = (0.75 * (seed % 2),)
        dice = some_costs(p * v, seed)
        if seed % 2:
            dice = replace(dice, weight=(*dice.weight[1:], 0.0))
        for costs in (
            dice,
            even(p * v, 1, 1.5, 0.5, seed % 5 / 3, seed % 3 == 1),
            Costs((1.0,) * (p * v - 1) + head, (1.25,) * p * v, (0.5,) * p * v, seed % 4 / 8),
        ):
            whole, some = step(name, p, m, v, costs), sketch(name, p, m, v, costs, (0, p - 1))
            assert some.seconds == pytest.approx(whole.seconds, rel=1e-12) == summary(name, p, m, v, costs).seconds
            for rank in (0, p - 1):
                (*what, starts, _), (*also, same, _) = some.lane(rank), whole.lane(rank)
                assert what == also and starts == pytest.approx(same, rel=1e-11), (name, p, m, v, costs)


@pytest.mark.parametrize("name", ["zbv", "dualpipev"])
def test_turns_that_come_again_after_as_many_as_there_are_ranks(name):
    costs = Costs((0.5,) * 8, (0.25,) * 8, (0.25,) * 8, 2.0)
    for m in range(50, 54):
        whole, some = step(name, 4, m, 2, costs), sketch(name, 4, m, 2, costs, (0, 3))
        assert some.seconds == pytest.approx(whole.seconds, rel=1e-12)
        assert all(some.lane(rank)[3] == pytest.approx(whole.lane(rank)[3], rel=1e-11) for rank in (0, 3))


@pytest.mark.parametrize("name", ["interleaved", "zb1"])
def test_rounds_that_are_left_out_wrap_as_they_would(name):
    """Ranks unlike, each with chunks alike: so one turn may come again while what wraps round does not yet."""
    dice = random.Random(1)
    for _ in range(60):
        p, v = dice.choice((2, 3, 6)), dice.choice((2, 3))
        ranks, hop = tuple(dice.choice((1.0, 1.5, 2.0)) for _ in range(p)), dice.choice((0.0, 0.25, 1.0))
        costs, m = Costs(*[ranks * v] * 3, hop, dice.random() < 0.4), p * dice.randint(4, 12)
        whole, some = step(name, p, m, v, costs), sketch(name, p, m, v, costs, range(p))
        assert some.seconds == pytest.approx(whole.seconds, rel=1e-12)
        for rank in range(p):
            assert some.lane(rank)[3] == pytest.approx(whole.lane(rank)[3], rel=1e-11), (p, m, v, costs)


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [
        ("1f1b", 3, 7, 1),
        ("interleaved", 3, 12, 2),
        ("bfs", 3, 5, 2),
        ("zb1", 3, 9, 2),
        ("zbv", 4, 5, 2),
        ("zbv", 3, 9, 2),
        ("dualpipev", 3, 9, 2),
    ],
)
def test_a_sketch_knows_each_micro_batch_and_the_work_until_a_moment(name, p, m, v):
    costs = some_costs(p * v, 3)
    some = sketch(name, p, m, v, costs, range(p))
    for rank in range(p):
        actions = [*zip(*some.lane(rank), strict=True)]
        for micro in range(m):
            mine = [(kind, stage, start, end) for kind, stage, one, start, end in actions if one == micro]
            assert some.of(rank, micro) == mine
        for kind, strand in some.strands(rank).items():
            spans = [(start, end) for one, _, _, start, end in actions if one == kind]
            moments = [some.seconds * n / 50 for n in range(51)]
            done = [sum(min(end, now) - start for start, end in spans if start <= now) for now in moments]
            assert strand.upto(moments) == pytest.approx(done)
            assert strand.ended(moments) == [sum(end <= now for _, end in spans) for now in moments]
