"""The training job on two nodes, one of which loses its rank: torchrun counts restarts on each node for itself."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = ["--layers", "1", "--hidden", "32", "--heads", "2", "--ff", "64", "--seq", "32", "--batch", "4", "--warmup", "2",
        "--validation-batches", "1", "--log-every", "1", "--sample", "0"]


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
