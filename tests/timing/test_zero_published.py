"""Seconds of ZeRO against what others measured, and what the model leaves out. No constant comes from these rows but
one: what an update reaches of host memory, from a row that is then left out."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median

import pytest

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape, flops, total_parameters
from scaleout.timing import machine
from scaleout.timing.job import step, step_on, update_seconds

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "zero_seconds.json").read_text())
RECIPE = Recipe("bf16-master", checkpointing="full")
BARE = replace(PROGRAMS["compiled"], data_overlap=False)  # which hides no communication


def selene(nics, program=PROGRAMS["compiled"]):
    """{(parameters, sequences of a GPU): (predicted step, published seconds)} of ZeRO-3 on nodes with so many
    adapters."""
    said, out = PUBLISHED["narayanan"], {}
    for row in said["rows"]:
        sizes = said["models"][row["params_B"]]
        shape = Shape(*sizes.values(), said["vocab"], max_seq=said["seq"])
        assert total_parameters(shape) / 1e9 == pytest.approx(float(row["params_B"]), abs=0.06)
        batch, gpus = row["batch"] // row["gpus"], row["gpus"]
        nodes = cluster(gpus // 8, 8, said["inside"], said["across"], nics)
        job = Job(shape, said["seq"], DEVICES[said["device"]], nodes, batch, Layout(dp=gpus, zero=3), RECIPE, program)
        done = sum(flops(shape, batch, said["seq"], "full").values())
        seconds = done / row["tflops"] / 1e12
        days = 300e9 / (row["batch"] * said["seq"]) * seconds / 86_400  # for 300 billion tokens
        assert days == pytest.approx(row["days"], rel=0.02), "the row agrees with itself"
        out[row["params_B"], batch] = step(job), seconds
    return out


def errors(rows):
    return {key: found.seconds / said - 1 for key, (found, said) in rows.items()}


def test_narayanans_zero_3():
    """With two sequences per GPU and with one the published step takes as long (67, and 180 to 184 s): it waits for
    weights, and the model, at NCCL's rate over all eight adapters and beside compute, hides nearly all of that. With
    four it is 37 and 40% too fast; over the six rows 56% at the median, 76% at worst."""
    found = errors(selene(8))
    assert [round(found[size, 4], 2) for size in ("174.6", "529.6")] == [-0.37, -0.40]
    assert max(found.values()) < 0
    assert median(found.values()) == pytest.approx(-0.56, abs=0.01) and min(found.values()) > -0.77


def test_what_the_rest_of_those_rows_would_take():
    """Three pieces in 67 and 182 s are 16 to 18 GB/s: not a tenth of what eight adapters of 25 carry, and less than
    one. As if nodes had one adapter and nothing were hidden: 6% too fast to 24% too slow, 11% at the median. Which of
    it was so in that DeepSpeed the paper does not say."""
    rates = [3 * 2 * 1e9 * float(size) / said / 1e9 for (size, batch), (_, said) in selene(8).items() if batch < 4]
    assert all(15.5 < rate < 18 for rate in rates) and len(rates) == 4
    hidden, shown = errors(selene(1)), errors(selene(1, BARE))
    assert all(-0.30 < error < -0.16 for error in hidden.values())
    assert [round(one(shown.values()), 2) for one in (min, max)] == [-0.06, 0.24]
    assert median(map(abs, shown.values())) == pytest.approx(0.112, abs=0.005)


def on_host(job, said):
    """A rank beside a host with memory as fast as published."""
    rate = prod(float(one) for one in said["memory_bytes_per_s"].split("*"))
    return replace(machine.from_datasheet(job), host_bytes_per_s=rate)


def ten_billion():
    said = PUBLISHED["offload_10b"]
    shape = Shape(said["layers"], said["hidden"], said["heads"], said["vocab"], max_seq=said["seq"])
    job = Job(
        shape,
        said["seq"],
        DEVICES[said["device"]],
        cluster(1, 1, "nvlink2"),
        said["batch"],
        Layout(zero=2),
        RECIPE,
        PROGRAMS["eager"],
    )
    return said, job.other(offload="optimizer")


def test_adam_on_a_cpu():
    """Bound by memory: 28 bytes per parameter at half of its rate, fitted to 1e9 parameters, 15% too fast for 4e9 and
    10e9. PyTorch's own, operation by operation, takes 5.5 to 6.5 times as long."""
    said, (_, job) = PUBLISHED["cpu_adam"], ten_billion()
    found = {size: update_seconds(job, on_host(job, said), float(size)) for size in said["seconds"]}
    wrong = {size: found[size] / fused - 1 for size, (fused, _) in said["seconds"].items()}
    assert wrong.pop(said["fitted"]) == pytest.approx(0, abs=0.01), "the fitted one"
    assert all(error == pytest.approx(-0.15, abs=0.01) for error in wrong.values())
    assert all(5.5 < slow / fused < 6.5 for fused, slow in said["seconds"].values())


def test_ten_billion_on_one_v100():
    """40 TFLOP/s published, 75 here: a V100 is taken for an A100, whose share of the peak its kernels did not reach (30
    TFLOP/s without offload, for a model that fits). What compute leaves is the host's update, as in the paper."""
    said, job = ten_billion()
    found = step_on(job, on_host(job, PUBLISHED["cpu_adam"]))
    assert total_parameters(job.shape) == pytest.approx(10e9, rel=0.03)
    assert found.hfu * 125 / said["tflops"] == pytest.approx(1.87, abs=0.02)
    assert found.parts["exposed host"] == 0 and 0.17 < found.parts["update"] / found.seconds < 0.21


def test_pcie_of_a_v100():
    """The share of the slot's rate that copies reach is NCCL's, and gives what ZeRO-Infinity found."""
    said, (_, job) = PUBLISHED["pcie"], ten_billion()
    assert job.device == DEVICES[said["device"]]
    assert machine.from_datasheet(job).host(1e12) == pytest.approx(1e3 / said["gb_per_s"], rel=0.01)
