"""labs/kernels.py as a reader starts it: on one process and two, by each launcher, its faults, and the tier for GPUs
with tiny tensors."""

import functools

import pool
import pytest
import torch
from lab_runs import accelerate, lab_module, recorded, torchrun

from scaleout.lab import session
from scaleout.measure import kernels_fp8
from scaleout.parallel import kernels_ways
from scaleout.records import results

SIZES = ["--seqs", "16,48", "--head-sizes", "16", "--heads", "2", "--elements", "4096", "--fp8-seq", "512"]
SIZES += ["--hidden", "32", "--block-seq", "16", "--rounds", "2"]
FAST = ["labs/kernels.py", *SIZES, "--no-compile"]
KERNELS = {"naive", "naive, checkpointed", "tiles by hand", "SDPA, its choice", "SDPA, math"}


@pytest.fixture(scope="module", params=[1, 2], name="run")
def whole(request, tmp_path_factory):
    """(processes, Record, what was said) of the whole lab."""
    return request.param, *recorded(pool.lab, FAST, request.param, tmp_path_factory.mktemp("kernels"))


def test_every_kernel_computes_what_fp64_computes_in_three_dtypes(run):
    world, record, _ = run
    assert all(check["passed"] for check in record.checks.values())
    for dtype in ("fp32", "fp16", "bf16"):
        names = {name.split(f", {dtype}:")[0] for name in record.checks if f", {dtype}: output" in name}
        assert names == KERNELS | {"SDPA, its choice", "flex_attention"}, dtype
    assert "flex_attention, fp32: output as fp64's" in record.checks, "it has no backward on a CPU"
    together = [name for name in record.checks if "processes together" in name]
    assert together == ([f"heads of {world} processes together: output as one process's"] if world > 1 else [])


def test_saved_bytes_are_those_predicted_and_of_this_ranks_heads(run):
    world, record, _ = run
    names = [name for name in record.prediction if name.startswith("bytes saved")]
    assert {name.removeprefix("bytes saved, ").rsplit(", ", 2)[0] for name in names} == KERNELS and len(names) == 10
    for name in names:
        assert record.prediction[name] == record.measurement[name], name
    heads, tokens, d = 2 // world, 48, 16
    tiled = record.measurement["bytes saved, tiles by hand, 48 tokens, heads of 16"]
    assert tiled == heads * tokens * (4 * 4 * d + 4)
    naive = record.measurement["bytes saved, naive, 48 tokens, heads of 16"]
    assert naive == heads * (3 * 4 * tokens * d + 4 * tokens**2) + tokens**2


def test_the_record_says_what_was_timed_and_what_was_left_out(run):
    world, record, said = run
    assert record.device_count == world and record.effective_batch == 2 * world and record.losses == []
    assert len(record.step_seconds) == 2 and record.mfu > 0 and f"on {world} process(es)" in record.mfu_peak["source"]
    assert any("forwards and backwards of one block: SDPA" in note for note in record.notes)
    reasons = {reason.split(":")[0] for reason in record.skipped}
    assert {"Accelerate", "fusion by torch.compile", "block, compiled", "FlashAttention 2 to 4, cuDNN, FP8 units and "
            "Triton"} <= reasons  # fmt: skip
    assert "RMS error" in said and "FA3, table 3" in said and "MFU of" in said and "48 tokens, d 16" in said
    tables = [line for line in said.splitlines() if not line.startswith(("ok ", "skipped "))]
    assert max(map(len, tables)) <= 80


def test_the_rotation_is_what_fp8_attention_gains_by(run):
    _, record, _ = run
    error = {name.split(", ", 2)[2]: v for name, v in record.measurement.items() if name.startswith("RMS error")}
    assert error["block scales and rotation"] < 0.85 * error["block scales, without rotation"]
    for name, value in record.measurement.items():
        if name.startswith("RMS error"):
            assert record.prediction[name] == pytest.approx(value, rel=0.1)


