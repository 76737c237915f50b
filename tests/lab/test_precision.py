"""What the lab of precisions says: which fault a log shows, histograms as text and in a Record. Pure."""

import math
import re

import pytest

from scaleout.lab import precision
from scaleout.numerics.octaves import Histogram


def row(loss=3.0, skipped=False, forward=1.0, ranks=(1.0, 1.0), zero=0.0, stayed=0.0):
    return {
        "loss": loss,
        "skipped": skipped,
        "forward": {"up": 1.0, "down": forward},
        "backward": {"down": 1.0},
        "ranks": list(ranks),
        "zero": zero,
        "stayed": stayed,
        "scale": 2.0,
    }


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("log", "name", "why"),
    [
        ([row(NAN, True, INF, (INF, INF))] * 4, "overflow", "first in down"),
        ([row(NAN, False, INF, (INF,))] * 4, "overflow", "first in down"),
        ([row(3.0, True, 1.0, (1.0, INF), stayed=1.0)] * 4, "bad-rank", "only the gradients of rank 1 are not"),
        ([row(3.0, True, 1.0, (INF, INF))] * 4, "none", "still searching"),
        ([row()] * 2 + [row(zero=0.9)] * 2, "underflow", "90.00% of the gradients are zero"),
        ([row(stayed=0.8)] * 4, "stagnation", "80.00% of the weights do not change"),
        ([row(skipped=True)] * 2 + [row()] * 2, "none", "weights change"),
        ([row(zero=0.1)] * 4, "none", "weights change"),
    ],
)
def test_faults_are_told_apart(log, name, why):
    found, words = precision.diagnosis(log)
    assert found == name
    assert why in words


def test_a_fault_is_shown_beside_a_sound_run():
    said = precision.fault([row(NAN, True, INF)] * 2, [row(2.0)] * 2, [row(1.5)] * 2, "bf16")
    assert said.splitlines()[0].split()[:4] == ["step", "loss", "fp32", "bf16"]
    assert said.splitlines()[2].split()[:6] == ["1", "nan", "2.0000", "1.5000", "2^1", "yes"]
    assert "not finite" in said
    assert "\nwhat the log says: overflow\n  the forward pass" in said
    assert all(len(line) < 80 for line in said.splitlines())


def test_a_histogram_as_text():
    said = precision.octaves(Histogram(-30, (100, 0, 0, 0, 0, 0, 300), 4, 2.0**-24), "all").splitlines()
    assert said[0] == "all: 404 numbers, 0.99% zero"
    assert said[1].split()[0] == "2^-32"
    assert said[1].endswith("25.00%  zero in fp16")
    assert "#" * precision.BAR in said[-2]
    assert said[-2].endswith("75.00%  fewer bits")
    assert said[-1] == "  in fp16: 25.00% zero, 75.00% with fewer bits"


def test_histograms_go_through_a_record():
    moments = {"first step": {"weights": {"block 1, MLP": Histogram(-3, (1, 2), 4, 0.3)}}}
    series = precision.series_of(moments)
    assert series == {"gradients, first step, weights, block 1, MLP": [-3, 4, 0.3, 1, 2]}
    assert precision.moments_of(series | {"loss": [1.0]}) == moments


def test_a_gradient_that_is_not_finite_is_said_to_be_so():
    row = {
        "errors": {"all": precision.HUGE, "head": 0.25, "embeddings": precision.HUGE},
        "zero": None,
        "predicted": 0.5,
    }
    last = precision.one_step({"fp16": row}, {"fp16": "fp16 matmuls"}).splitlines()[-1]
    assert re.split(" {2,}", last) == ["fp16 matmuls", "not finite", "not finite", "embeddings", "-", "50.00%"]


def test_differences_by_seed():
    assert precision.signed([0.1, 0.3]) == "+0.2000 (+0.1000 to +0.3000)"
    assert precision.signed([-1e-9]) == "+0.0000 (+0.0000 to +0.0000)"
    assert precision.signed([0.1, INF]) == "not finite"
