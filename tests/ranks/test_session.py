"""Sessions on real processes: ranks, refusals, crashes and killed ranks; nothing is left running."""

import json
import os
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import launching
import pool
import pytest
import torch
from lab_runs import ENVIRONMENT, PATIENCE_S, ROOT, TORCHRUN, alive, torchrun

from scaleout.lab import recording, session
from scaleout.parallel import parity

SPECIMEN = "tests/ranks/specimen_lab.py"
NAME = "ranks/specimen_lab.py"  # as its messages call it


def said(errors):
    """The lines that the lab itself wrote to stderr, without the launcher's."""
    return [line for line in errors.splitlines() if line.startswith(f"{NAME}: ")]


# --- ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "start"), [(1, pool.lab), (2, torchrun), (4, pool.lab)])
def test_a_session_knows_its_place(count, start):
    done = start([SPECIMEN, "cases"], count)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["world"] == count
    assert seen["group"] == (0 if count == 1 else count)
    assert seen["backend"] == ("none" if count == 1 else "gloo")
    assert seen["mean"] == (count - 1) / 2
    assert seen["largest"] == count - 1
    assert seen["agree"] is True
    assert seen["disagree"] is False
    assert seen["shares make the whole"] is True
    assert seen["kept"] == [], "DDP lets go of its model"
    assert seen["clock"] >= 0.01
    assert said(done.stderr) == []
    assert "silent:" not in done.stderr + done.stdout, "no progress where output is no terminal"
    facts = seen["facts"]
    launcher = "python" if count == 1 else f"torchrun --nproc-per-node {count}"
    assert facts["command"] == f"{launcher} {NAME} cases"
    assert facts["device"] == recording.device_name(torch.device("cpu"))
    assert facts["device_count"] == count
    assert facts["interconnect"] == ("none" if count == 1 else "TCP on one host")
    assert facts["versions"]["torch"] == torch.__version__


# --- bad ends -------------------------------------------------------------------------------------------


def test_a_refusal_is_one_line_and_exit_code_2():
    done = pool.lab([SPECIMEN, "refuse"])
    assert done.returncode == 2
    assert done.stderr == f"{NAME}: world size 3 does not divide 8 heads: use 1, 2, 4 or 8\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("mode", "line", "codes"),
    [
        ("refuse", "world size 3 does not divide 8 heads: use 1, 2, 4 or 8", [2, 2, 2]),
        ("refuse-one", "one rank is unhappy", [1, 1, 2]),
    ],
)
def test_one_rank_speaks_and_all_end(mode, line, codes):
    """By themselves, whatever a launcher would do: those that wait in a collective notice that a rank is gone."""
    with pool.Job([SPECIMEN, mode], 3) as job:
        assert job.wait(together=False) == codes
        lines = said(job.read("err"))
    assert lines[-1] == f"{NAME}: {line}"
    lost = [
        f"{NAME}: rank {rank} lost another rank, which ended first: the launcher's report names it"
        for rank in (0, 1)
        if mode != "refuse"
    ]
    assert lines[:-1] == lost


def test_the_launcher_names_the_rank_that_crashed():
    done = torchrun([SPECIMEN, "crash"], 3)
    assert said(done.stderr) == [f"{NAME}: rank 2 failed: RuntimeError: bang (LAB_TRACEBACK=1 shows where)"]
    cause = done.stderr.split("Root Cause")[1]
    assert "exitcode  : 1 " in cause and "rank      : 2 " in cause
    assert done.returncode == 1, "torchrun's own code"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers through /proc")
