"""The answers of `pipeline`'s exercises, against arithmetic by hand, the schedules' own orders, and broken ones."""

import random
from fractions import Fraction
from functools import partial

import answers
import pytest
from cases import each

from scaleout import exercises
from scaleout.exercises.pipeline import costs, hang, orders
from scaleout.spec import pipeline as spec
from scaleout.spec.pipeline import Action
from scaleout.timing import pipeline_waits

GB = 10**9

value = partial(answers.value, "pipeline")
right = partial(answers.right, "pipeline")
solution = partial(answers.solution, "pipeline")
texts = partial(answers.texts, "pipeline")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("bubble-share") == pytest.approx(Fraction(8 - 1, 24 + 8 - 1))
    assert value("micro-batches") == pytest.approx(Fraction(12 - 1, 1536 // (16 * 2)))
    assert value("held-by-rank") == (8 - 2) * 2.5 * GB
    assert value("uneven-stage") == pytest.approx((32 * 1.6 + 8 - 1) / (32 + 8 - 1) - 1)


def test_no_number_is_one_of_the_chapters():
    """The chapter's are p = 4 and m = 8, with 3/8 of the work and 3/11 of the step."""
    for key in ("bubble-share", "micro-batches", "uneven-stage"):
        assert round(value(key), 3) not in (0.375, 0.273, 0.75, 0.086, 0.429, 0.1), key


def test_what_scaling_costs():
    """Four times the GPUs, at best (192 + 11) / (48 + 11) times as fast."""
    assert f"{(192 + 11) / (48 + 11):.2f} times as fast" in texts("micro-batches")
    assert "11/192 = 5.7%" in texts("micro-batches")


def test_two_orders_with_one_bubble():
    assert right("same-bubble") == "memory"
    text = texts("same-bubble")
    assert f"7/39 = {7 / 39:.1%} of the total time" in text and f"**{7 / 71:.1%}**" in text
    assert f"{3 * 39} slots" in text


def test_hops_are_counted_once_by_gpipe_and_in_every_round_by_1f1b():
    assert right("hop") == "gpipe"
    assert costs._SLOW["gpipe"] == 3 * (18 + 6 - 1) + 2 * (6 - 1) == 79
    assert costs._SLOW["gpipe"] < costs._SLOW["interleaved"] < costs._SLOW["1f1b"]
    assert costs._FREE["interleaved"] < costs._FREE["1f1b"] == costs._FREE["gpipe"]
    four_chunks = costs.step("interleaved", 6, 18, 4, hop=1.0).seconds
    assert four_chunks > costs._SLOW["interleaved"]  # with four chunks per rank it loses


def test_the_balanced_stages_are_as_even_as_whole_blocks_can_be():
    """Ten blocks per stage, and a head as heavy as six: 86 on eight ranks."""
    assert round((1.6 - 1) * 10) == 6
    balanced = sorted([10 - 6 + 6, *[11] * 6, 10])
    assert sum(balanced) == 8 * 10 + 6 and max(balanced) == -(-86 // 8) == 11
    assert "Llama 3 8B is best cut into 9, 9, 8, 6 blocks" in costs.UNEVEN_STAGE.solution, "as in the chapter's table"


def test_an_order_with_a_limit_lies_between_gpipe_and_one_batch_at_a_time():
    order = solution("order-1f1b")

    def listed(actions):
        return [action.micro + 1 if action.kind == "F" else -action.micro - 1 for action in actions]

    for p, m in ((1, 3), (3, 5), (4, 8), (6, 7)):
        for rank, actions in enumerate(spec.orders("1f1b", p, m)):
            assert order(rank, p, m, p) == listed(actions) == orders._limited(rank, p, m, p)
        assert order(0, m, m, m) == listed(spec.orders("gpipe", p, m)[0])
        assert order(0, p, m, 1) == [step for i in range(1, m + 1) for step in (i, -i)]
    times = [orders.limited_seconds(6, 12, limit) for limit in range(1, 9)]
    assert times == sorted(times, reverse=True) and times[5:] == [51] * 3 and times[0] == 12 * 3 * 6


def test_who_waits_is_what_the_simulator_of_the_rung_says():
    """For orders by chance: nobody where it ends, and where it does not, the ring that it names."""
    waits_for, chance, stuck = solution("simulate"), random.Random(0), 0
    for _ in range(150):
        p, m = chance.randint(1, 4), chance.randint(1, 3)
        rows = [
            chance.sample(row, len(row)) if chance.random() < 0.3 else list(row)
            for row in spec.orders(chance.choice(["gpipe", "1f1b"]), p, max(m, p))
        ]
        waits = waits_for([[(action.kind, action.micro) for action in row] for row in rows])
        if any(
            row.index(Action("B", rank, i)) < row.index(Action("F", rank, i))
            for rank, row in enumerate(rows[:-1])
            for i in range(max(m, p))
        ):
            continue  # it needs its own forward too, and either may be named
        ring = pipeline_waits.blocked(rows)
        assert (set(waits) == {-1}) == (not ring)
        assert [waits[wait.rank] for wait in ring] == [wait.of_rank for wait in ring]
        stuck += bool(ring)
    assert stuck > 20


def test_the_four_that_stand_are_those_of_1f1b_with_sends_that_wait():
    ring = pipeline_waits.blocked(spec.orders("1f1b", 4, 8), rendezvous=True)
    assert [(wait.rank, wait.of_rank, wait.action) for wait in ring] == [
        (2, 3, Action("F", 2, 1)),
        (3, 2, Action("B", 3, 0)),
    ]
    lines = [f"rank {rank} waits to send activations {3 - rank} to rank {rank + 1}" for rank in range(3)]
    assert hang.STANDING.splitlines() == [*lines, "rank 3 waits to send gradient 0 to rank 2"]
    assert right("both-send") == "pair" and right("tied-table") == "add"


@each(
    [
        ("bubble-share", "29%", "of-the-work"),
        ("bubble-share", "7/31", ""),
        ("bubble-share", "22%", "rounded"),
        ("held-by-rank", "12.5 GB", "one-short"),
        ("held-by-rank", "17.5 GB", "from-one"),
        ("held-by-rank", "14 GiB", ""),
        ("uneven-stage", "60%", "whole-step"),
        ("uneven-stage", "7.5%", "mean"),
        ("uneven-stage", "1.5%", "once"),
        ("uneven-stage", "49%", ""),
        ("micro-batches", "18.6%", "of-the-step"),
        ("micro-batches", "23%", ""),
    ]
)
def test_misconceptions_of_the_rung_are_each_named(key, answer, slip):
    verdict = answers.verdict("pipeline", key, answer)
    assert (verdict["ok"], verdict["slip"]) == (not slip, slip)


WAITS = answers.code_of(exercises.exercise("pipeline", "simulate"))
ORDER = answers.code_of(exercises.exercise("pipeline", "order-1f1b"))


@each(
    [
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "min(p - rank, m)", "no-limit"),
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "min(limit, m)", "limit-for-all"),
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "min(p - rank - 1, limit, m)", "only-below"),
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "min(p - rank, limit)", "past-the-end"),
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "min(rank + 1, limit, m)", "ranks-above"),
        ("order-1f1b", ORDER, "min(p - rank, limit, m)", "m", "all-forwards"),
        ("simulate", WAITS, "while moved:", "for _ in range(1):", "one-round"),
        ("simulate", WAITS, 'return "F", rank, i', "return None", "free-backward"),
        ("simulate", WAITS, "else -1\n", "else 0\n", "one-for-zero"),
        ("simulate", WAITS, "needs(rank)[1] if", "rank if", "whether"),
        ("simulate", WAITS, "needs(rank)[1] if", "needs(rank)[1] + 1 if", "from-one"),
    ]
)
def test_a_solution_with_one_change_is_told_its_cause(key, source, old, new, slip):
    assert old in source
    assert answers.verdict("pipeline", key, source.replace(old, new))["slip"] == slip
