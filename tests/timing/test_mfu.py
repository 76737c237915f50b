"""FLOPs of a step and shares of the peak, against published ones (tests/published/) and by definition."""

import json
from math import fsum
from pathlib import Path

import pytest

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing.job import step

PUBLISHED = Path(__file__).parents[1] / "published"
RUNS = json.loads((PUBLISHED / "training_throughput.json").read_text())
MEGATRON = json.loads((PUBLISHED / "megatron_2021.json").read_text())


def palm_flops_per_token(count, blocks, heads, head_dim, seq):
    """6N + 12 L H Q T: forward and backward of one token by PaLM's rule (arXiv 2204.02311, appendix B).

    count: all parameters, N. It charges an embedding that is not tied like a matrix, which `flops` does not.
    """
    return 6 * count + 12 * blocks * heads * head_dim * seq


@pytest.mark.parametrize("run", RUNS["palm"]["runs"], ids=lambda run: run["name"])
def test_palm_table_3(run):
    """Within a tenth of a point: MT-NLG comes to 30.27% of the printed tokens per second, and is printed as 30.2."""
    rate = run["tokens_per_second"] / run["chips"]
    sizes = [run[key] for key in ("parameters", "blocks", "heads", "head_dim", "seq")]
    assert abs(palm_flops_per_token(*sizes) * rate / run["peak_flop_per_s"] - run["mfu"]) < 0.001
    plain = palm_flops_per_token(*sizes[:-1], 0) * rate / run["peak_flop_per_s"]
    assert abs(plain - run["mfu_without_attention"]) < 0.001


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "gpt-3-175b", "llama-2-7b", "llama-3-8b"])
def test_palm_rule_against_matrix_by_matrix(name):
    """The rule charges all parameters. Off by 6 FLOPs for each that no matrix multiplication uses: an untied embedding,
    the position table, norms and biases."""
    shape = PRESETS[name]
    rule = palm_flops_per_token(total_parameters(shape), shape.layers, shape.heads, shape.d, 1024)
    found = flops(shape, 1, 1024)
    per_token = (found["forward"] + found["backward"]) / 1024
    matrices = (per_token - 12 * shape.layers * shape.heads * shape.d * 1024) / 6
    assert rule - per_token == pytest.approx(6 * (total_parameters(shape) - matrices))
    assert 1 <= rule / per_token < 1.08


@pytest.mark.parametrize("row", RUNS["megatron"]["table1"], ids=lambda row: f"{row['params_B']}B")
def test_megatron_table_1_is_hardware_utilization(row):
    """The printed share of peak counts recomputation (HFU); the model FLOPs alone (MFU) come to three quarters."""
    one = next(one for one in MEGATRON["table1"] if one["params_B"] == row["params_B"])
    shape = Shape(one["layers"], one["hidden"], one["heads"], MEGATRON["vocabulary"], max_seq=MEGATRON["sequence"])
    work = flops(shape, row["batch"], MEGATRON["sequence"], "full")
    seconds = sum(work.values()) / (row["gpus"] * row["tflops_per_gpu"] * 1e12)
    peak = row["gpus"] * RUNS["megatron"]["peak_flop_per_s"]
    assert abs(sum(work.values()) / seconds / peak - row["of_peak"]) < 0.0051
    assert 0.745 < (work["forward"] + work["backward"]) / sum(work.values()) < 0.77


@pytest.mark.parametrize("run", RUNS["megatron"]["days"], ids=lambda run: run["model"])
def test_megatron_days_of_training(run):
    """Within 3%: the paper's 8 T P / (n X) leaves out attention scores and the output head."""
    work = sum(flops(PRESETS[run["model"]], 1, 2048, "full").values()) / 2048 * run["tokens"]
    assert abs(work / (run["gpus"] * 86_400 * run["flop_per_s_each"]) / run["days"] - 1) < 0.03


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_recomputation_is_hardware_flops_and_not_model_flops(checkpointing):
    """16 micro-batches of a sequence on 4 replicas, all FLOPs over the seconds and the peak of 8 GPUs."""
    job = Job(PRESETS["gpt2-large"], 1024, DEVICES["a100-80gb"], cluster(1, 8), 1, Layout(dp=4, tp=2, micro_batches=16))
    job = job.other(checkpointing=checkpointing)
    found, work = step(job), flops(job.shape, 64, 1024, checkpointing)
    peak = 8 * 312e12 * found.seconds
    assert found.mfu == pytest.approx((work["forward"] + work["backward"]) / peak, rel=1e-12)
    assert found.hfu == pytest.approx(fsum(work.values()) / peak, rel=1e-12)
    assert found.tokens_per_second == pytest.approx(64 * 1024 / found.seconds, rel=1e-12)
