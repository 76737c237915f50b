"""Runs that somebody made, on the GPUs that they were made on: what the account calls too large did fit."""

import json
from collections import Counter
from pathlib import Path

import pytest

from scaleout.memory import allocator
from scaleout.memory.accounts import account
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, total_parameters

TABLE = json.loads((Path(__file__).parents[1] / "published" / "llm_foundry_runs.json").read_text())
RUNS = [(key.split()[0], *row) for key, rows in TABLE["runs"].items() for row in rows]
# By loss: (fits, may fit, does not fit). The runs' own loss was a fused one.
VERDICTS = {"eager": (117, 36, 56), "fused": (188, 21, 0), "chunked": (200, 9, 0)}


def shape_of(name, seq):
    sizes = TABLE["shapes"][name]
    return Shape(sizes["layers"], sizes["hidden"], sizes["heads"], TABLE["vocab"], bias=False, max_seq=seq)


def held(run, loss):
    """The account of a run's rank."""
    _, name, seq, gpus, batch, checkpointing, stage = run
    recipe = Recipe("autocast-bf16", checkpointing=checkpointing, loss=loss)
    return account(shape_of(name, seq), batch, seq, recipe, Layout(dp=gpus, zero=stage))


def test_shapes_have_the_parameters_that_were_printed():
    for name, sizes in TABLE["shapes"].items():
        assert total_parameters(shape_of(name, 2048)) == pytest.approx(sizes["parameters"], rel=0.001)


@pytest.mark.parametrize("loss", VERDICTS)
def test_how_many_of_the_runs_fit(loss):
    """None that was made is called too large, once the loss is the one that it was made with."""
    assert len(RUNS) == 209
    found = Counter(allocator.verdict(held(run, loss).peak_bytes, DEVICES[run[0]].memory_bytes) for run in RUNS)
    assert tuple(found[word] for word in ("fits", "may fit", "does not fit")) == VERDICTS[loss]


def test_what_an_eager_loss_would_not_have_left_room_for_are_three_fp32_copies_of_the_logits():
    large = [run for run in RUNS
             if allocator.verdict(held(run, "eager").peak_bytes, DEVICES[run[0]].memory_bytes) == "does not fit"]
    for run in large:
        peak = held(run, "eager")
        assert peak.peak_moment == "loss" and peak.peak["logits"] == 3 * 4 * run[4] * run[2] * TABLE["vocab"]
