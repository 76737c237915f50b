"""The training job and its launcher: nodes that count restarts apart or differ, a run taken up at a step."""

import json
import re
from types import SimpleNamespace

import pool
import pytest
from bench_faults import TINY
from lab_runs import free_port, lab_module

capstone = lab_module("capstone")


def agent(number, port, folder, *words, processes=1):
    """One node's torchrun, of two on this machine; its ranks are started by it. words: more options of the job."""
    return pool.Job(
        [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            str(processes),
            "--max-restarts",
            "2",
            "--monitor-interval",
            "0.1",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{port}",
            "--rdzv-conf",
            f"is_host={1 - number}",
            "--local-addr",
            "127.0.0.1",
            "--rdzv-id",
            "book",
            "labs/capstone.py",
            *TINY,
            "--steps",
            "20",
            "--checkpoint-every",
            "5",
            "--validate-every",
            "20",
            "--folder",
            str(folder),
            *words,
        ],
        1,
        LAB_TIMEOUT="30",
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill:0:12", "kill:1:12"])
def test_a_node_that_lost_its_rank_and_one_that_did_not_meet_again(tmp_path, fault):
    port, words = free_port(), (tmp_path / "run", "--inject", fault)
    with agent(0, port, *words) as first, agent(1, port, *words) as second:
        codes = first.wait() + second.wait()
        assert codes == [0, 0], first.read("err") + second.read("err")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows if "event" in row]
    assert events[-1].startswith("restart 1: resumes after step "), events
    assert [event for event in events if event.startswith("restart")] == events[-1:], "one kill, one restart"
    assert sorted(row["step"] for row in rows if "loss" in row) == list(range(1, 21))


@pytest.mark.slow
def test_nodes_with_different_numbers_of_processes_train_together(tmp_path):
    """Two processes and one. Each node counts its own only: all must agree that they are two nodes, of one folder."""
    port, words = free_port(), (tmp_path / "run", "--batch", "6", "--save", str(tmp_path / "record.json"))
    with agent(0, port, *words, processes=2) as first, agent(1, port, *words) as second:
        assert first.wait() + second.wait() == [0, 0], first.read("err") + second.read("err")
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["nodes"], record["device_count"]) == (2, 3)
    assert "--nnodes 2 --nproc-per-node 2" in record["command"]


@pytest.mark.slow
def test_a_run_taken_up_at_a_step_restarts_from_what_it_saved_since(tmp_path):
    """Not from that step again, and not from the future that was given up."""
    job = [
        "labs/capstone.py",
        *TINY,
        "--checkpoint-every",
        "5",
        "--validate-every",
        "50",
        "--keep",
        "8",
        "--folder",
        str(tmp_path),
    ]
    assert pool.lab([*job, "--steps", "20"], 2).returncode == 0
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--monitor-interval",
        "0.1",
    ]
    output = pool.output([*launcher, *job, "--steps", "40", "--resume", "10", "--inject", "kill:0:28"])
    assert "started again: resumes after step 10 on 2 process(es)" in output
    assert "the learning rate now falls until step 40; before, until 20" in output
    again = re.search(r"restart 1: resumes after step (\d+) on", output)
    assert again and int(again[1]) in (20, 25), output


@pytest.mark.parametrize("theirs", ["00000000000f", "000000000001"])
def test_ranks_that_read_different_text_are_refused(theirs):
    digest, other = "00000000000a" + "7" * 52, int(theirs, 16)
    session = SimpleNamespace(largest=lambda mark: max(mark, other if mark > 0 else -other))
    with pytest.raises(ValueError, match="the ranks read different text"):
        capstone.Job.same_text(SimpleNamespace(s=session, text=SimpleNamespace(digest=digest)))
    alike = SimpleNamespace(largest=lambda mark: mark)
    assert capstone.Job.same_text(SimpleNamespace(s=alike, text=SimpleNamespace(digest=digest))) is None
