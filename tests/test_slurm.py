"""The Slurm launch file on a real Slurm of two nodes: stopped in the middle, requeued, resumed, finished."""

import json
import re
import sys
from pathlib import Path

import pytest
import slurm_host

ROOT = Path(__file__).resolve().parent.parent
STEPS = 300
SMALL = ("--layers", "2", "--hidden", "32", "--heads", "2", "--seq", "64", "--batch", "4", "--steps", str(STEPS),
         "--checkpoint-every", "100", "--validate-every", str(STEPS), "--log-every", "5", "--sample", "0")
LACKS = slurm_host.missing()


@pytest.fixture
def slurm(tmp_path):
    with slurm_host.Slurm(tmp_path) as running:
        running.environment |= {
            "PATH": f"{Path(sys.executable).parent}:{slurm_host.PATH}", "PROCESSES": "1", "LAB_DEVICE": "cpu",
            "PORT": str(slurm_host.free_ports(1)[0])}
        yield running


def submit(slurm, out, *words):
    """The number of a job of the launch file (str)."""
    job = slurm.run("sbatch", "--parsable", "--output", str(out), "labs/launch/slurm.sh", *words, cwd=ROOT)
    assert job, slurm.error
    return job


def state(slurm, job):
    """What Slurm says of a job: {"JobState": "RUNNING", "Restarts": "0", ...}."""
    return dict(re.findall(r"(\w+)=(\S+)", slurm.run("scontrol", "show", "job", job)))


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKS), reason=f"no Slurm here: {LACKS}")
def test_a_job_is_stopped_requeued_resumed_and_finished(slurm, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.txt"
    metrics, said = run / "metrics.jsonl", lambda: out.read_text() if out.exists() else ""
    job = submit(slurm, out, "labs/capstone.py", *SMALL, "--folder", str(run), "--save", str(run / "record.json"))
    slurm.wait(lambda: metrics.exists() and '"step": 5,' in metrics.read_text(), "step 5 of the job", 100)
    assert state(slurm, job)["NumNodes"] == "2"
    slurm.run("scancel", "--batch", "--signal=TERM", job)          # what --signal=B:TERM@180 does before the limit
    slurm.wait(lambda: "slurm.sh: stopped before the end, back into the queue" in said(), "requeue", 60)
    reached = max(json.loads(line)["step"] for line in metrics.read_text().splitlines())
    assert 5 <= reached < STEPS
    assert not (run / "record.json").exists()
    slurm.wait(lambda: state(slurm, job)["JobState"] in ("COMPLETED", "FAILED"), f"end of the job:\n{said()}", 120)
    assert (state(slurm, job)["JobState"], state(slurm, job)["Restarts"]) == ("COMPLETED", "1"), said()
    starts = re.findall(r"slurm.sh: 2 node\(s\), meeting at (\S+), start (\d):", said())
    assert starts == [(slurm_host.NODES[0], "0"), (slurm_host.NODES[0], "1")]
    record = json.loads((run / "record.json").read_text())
    assert (record["device_count"], record["backend"], len(record["losses"])) == (2, "gloo", STEPS)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in steps if "loss" in line][-1] == STEPS
    assert f"stopped by SIGTERM after step {reached} of {STEPS}: saved" in said()
    assert f"started again: goes on after step {reached} on 2 process(es), 0 logged step(s)" in said()


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKS), reason=f"no Slurm here: {LACKS}")
def test_a_cancelled_job_does_not_come_back(slurm, tmp_path):
    out = tmp_path / "out.txt"
    (tmp_path / "nap.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/asleep-$RANK\nexec sleep 100\n")
    job = submit(slurm, out, "--no-python", "sh", str(tmp_path / "nap.sh"))
    slurm.wait(lambda: len(list(tmp_path.glob("asleep-*"))) == 2, "two sleeping processes")
    slurm.run("scancel", job)
    slurm.wait(lambda: state(slurm, job)["JobState"] == "CANCELLED", "end of the job")
    slurm.wait(lambda: slurm.run("squeue", "-h", "--states", "all", "-o", "%T") == "CANCELLED", "empty queue")
    assert "back into the queue" not in out.read_text()
    assert (state(slurm, job)["JobState"], state(slurm, job)["Restarts"]) == ("CANCELLED", "0"), out.read_text()
