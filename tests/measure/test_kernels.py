"""What labs/kernels.py measures: numbers that hold on any machine, and predictions whose terms are known."""

import time
from types import SimpleNamespace

import pytest
import torch

from scaleout.lab import session
from scaleout.measure import kernels_attention, kernels_block, kernels_faults, kernels_fp8, kernels_fusion
from scaleout.parallel import kernels_fp8 as parallel_fp8
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import Shape
from scaleout.timing import kernels as clocks

CPU = torch.device("cpu")


def options(**fields):
    usual = {
        "lengths": (16, 32), "head_dims": (8,), "heads": 2, "batch": 1, "mask": "causal", "precision": "fp32",
        "tile": 8, "rounds": 2, "elements": 2**14, "fp8_seq": 1024, "fp8_head": 128, "fp8_tokens": 32,
        "fp8_sides": (16, 32), "hidden": 32, "block_seq": 16, "micro_batch": 2, "compile": False, "seed": 0,
        "block_shape": Shape(1, 32, 2, 256, max_seq=16),
    }  # fmt: skip
    return SimpleNamespace(**usual | fields)


@pytest.fixture(scope="module")
def s():
    with session.session("cpu") as made:
        yield made


# --- FP8 attention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_the_two_ingredients_the_rotation_is_the_one_that_matters(seed):
    """With FlashAttention-3's outliers: the order of its table 3, and its fp16 row far below."""
    rows, half = kernels_fp8.errors(options(seed=seed), CPU)
    error = {name: row["error"] for name, row in rows.items()}
    assert error["both"] < 0.8 * error["blocks"] and error["rotation"] < 0.8 * error["tensor"]
    assert abs(error["rotation"] / error["both"] - 1) < 0.1, "block scales add little to a rotation"
    assert half["fp16-fused"] < half["fp16"] < 0.05 * error["both"]


@pytest.mark.parametrize("head", [64, 128])
def test_the_errors_of_the_operands_add_up_as_squares(head):
    rows, _ = kernels_fp8.errors(options(fp8_head=head), CPU)
    for row in rows.values():
        assert row["predicted"] == pytest.approx(row["error"], rel=0.08)
        assert row["q and k"] > row["v"] > row["probabilities"], "the scores' operands are most of it"


# --- seconds ----------------------------------------------------------------------------------------------------------

RATES = kernels_attention.Rates({8: 1e9}, 1e8, 1e10, {(8, "forward"): 1e-3, (8, "step"): 3e-3})


def bench(s, **fields):
    return kernels_attention.Bench(s, options(**fields), ["naive", "checkpointed", "tiled", "sdpa", "flex", "math"])


def test_seconds_are_predicted_from_arithmetic_softmax_and_bytes(s):
    """32 tokens, 2 heads of 8: 2,048 scores, 32,768 FLOPs a multiplication, 8,192 bytes a pass."""
    b, at = bench(s), (32, 8)
    naive = 2 * 32768 / 1e9 + 2048 / 1e8 + 6 * 8192 / 1e10
    assert b.predicted(RATES, "naive", *at, "forward") == pytest.approx(naive)
    step = 6 * 32768 / 1e9 + 2048 / 1e8 + 13 * 8192 / 1e10
    assert b.predicted(RATES, "naive", *at, "step") == pytest.approx(step)
    assert b.predicted(RATES, "checkpointed", *at, "step") == pytest.approx(step + naive)
    fused = (2 * 32768 / 1e9 + 2048 / 1e8) / 2  # the masked half is left out, and no score goes through memory
    assert b.predicted(RATES, "sdpa", *at, "forward") == pytest.approx(fused)
    assert b.predicted(RATES, "sdpa", *at, "step") == pytest.approx((7 * 32768 / 1e9 + 2 * 2048 / 1e8) / 2)
    assert bench(s, mask="none").predicted(RATES, "sdpa", *at, "forward") == pytest.approx(2 * fused)
    assert b.predicted(RATES, "tiled", *at, "step") == pytest.approx(10 * 3e-3), "10 of 16 tiles"
    assert b.predicted(RATES, "flex", *at, "forward") is b.predicted(RATES, "math", *at, "step") is None