@pytest.mark.parametrize("start", [torchrun, accelerate])
def test_it_starts_under_each_launcher(start, tmp_path):
    words = [*FAST, "--ways", "tiled,sdpa", "--mask", "prefix"]
    record, said = recorded(start, words, 2, tmp_path)
    assert record.device_count == 2 and "2 process(es), backend gloo" in said
    saved = record.prediction["bytes saved, SDPA, its choice, 48 tokens, heads of 16"]
    assert saved == 1 * 48 * (4 * 4 * 16 + 4) + 4 * 48**2, "a mask of booleans becomes numbers, and is saved"


@pytest.mark.parametrize(
    ("fault", "world", "said"),
    [
        (
            "recompile",
            1,
            (
                "FAULT  dynamic=False: compiled at 8 of 12 steps, then torch gave up",
                "sound  dynamic=None: 2 graph(s) in 12 steps",
                "sound  padded to 64: 2 graph(s) in 12 steps",
            ),
        ),
        ("mask", 2, ("FAULT  booleans, (heads, s, s): scaled_dot_product_attention_math", "sound  is_causal=True")),
        ("fp8", 1, ("predicted: FP8 is slower at 512, 1024, 2048 of these widths",)),
    ],
)
def test_a_fault_is_found_by_what_torch_counts_and_names(fault, world, said):
    done = pool.lab(["labs/kernels.py", "--seqs", "16,48", "--head-sizes", "16", "--fault", fault], world)
    assert done.returncode == 0, done.stderr
    assert all(line in done.stdout for line in said) and done.stderr == ""


# --- the tier for GPUs ----------------------------------------------------------------------------------------------


def test_the_tier_for_gpus_runs_to_its_end_with_tiny_tensors(tmp_path, monkeypatch, capsys):
    """All of its code: 16 bits, backends, flex, compiled kernels, FP8 matrix multiplications and an FP8 block. What a
    CPU lacks is stood in for: Triton's kernels by eager ones, FP8 units by torch's slow ones."""
    lab = lab_module("kernels")
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    monkeypatch.setattr(kernels_fp8, "has_fp8", lambda device: True)
    for module in (lab.kernels_ways, lab.kernels_block):
        monkeypatch.setattr(module, "no_compiler", lambda device: "")
    monkeypatch.setattr(lab.kernels_block, "has_fp8", lambda device: True)
    eager = torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(eager, backend="eager"))
    monkeypatch.setattr(torch.nn.Module, "compile", functools.partialmethod(torch.nn.Module.compile, backend="eager"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    kernels_ways._compiled.cache_clear()
    out = tmp_path / "record.json"
    words = [*SIZES, "--batch", "1", "--tile", "16", "--block-heads", "2", "--micro-batch", "1", "--fp8-tokens", "16"]
    words += ["--fp8-widths", "16,32", "--fp8-head", "128", "--save", str(out)]
    with session.session("cpu") as s:
        lab.main(s, ["--tier", "gpu", *words])
    kernels_ways._compiled.cache_clear()
    record, said = results.load(out), capsys.readouterr().out
    assert record.precision == "bf16" and record.tier == "gpu"
    assert all(check["passed"] for check in record.checks.values())
    for kernel in ("flash", "its choice"):
        assert f"SDPA, {kernel}, bf16: output and gradients as fp64's" in record.checks
    assert "seconds forward and backward, naive, compiled, 48 tokens, heads of 16" in record.series
    assert "seconds, fp8 with casts, 16 tokens, width 32" in record.prediction
    assert len(record.series["seconds per step, block, SDPA, compiled, linear layers in FP8"]) == 2
    assert record.mfu == record.series["MFU, block, SDPA, compiled, linear layers in FP8"][0]
    assert "seconds, 10 multiplies and adds, compiled" in record.prediction
    assert "predicted by the datasheet of: H100 SXM 80 GB, then measured" in said
