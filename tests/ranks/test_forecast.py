"""What the training job foresees of itself where blocks are compiled: bytes by kind, of a step that runs uncompiled."""

from dataclasses import replace

import torch
from capstone_runs import train

from scaleout.lab import session
from scaleout.records import results
from scaleout.train import forecast
from scaleout.train.options import Options

SKIPPED = ("memory by kind of compiled blocks: the ledger's step ran uncompiled; what the compiled steps took is the "
           "allocator's peak, on a GPU")


def test_memory_by_kind_is_measured_where_blocks_are_compiled(tmp_path, monkeypatch):
    """"aot_eager" compiles without a C++ compiler, and hides a block's operations from the ledger as inductor does."""
    compiled, own = [], torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block: compiled.append(block) or own(
        block, backend="aot_eager"))
    found = {}
    for words in (["--compile"], ["--no-compile"]):
        path = tmp_path / f"{words[0]}.json"
        train("--steps", "5", *words, "--save", str(path))
        found[words[0]] = results.load(path)
    record = found["--compile"]
    assert any(note.startswith("text ") and "held out in" in note for note in record.notes), "the fingerprint"
    assert len(compiled) == 1 and record.recipe["compile"]
    assert SKIPPED in record.skipped and SKIPPED not in found["--no-compile"].skipped
    assert record.peak_memory == found["--no-compile"].peak_memory
    assert {"weights", "optimizer", "activations"} <= set(record.peak_memory)
    assert record.checks["peak within 2% of the prediction"]["passed"]


def test_buckets_are_of_two_processes_or_more():
    """DDP has none to fill with one: nothing wraps the model then."""
    alone = {way: forecast.predicted_memory(Options(strategy=way), 1, "cpu") for way in ("ddp", "one")}
    assert alone["ddp"] == alone["one"]
    two = forecast.predicted_memory(Options(strategy="ddp"), 2, "cpu")
    assert two["gradients"] > alone["ddp"].get("gradients", 0)


def test_no_room_for_an_uncompiled_step_is_said(monkeypatch):
    with session.session("cpu") as s:
        gpu = replace(s, device=torch.device("cuda"))
        assert forecast.room(s, 10**15), "a CPU borrows from the disk"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 10**9, 80 * 10**9))
    assert forecast.room(gpu, 68 * 10**9) and not forecast.room(gpu, 69 * 10**9)
