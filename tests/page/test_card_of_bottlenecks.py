"""The card of rung 00: its formulas and numbers are the package's, and those of published runs."""

import json

import pytest
from repo import text
from tex import value

from scaleout import views
from scaleout.exercises.bottlenecks import shares
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS, flops, total_parameters
from scaleout.timing import verdict

CARD = cards.load("bottlenecks")
ARITHMETIC, LINK, BALANCE, FIXED, AMDAHL = (one["tex"] for one in CARD["formulas"])
PUBLISHED = json.loads(text("tests/published/long_context.json"))


def test_six_flops_per_parameter_and_token_but_for_attention():
    shape, tokens = PRESETS["llama-3-8b"], 2048
    counted = sum(flops(shape, 1, tokens).values())
    assert value(ARITHMETIC, N=total_parameters(shape), T=tokens, R=1.0) == pytest.approx(counted, rel=0.06)


def test_seconds_on_a_link_are_bytes_times_beta():
    assert value(LINK, n=16e9, beta=1 / 50e9) == pytest.approx(0.32)


def test_the_balance_is_the_datasheets():
    h100 = DEVICES["h100-sxm"]
    assert round(value(BALANCE, F=h100.bf16_flop_per_s, B=h100.memory_bytes_per_s)) == 295


def step_times():
    """Seconds per step of the published runs, in their order."""
    each = PUBLISHED["setup"]["sequences_per_step"]
    return [each * run["sequence"] / run["tokens_per_second"] for run in PUBLISHED["runs"]]


def test_the_fixed_cost_is_what_two_batches_tell():
    for fixed, per_batch in ((3.0, 2.0), (0.0, 5.0)):
        assert value(FIXED, Y_1=fixed + per_batch, Y_2=fixed + 2 * per_batch) == pytest.approx(fixed)
        assert shares.line(1.0, fixed + per_batch, 2.0, fixed + 2 * per_batch)[0] == pytest.approx(fixed)


def test_a_part_that_becomes_faster():
    for q, r in ((0.62, 1.7), (0.08, 5)):
        assert value(AMDAHL, q=q, r=r) == pytest.approx(1 / ((1 - q) + q / r))


def test_numbers_are_the_packages():
    _, one, middle, long = step_times()
    tokens = [PUBLISHED["setup"]["sequences_per_step"] * run["sequence"] for run in PUBLISHED["runs"][1:]]
    fixed, per_token = shares.line(tokens[0], one, tokens[2], long)
    assert fixed + per_token * tokens[1] == pytest.approx(
        middle, rel=0.02
    )  # the third run is on the line of the others
    before, after = (views.render("bottlenecks", change)["values"]["seconds"] for change in ({}, {"link": "faster"}))
    printed, gpus = 45.51, 16  # huggingface/blog, issue 1649: the tokens of 16 GPUs over the peak of one
    assert [one["value"] for one in CARD["numbers"]] == [
        "295",
        f"{fixed / one:.0%}",
        f"{before / after:.1f}×",
        f"{verdict.CLEAR}×",
        f"{printed / gpus:.2f}%",
    ]


def test_the_chapters_table_is_the_published_one():
    chapter = text("notebooks/00_bottlenecks.ipynb")
    for run in PUBLISHED["runs"]:
        assert f"({run['gpus']}, {run['sequence']}, {run['tokens_per_second']})" in chapter
        assert f"{run['sequence']:,} | {run['tokens_per_second']:,}" in chapter


def test_eight_symptoms_for_eight_resources():
    assert len(CARD["tables"][0]["rows"]) == len(verdict.RESOURCES)