def test_a_gpu_that_the_book_knows_is_predicted_by_its_clocks(s, monkeypatch):
    b = bench(s, precision="bf16", heads=32, batch=2, lengths=(4096,), head_dims=(128,))
    monkeypatch.setattr(kernels_attention, "chip_of", lambda device: clocks.GENERATIONS["h100"])
    a = clocks.Attention(4096, 128, 64, causal=True)
    forward = clocks.seconds(clocks.GENERATIONS["h100"], a)
    assert b.predicted(RATES, "sdpa", 4096, 128, "forward") == forward
    assert b.predicted(RATES, "sdpa", 4096, 128, "step") > 3 * forward


@pytest.mark.parametrize(
    ("name", "chip"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h100"), ("NVIDIA B200", "b200"), ("NVIDIA X9", None)],
)
def test_a_gpu_is_known_by_its_name(name, chip, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = kernels_attention.chip_of(torch.device("cuda"))
    assert found is (chip and clocks.GENERATIONS[chip])
    assert kernels_attention.chip_of(CPU) is None


def test_every_kernel_is_timed_in_every_round_and_has_its_bytes(s):
    b = bench(s)
    times, rates = b.run()
    names = set(b.names)
    forward = {(name, seq, 8, "forward") for name in names for seq in (16, 32)}
    step = {(name, seq, 8, "step") for name in names - {"flex"} for seq in (16, 32)}
    assert set(times) == forward | step and {len(samples) for samples in times.values()} == {2}
    assert rates.matmul[8] > 0 and rates.scores > 0 and rates.memory > 0 and rates.tile[8, "step"] > 0
    assert b.failed == {} and all(predicted == measured for predicted, measured in b.saved().values())


def test_a_kernel_that_runs_out_of_memory_is_left_out_by_name(s, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32 GiB.\nmore")

    monkeypatch.setitem(
        kernels_attention.KERNELS, "math", kernels_attention.KERNELS["math"].__class__("x", out_of_memory, "math")
    )
    b = bench(s)
    times, _ = b.run()
    assert b.failed == {("math", seq, 8): "CUDA out of memory" for seq in (16, 32)}
    assert not [key for key in times if key[0] == "math"] and ("math", 16, 8) not in b.saved()
    assert ("sdpa", 32, 8, "step") in times, "the others go on"


def test_on_one_thread_of_a_cpu_waiting_is_no_time(s):
    """What a rank waits for, a core or another rank, is not what a kernel takes."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        times = kernels_attention.in_turn(s, {"sleep": lambda: time.sleep(0.05)}, 2, "")
        assert max(times["sleep"]) < 0.05
        torch.set_num_threads(2)
        times = kernels_attention.in_turn(s, {"sleep": lambda: time.sleep(0.05)}, 2, "")
        assert min(times["sleep"]) >= 0.05
    finally:
        torch.set_num_threads(before)


# --- fusion -----------------------------------------------------------------------------------------------------------


def test_chunks_compute_what_one_operation_at_a_time_computes(s):
    seconds, predicted, wrong, failed = kernels_fusion.measure(s, options(), list(kernels_fusion.CHAINS), False)
    ways = {(chain, way) for chain in kernels_fusion.CHAINS for way in ("eager", "chunks")} - {("matmul", "chunks")}
    assert set(seconds) == set(predicted) == ways
    assert failed == [] and max(wrong.values()) < 1e-6
    assert all(value > 0 for value in predicted.values())


def test_a_chain_gains_where_bytes_take_the_time_and_nothing_where_arithmetic_does():
    """An element is read and written in 4 ns; an addition takes 1 ns in the cache, a hyperbolic tangent 20."""
    chains, per_call = kernels_fusion.CHAINS, kernels_fusion.REPEATED * kernels_fusion.CHUNK
    own = {kernels_fusion.scaled: 1e-9, kernels_fusion.shifted: 1e-9, torch.tanh: 20e-9, torch.relu: 1e-9}
    spent = {("chunk", op): seconds * per_call for op, seconds in own.items()} | {("matmul", "matmul"): 1e-3}
    x, square = torch.zeros(1000), torch.zeros(10, 100)

    def gain(name, way, x=x):
        eager, fused = (kernels_fusion.predicted(chains[name], x, w, spent, 4e-9) for w in ("eager", way))
        return eager / fused

    assert gain("cheap", "chunks") == pytest.approx(10 * 4 / 10)
    assert gain("cheap", "compiled") == pytest.approx(10), "one pass in place of ten"
    assert gain("tangents", "chunks") == pytest.approx(1)
    assert gain("tangents", "compiled") == pytest.approx(200 / 190), "its arithmetic, without the cache's part"
    assert 1 < gain("matmul", "compiled", square) < 1.01, "ReLU beside a millisecond of multiplications"


# --- a block, and FP8 matrix multiplications --------------------------------------------------------------------------


def test_a_blocks_mfu_is_model_flops_over_seconds_and_peak(s):
    o = options()
    rows, peak = kernels_block.measure(s, o, ["naive", "sdpa"])
    tokens, h, ff = 2 * 16, 32, 128
    flops = 3 * (2 * tokens * (4 * h * h + 2 * h * ff) + 4 * tokens * 16 * h)
    assert kernels_block.model_flops(o) == flops
    for row in rows.values():
        assert row["mfu"] == pytest.approx(flops / row["seconds"] / peak) and len(row["samples"]) == 2


def test_fp8_and_compilation_are_left_out_with_their_reasons():
    names, skipped = kernels_block.able(options(), CPU)
    assert names == ["naive", "sdpa"] and [line.split(":")[0] for line in skipped] == [
        "block, compiled",
        "block and matrix multiplications in FP8",
    ]


def test_the_way_of_fp8_has_fp8_layers_and_the_same_weights():
    o = options()
    fp8, plain = (kernels_block.make(o, way, CPU) for way in ("fp8", "sdpa"))
    assert sum(isinstance(part, parallel_fp8.Fp8Linear) for part in fp8.modules()) == 6
    for a, b in zip(fp8.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_matrix_multiplications_in_fp8_give_what_bf16_gives_but_for_rounding(s):
    works = kernels_fp8.products(CPU, 32, 64)
    right = works["bf16"]().float()
    for way in ("fp8", "fp8 with casts"):
        assert 0.005 < (works[way]().float() - right).norm() / right.norm() < 0.08, way
    assert set(kernels_fp8.by_shape(s, 32, (16, 32), 2)) == {
        (width, way) for width in (16, 32) for way in ("bf16", "fp8", "fp8 with casts")
    }


# --- faults -----------------------------------------------------------------------------------------------------------


def test_graphs_are_counted_step_by_step(s):
    """A new length at every step: torch compiles eight times and gives up, or twice with lengths as variables."""
    cases = kernels_faults.recompile(s, options())
    counts = {name: [graphs for _, graphs, _ in rows] for name, (rows, _) in cases.items()}
    limit = kernels_faults.private.dynamo_config.recompile_limit
    assert counts["dynamic=False"] == [min(i, limit) for i in range(1, kernels_faults.STEPS + 1)]
    assert counts["dynamic=None"] == [1] + [2] * (kernels_faults.STEPS - 1)
    tokens = [seq for seq, _, _ in cases["padded to 64"][0]]
    assert counts["padded to 64"][-1] == len(set(tokens)) == 2 and not any(seq % 64 for seq in tokens)
    reason = cases["dynamic=False"][1]
    assert reason.startswith("tensor '") and "size mismatch" in reason and cases["dynamic=None"][1] == ""


def test_a_mask_per_head_takes_the_unfused_kernel_and_saves_the_scores(s):
    rows = kernels_faults.slow_path(s, options(lengths=(64,)))
    assert [row["kernels"] for row in rows.values()] == [
        ["scaled_dot_product_flash_attention_for_cpu"],
        ["scaled_dot_product_flash_attention_for_cpu"],
        ["scaled_dot_product_attention_math"],
    ]
    assert [row["flash"] for row in rows.values()] == [True, True, False]
    flag, _, per_head = rows.values()
    assert per_head["saved"] - 3 * 2 * 64 * 8 * 4 == 2 * 64 * 64 * 4 and flag["saved"] < per_head["saved"]
    assert all(row["error"] < 1e-5 for row in rows.values()), "the numbers are right: only the kernel differs"
    assert "4d" in per_head["reason"]


def test_the_roofline_is_that_of_the_gpu_or_of_an_h100(s, monkeypatch):
    name, rows, measured = kernels_faults.slow_fp8(s, options())
    assert name == DEVICES["h100-sxm"].name and set(rows) == {16, 32} and measured == {}
    monkeypatch.setattr(kernels_fp8, "has_fp8", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    name, rows, measured = kernels_faults.slow_fp8(s, options())
    assert name == DEVICES["b200"].name and set(measured) == {(w, way) for w in (16, 32) for way in rows[16]}
