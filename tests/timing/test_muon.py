"""Seconds that Muon adds to a step: what is sent, and what makes matrices orthogonal."""

import pytest

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.muon import step_flops
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import machine
from scaleout.timing.job import step
from scaleout.timing.muon import seconds
from scaleout.timing.rates import MATMUL

EIGHT = Job(PRESETS["llama-2-7b"], 2048, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))


def test_who_makes_the_matrices_orthogonal():
    """Every GPU all of them, at the rate of large matrix multiplications; or each an eighth of them: less is
    communicated, too."""
    alone = seconds(EIGHT.other(cluster=cluster(1, 1)))
    everyone, owner, whole = (seconds(EIGHT, how) for how in ("gather", "owner", "whole"))
    assert alone == {"communication": 0, "matmuls": everyone["matmuls"]}
    assert everyone["matmuls"] == pytest.approx(step_flops(EIGHT.shape) / (MATMUL["hopper"] * 989.5e12), rel=1e-3)
    assert owner["matmuls"] == whole["matmuls"] == pytest.approx(everyone["matmuls"] / 8)
    assert whole["communication"] == 0 < owner["communication"] < everyone["communication"]
    assert everyone["matmuls"] > step(EIGHT).seconds, "2,048 tokens per GPU are too few to do it eight times over"
    assert seconds(EIGHT.other(precision="fp32", main_gradients="none"))["matmuls"] == everyone["matmuls"]


def test_the_momentum_of_every_matrix_is_gathered():
    block = 4 * 4096**2 + 3 * 4096 * 11008
    each = [4096 * 4096] * 4 + [4096 * 11008] * 3
    assert sum(each) == block
    price = machine.from_datasheet(EIGHT).data
    found = seconds(EIGHT)["communication"]  # 7 messages per block, of the mean size
    assert found == pytest.approx(32 * 7 * price("all_gather", 2 * block / 7), rel=1e-9)


def test_stage_0_makes_every_matrix_orthogonal_on_every_rank():
    plain = EIGHT.other(zero=0)
    assert seconds(plain, "gather") == seconds(plain, "owner") == seconds(plain) and not seconds(plain)["communication"]


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="job must be a Job"):
        seconds("llama")
    with pytest.raises(ValueError, match="how whole needs weights that are whole"):
        seconds(EIGHT.other(zero=3), "whole")
