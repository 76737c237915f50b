"""The training job and its launcher: nodes that count restarts apart or differ, a run taken up at a step."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "labs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import capstone
from bench_faults import TINY

ROOT = Path(__file__).resolve().parents[2]


def agent(number, port, folder, fault):
    """One node's torchrun, of two on this machine."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts",
             "2", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
             "--rdzv-conf", f"is_host={1 - number}", "--local-addr", "127.0.0.1", "--rdzv-id", "book",
             "labs/capstone.py", *TINY, "--steps", "20", "--checkpoint-every", "5", "--validate-every", "20",
             "--folder", str(folder), "--inject", fault]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAB_TIMEOUT": "30", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill:0:12", "kill:1:12"])
def test_a_node_that_lost_its_rank_and_one_that_did_not_meet_again(tmp_path, fault):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [agent(number, port, tmp_path / "run", fault) for number in range(2)]
    try:
        said = [node.communicate(timeout=150)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows if "event" in row]
    assert events[-1].startswith("restart 1: goes on after step "), events
    assert [event for event in events if event.startswith("restart")] == events[-1:], "one kill, one restart"
    assert sorted(row["step"] for row in rows if "loss" in row) == list(range(1, 21))


def alone(folder, *words):
    """One launch on one node with two ranks, to its end; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
         "--monitor-interval", "0.1", "labs/capstone.py", *TINY, "--checkpoint-every", "5", "--validate-every", "50",
         "--keep", "8", "--folder", str(folder), *words], cwd=ROOT, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_run_taken_up_at_a_step_restarts_from_what_it_saved_since(tmp_path):
    """Not from that step again, and not from the future that was given up."""
    alone(tmp_path, "--steps", "20")
    said = alone(tmp_path, "--steps", "40", "--resume", "10", "--inject", "kill:0:28")
    assert "started again: goes on after step 10 on 2 process(es)" in said
    assert "the learning rate now falls until step 40; before, until 20" in said
    again = re.search(r"restart 1: goes on after step (\d+) on", said)
    assert again and int(again[1]) in (20, 25), said


@pytest.mark.parametrize("theirs", ["00000000000f", "000000000001"])
def test_ranks_that_read_different_text_are_refused(theirs):
    digest, other = "00000000000a" + "7" * 52, int(theirs, 16)
    session = SimpleNamespace(largest=lambda mark: max(mark, other if mark > 0 else -other))
    with pytest.raises(ValueError, match="the ranks read different text"):
        capstone.Job.same_text(SimpleNamespace(s=session, text=SimpleNamespace(digest=digest)))
    alike = SimpleNamespace(largest=lambda mark: mark)
    assert capstone.Job.same_text(SimpleNamespace(s=alike, text=SimpleNamespace(digest=digest))) is None
