"""What tests of several rooms begin with: a sound Record, a profile, and a process that has the folder of a run."""

import os
import subprocess
import sys
from dataclasses import replace

from repo import ROOT

from scaleout.records import profiles
from scaleout.records.results import Record

HOLD = (
    "import sys\nfrom scaleout.train import folder\nkept = folder.claim(sys.argv[1])\nprint('mine', flush=True)\n"
    "input()"
)


def sample():
    """A sound Record of a run on two processes: 3 steps of 0.5 s, 8 sequences of 128 tokens."""
    return Record(
        stem="memory",
        tier="smoke",
        started="2026-01-02T03:04:05+00:00",
        commit="abc",
        command="python labs/x.py",
        device="2-core x86-64 CPU",
        device_kind="cpu",
        device_count=2,
        nodes=1,
        interconnect="TCP on one host",
        backend="gloo",
        versions={"torch": "2.13.0"},
        model={"layers": 2, "gated_mlp": False, "ff": None},
        recipe={"precision": "fp32"},
        effective_batch=8,
        sequence_length=128,
        precision="fp32",
        checkpoint_cadence="none",
        step_seconds=[9.0, 0.5, 0.5],
        warmup_steps=1,
        tokens_per_second=2048.0,
        losses=[5.5, 5.0, 4.5],
        peak_memory={"weights": 100},
        prediction={"peak bytes": 98},
        measurement={"peak bytes": 100},
    )


def untrained():
    """A sound Record of a run that trains nothing: it timed a collective three times."""
    return replace(sample(), effective_batch=None, sequence_length=None, tokens_per_second=None, losses=[])


def profile(world=2, **changes):
    """A sound profile of a machine with so many processes: 50 GFLOP/s, a millisecond for a message and a nanosecond for
    each of its bytes. changes: what is otherwise."""
    line = {"alpha_seconds": 1e-3, "seconds_per_byte": 1e-9}
    return {
        "schema": profiles.SCHEMA,
        **dict.fromkeys(profiles.TEXTS, "cpu"),
        "world": world,
        "threads": 1,
        "copy_bytes_per_second": 1e10,
        "matmul_flops_per_second": {"fp32": 5e10},
        "collectives": dict.fromkeys(profiles.COLLECTIVES, line) if world > 1 else {},
    } | changes


def holder(folder):
    """A process that has the folder; it lets go at a line on its stdin, or at its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "mine\n"
    return process