def test_a_killed_rank_is_named_and_nobody_stays_behind():
    launched = subprocess.Popen(
        [sys.executable, *TORCHRUN, "3", SPECIMEN, "hang"],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert launched.stdout.readline() == "ready\n"
    workers = launching.children(launched.pid)
    assert sorted(workers) == [0, 1, 2]
    os.kill(workers[1], signal.SIGKILL)
    _, errors = launched.communicate(timeout=PATIENCE_S)
    cause = errors.split("Root Cause")[1]
    assert re.search(r"rank +: 1 ", cause)
    assert "SIGKILL" in cause
    assert launched.returncode == 1
    assert [rank for rank, pid in workers.items() if alive(pid)] == []


# --- devices and batches --------------------------------------------------------------------------------


def test_devices_that_are_not_there_are_refused(monkeypatch):
    assert session.pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device 'tpu' is unknown: use cpu, cuda or auto"):
        session.pick_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert session.pick_device() == session.pick_device("auto", 1, 2) == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no GPU: use device cpu"):
        session.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert session.pick_device(None, 1, 2) == torch.device("cuda", 1)
    assert session.pick_device("cpu", 1, 4) == torch.device("cpu")
    with pytest.raises(ValueError, match=r"4 processes on a node with 2 GPU\(s\): use --nproc-per-node 2"):
        session.pick_device(None, 1, 4)


@pytest.mark.parametrize(
    ("gpus", "processes", "kind"),
    [(1, 1, "cpu"), (1, 2, "cpu"), (2, 1, "cuda"), (2, 2, "cuda"), (2, 4, "cpu"), (8, 8, "cuda")],
)
def test_a_chapter_takes_gpus_where_there_are_enough_and_says_when_not(monkeypatch, capfd, gpus, processes, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    places = [session.pick_device("auto", rank, processes) for rank in range(processes)]
    assert (
        places == [torch.device("cpu")] * processes
        if kind == "cpu"
        else [torch.device("cuda", rank) for rank in range(processes)]
    )
    said = capfd.readouterr().err.splitlines()
    assert len(said) == (kind == "cpu") and all(f"here is {gpus} (LAB_DEVICE=cuda takes it)" in line for line in said)


def test_a_batch_is_text_and_its_targets_are_one_byte_on():
    text = session.as_tensor(b"the quick brown fox jumps over the lazy dog " * 9)
    tokens, targets = session.batch(text, 0, 4, 10)
    assert tokens.shape == targets.shape == (4, 10)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert all(bytes(row.tolist()) in bytes(text.tolist()) for row in tokens)
    assert torch.equal(tokens, session.batch(text, 0, 4, 10)[0]), "the same step gives the same batch"
    assert not torch.equal(tokens, session.batch(text, 1, 4, 10)[0])
    assert not torch.equal(tokens, session.batch(text, 0, 4, 10, seed=1)[0])
    with pytest.raises(ValueError, match=r"holds 5 byte.s.: it must be longer than one sequence, 10"):
        session.batch(session.as_tensor(b"short"), 0, 1, 10)


def test_the_peak_starts_again_without_what_earlier_work_left(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(device))
    cycle = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    cycle.itself = [cycle]
    seen = weakref.ref(cycle)
    del cycle
    assert seen() is not None
    session.reset_allocator(SimpleNamespace(device=torch.device("cpu")))
    assert seen() is None
    assert calls == []
    session.reset_allocator(SimpleNamespace(device=torch.device("cuda", 3)))
    assert calls == ["empty", torch.device("cuda", 3)], "the cache first, else the peak starts with it"


def test_parity_sees_what_it_must_see():
    right = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    assert parity.relative_error(right, right) == 0.0
    off = {"a": torch.tensor([1.0, 2.1]), "b": torch.tensor([0.0])}
    assert parity.relative_error(off, right) == pytest.approx(0.05, rel=1e-5)
    doubled = {name: 2 * g for name, g in right.items()}
    assert parity.relative_error(doubled, right) == 1.0
    infinite = float("inf")
    assert parity.relative_error({"a": right["a"]}, right) == infinite, "a gradient is missing"
    assert parity.relative_error({}, {}) == infinite, "nothing was compared"
    # b is zero in truth: its scale is a thousandth of the largest entry, 2.0
    assert parity.relative_error({**right, "b": torch.tensor([1e-9])}, right) == pytest.approx(5e-7)
    assert parity.relative_error({**right, "b": torch.tensor([1.0])}, right) == pytest.approx(500.0)
    zeros = {"a": torch.zeros(2)}
    assert parity.relative_error(zeros, zeros) == 0.0
    assert parity.relative_error({"a": torch.tensor([0.0, 1e-9])}, zeros) > 1
    assert parity.relative_error({**right, "b": torch.tensor([float("nan")])}, right) == infinite
    assert parity.check(infinite, 1e-5)["passed"] is False
    assert parity.check(1e-5, 1e-5)["passed"] is True
