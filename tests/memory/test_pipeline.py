"""Activations in flight: counted along the orders, against published tables, and as the account prices them."""

import itertools
import json
from itertools import accumulate
from pathlib import Path

import pytest

from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.loss import stage_kept
from scaleout.memory.mesh import rank_account
from scaleout.memory.pipeline import ends_in_flight, held, in_flight
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import SCHEDULES, allowed, orders, rank_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "pipeline.json").read_text())
SHAPE = Shape(16, 64, 4, 100, max_seq=64)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_most_in_flight_is_counted_along_the_order(schedule):
    least, most = SCHEDULES[schedule].chunks
    for p in (1, 2, 3, 5):
        for m in range(1, 3 * p + 2):
            for v in range(least, (most or 3) + 1):
                if allowed(schedule, p, m):
                    counted = [held(row) for row in orders(schedule, p, m, v)]
                    assert in_flight(schedule, p, m, v) == tuple(map(max, counted)), (p, m, v)
                    assert {row[-1] for row in counted} == {0}


def test_published_activations():
    table = PUBLISHED["idle_and_activations"]
    for p in (2, 4, 8):
        assert in_flight("1f1b", p, 4 * p)[0] == eval(table["1f1b"]["activations"], {"PP": p})
        assert set(in_flight("zb1", p, 4 * p)) == {eval(table["zb1"]["activations"], {"PP": p})}
        assert set(in_flight("dualpipev", p, 4 * p, 2)) == {eval(table["dualpipev"]["activations"], {"PP": 2 * p})}
        for v in (2, 3, 4):
            times = eval(PUBLISHED["interleaved_memory"]["times"], {"p": p, "v": v})
            assert in_flight("interleaved", p, 4 * p, v)[0] / v == pytest.approx(times * p)


def test_stages_keep_what_one_stage_does_and_the_last_one_the_logits():
    """4 bytes for each of batch x seq x vocabulary until the loss is through (arXiv 2205.05198, section 4.3)."""
    (whole,), stages = (stage_kept(PRESETS["gpt2"], 2, 1024, n, Recipe("fp32")) for n in ((12,), (4, 4, 3, 1)))
    assert [stage["input"] for stage in stages] == [0, 0, 0, 4 * 2 * 1024 * 50257]
    assert {kind: sum(stage[kind] for stage in stages) for kind in whole} == whole


@pytest.mark.parametrize(
    ("schedule", "v", "stood"),
    [
        ("gpipe", 1, (8, 8)),
        ("1f1b", 1, (4, 1)),
        ("interleaved", 2, (11, 5)),
        ("zb1", 1, (4, 4)),
        ("dualpipev", 2, (9, 9)),
    ],
)
def test_the_account_holds_what_the_schedule_does(schedule, v, stood):
    recipe = Recipe("bf16", optimizer="sgd")
    layout = Layout(pp=4, micro_batches=8, schedule=schedule, chunks=v)
    at = [Sizes(SHAPE, 2, 32, recipe, layout, rank) for rank in (0, 3)]
    assert tuple(z.in_flight for z in at) == stood
    chunk = 16 // (4 * v) * sum(block_kept(at[0], "none").values())
    held_ = rank_account(SHAPE, 2, 32, recipe, layout).moments["forward"]["activations"]
    assert held_ == pytest.approx(stood[0] * chunk, rel=0.03)  # beside them the batch


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_last_stage_has_at_one_time_follows_from_the_order(schedule):
    """Logits until the input's gradient, the inputs of norm and head until the weights'."""
    fewest, seen = SCHEDULES[schedule].chunks[0], 0
    for p, v, m in itertools.product((2, 3, 4), (fewest, fewest + 1), (1, 3, 4, 6, 8, 9)):
        try:
            rank = rank_of(schedule, p * v - 1, p)
            own = [action for action in orders(schedule, p, m, v)[rank] if action.stage == p * v - 1]
        except ValueError:
            continue  # the schedule has no such numbers
        until = [{"F": 1, "B": -1, end: -1} for end in "WI"]
        stood = tuple(max(accumulate(change.get(one.kind, 0) for one in own)) for change in until)
        assert ends_in_flight(schedule, p, m) == stood, (p, v, m)
        seen += 1
    assert seen > 5


def test_chunks_that_do_not_divide_the_layers_of_a_rank():
    with pytest.raises(ValueError, match="chunks 3 does not divide 4 layers of a rank: the nearest is 2"):
        account(SHAPE, 2, 32, Recipe(), Layout(pp=4, chunks=3, schedule="interleaved"))
