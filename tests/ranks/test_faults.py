"""Faults of the labs on communication: who is missing, dead or in the way is said in one line, and nothing stays."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import launching
import pool
import pytest
from lab_runs import ENVIRONMENT, PATIENCE_S, ROOT, TORCHRUN, alive, free_port

from scaleout.lab import join

LABS = ("labs/collectives.py", "labs/ddp.py")
LONG = {
    "labs/collectives.py": ["--rounds", "10000"],
    "labs/ddp.py": ["--steps", "100000"],
    "labs/fsdp.py": ["--steps", "100000"],
}


def own(tmp_path):
    """Temporary files and machine profiles go to `tmp_path`."""
    return {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def place(rank, world, port, wait="2"):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LAB_TIMEOUT": wait,
    }


def assert_one_line(lab, where, said, code=1):
    """A process of a lab, as a launcher would start it, with `where` in its environment, ends with one line."""
    done = pool.lab([lab], **where)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(f"{re.escape(lab)}: {said}\n", done.stderr), done.stderr


# --- who does not come -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", LABS)
def test_a_port_in_use_is_one_line(lab):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line(
            lab,
            place(0, 2, port),
            rf"port {port} cannot be used \(address already in use\): choose another MASTER_PORT, or let "
            "torchrun find one with --standalone",
        )


@pytest.mark.parametrize("lab", LABS)
def test_a_missing_peer_is_one_line_on_either_side(lab):
    port = free_port()
    assert_one_line(
        lab,
        place(0, 3, port),
        r"1 of 3 ranks came in 2 s: start the missing ones with the same MASTER_ADDR and MASTER_PORT "
        r"\(LAB_TIMEOUT sets the seconds\)",
    )
    assert_one_line(
        lab,
        place(1, 3, port),
        rf"rank 1 found no rank 0 at 127\.0\.0\.1:{port} in 2 s \(connection refused\): start it there, or "
        r"correct MASTER_ADDR and MASTER_PORT \(LAB_TIMEOUT sets the seconds\)",
    )


def test_an_address_that_is_not_there():
    missing = {name: value for name, value in place(1, 2, 1).items() if not name.startswith("MASTER")}
    assert_one_line(
        LABS[0],
        missing,
        "rank 1 of 2 has no MASTER_ADDR and no MASTER_PORT in its environment: start the lab with torchrun",
    )
    assert_one_line(
        LABS[0],
        place(0, 2, 99999),
        "MASTER_PORT is '99999' in the environment, where a whole number from 1 to 65535 belongs: start "
        "the lab with python or torchrun",
        2,
    )
    assert_one_line(
        LABS[0],
        place(0, 2, "http"),
        "MASTER_PORT is 'http' in the environment, where a whole number from 1 to 65535 belongs: start the "
        "lab with python or torchrun",
        2,
    )


def test_a_host_without_a_name_is_waited_for(monkeypatch):
    monkeypatch.setattr(join, "TIMEOUT_S", 0.3)
    with pytest.raises(
        join.Unmet,
        match=r"rank 2 found no rank 0 at no\.such\.host\.invalid:29500 in 0\.3 s \(.*"
        r"has no address here: use torchrun --local-addr",
    ):
        join._reach(2, "no.such.host.invalid", 29500)


def test_a_late_rank_0_is_found(monkeypatch):
    monkeypatch.setattr(join, "TIMEOUT_S", 5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        join._reach(1, *server.getsockname())
        with pytest.raises(join.Unmet, match="cannot be used"):
            join._free(server.getsockname()[1])
    join._free(free_port())


def test_torchrun_names_the_port_in_use():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--master-port",
                str(port),
                LABS[0],
            ],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 1
    assert f"port: {port}" in done.stderr.splitlines()[-1], "torchrun's own report: no lab has started"
    assert "EADDRINUSE" in done.stderr.splitlines()[-1]


# --- who dies ----------------------------------------------------------------------------------------------


def at_work(out):
    """Wait for what rank 0 prints before the long part, and then until all are in it."""
    end = time.monotonic() + PATIENCE_S
    while not out() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)


@pytest.mark.parametrize("lab", ["labs/collectives.py", "labs/fsdp.py"])
def test_those_who_lost_a_rank_in_a_collective_end_by_themselves(lab, tmp_path):
    with pool.Job([lab, *LONG[lab]], 3, **own(tmp_path)) as job:
        at_work(lambda: job.read("out"))
        assert [process.poll() for process in job.processes] == [None] * 3, "it must still run"
        job.processes[1].kill()
        assert job.wait(together=False) == [1, -signal.SIGKILL, 1]
        said = job.read("err").splitlines()
    told = [line for line in said if line.startswith(lab)]
    lost = "lost another rank, which ended first: the launcher's report names it"
    assert any(lost in line for line in told)
    # now and then gloo does not hear that the other end is gone, and waits its time out
    assert [
        line.startswith(f"{lab}: rank {rank} ") and (lost in line or "Timed out waiting" in line)
        for rank, line in zip((0, 2), told, strict=True)
    ] == [True, True]
    assert left(tmp_path) == []


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers through /proc")
def test_a_killed_rank_is_named_and_a_stopped_launcher_leaves_nothing(sign, tmp_path):
    lab = "labs/ddp.py"
    launched = subprocess.Popen(
        [sys.executable, *TORCHRUN, "2", lab, *LONG[lab]],
        cwd=ROOT,
        text=True,
        env=ENVIRONMENT | own(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    at_work(launched.stdout.readline)
    workers = launching.children(launched.pid)
    assert sorted(workers) == [0, 1]
    os.kill(workers[1] if sign == signal.SIGKILL else launched.pid, sign)
    _, errors = launched.communicate(timeout=PATIENCE_S)
    assert launched.returncode != 0
    assert [rank for rank, pid in workers.items() if alive(pid)] == []
    assert left(tmp_path) == []
    if sign == signal.SIGKILL:
        cause = errors.split("Root Cause")[1]
        assert re.search(r"rank +: 1 ", cause)
        assert "SIGKILL" in cause


def left(tmp_path):
    """Files that a run left in its temporary folder, but for torchrun's own log folders."""
    return [path.name for path in tmp_path.rglob("*") if path.is_file() and "torchelastic" not in str(path)]
