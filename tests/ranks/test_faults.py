"""Faults of the labs on communication: who is missing, dead or in the way is said in one line, and nothing stays."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_session import alive, children

from scaleout.lab import join

ROOT = Path(__file__).resolve().parents[2]
LABS = ("labs/collectives.py", "labs/ddp.py")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "MASTER_ADDR", "MASTER_PORT")}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LONG = {"labs/collectives.py": ["--rounds", "10000"], "labs/ddp.py": ["--steps", "100000"]}


def environment(tmp_path, **more):
    """Temporary files and machine profiles go to `tmp_path`."""
    return ENVIRONMENT | {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")} | more


def start(lab, tmp_path, **more):
    """One process of a lab, as a launcher would start it."""
    return subprocess.Popen([sys.executable, lab], cwd=ROOT, env=environment(tmp_path, **more), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def place(rank, world, port, wait="2"):
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LAB_TIMEOUT": wait}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def assert_one_line(process, lab, said, code=1):
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert re.fullmatch(f"{re.escape(lab)}: {said}\n", errors), errors


# --- who does not come -------------------------------------------------------------------------------------

@pytest.mark.parametrize("lab", LABS)
def test_a_port_in_use_is_one_line(lab, tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line(start(lab, tmp_path, **place(0, 2, port)), lab,
                        rf"port {port} cannot be used \(address already in use\): choose another MASTER_PORT, or let "
                        "torchrun find one with --standalone")


@pytest.mark.parametrize("lab", LABS)
def test_a_missing_peer_is_one_line_on_either_side(lab, tmp_path):
    begun, port = time.monotonic(), free_port()
    assert_one_line(start(lab, tmp_path, **place(0, 3, port)), lab,
                    r"1 of 3 ranks came in 2 s: start the missing ones with the same MASTER_ADDR and MASTER_PORT "
                    r"\(LAB_TIMEOUT sets the seconds\)")
    assert_one_line(start(lab, tmp_path, **place(1, 3, port)), lab,
                    rf"rank 1 found no rank 0 at 127\.0\.0\.1:{port} in 2 s \(connection refused\): start it there, or "
                    r"mend MASTER_ADDR and MASTER_PORT \(LAB_TIMEOUT sets the seconds\)")
    assert time.monotonic() - begun < 60


def test_an_address_that_is_not_there(tmp_path):
    missing = {name: value for name, value in place(1, 2, 1).items() if not name.startswith("MASTER")}
    assert_one_line(start(LABS[0], tmp_path, **missing), LABS[0],
                    "rank 1 of 2 has no MASTER_ADDR and no MASTER_PORT in its environment: start the lab with torchrun")
    assert_one_line(start(LABS[0], tmp_path, **place(0, 2, 99999)), LABS[0],
                    "MASTER_PORT is '99999' in the environment, where a whole number from 1 to 65535 belongs: start "
                    "the lab with python or torchrun", 2)
    assert_one_line(start(LABS[0], tmp_path, **place(0, 2, "http")), LABS[0],
                    "MASTER_PORT is 'http' in the environment, where a whole number from 1 to 65535 belongs: start the "
                    "lab with python or torchrun", 2)


def test_a_host_without_a_name_is_waited_for(monkeypatch):
    monkeypatch.setattr(join, "TIMEOUT_S", 0.3)
    with pytest.raises(join.Unmet, match=r"rank 2 found no rank 0 at no\.such\.host\.invalid:29500 in 0\.3 s"):
        join._reach(2, "no.such.host.invalid", 29500)


def test_a_late_rank_0_is_found(monkeypatch):
    monkeypatch.setattr(join, "TIMEOUT_S", 5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        join._reach(1, *server.getsockname())
        with pytest.raises(join.Unmet, match="cannot be used"):
            join._free(server.getsockname()[1])
    join._free(free_port())


def test_torchrun_names_the_port_in_use(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                               str(port), LABS[0]], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True,
                              timeout=60)
    assert done.returncode == 1
    assert f"port: {port}" in done.stderr.splitlines()[-1], "torchrun's own report: no lab has started"
    assert "EADDRINUSE" in done.stderr.splitlines()[-1]


# --- who does not fit --------------------------------------------------------------------------------------

@pytest.mark.parametrize(("words", "said"), [
    (["--inject", "straggler:1:0.2"], "--inject needs ranks that wait for each other: torchrun --nproc-per-node 2"),
    (["--scaling", "2,3", "--micro-batch", "1"], "--scaling: 2 processes do not divide 3 sequences: choose numbers of "
                                                 "processes that divide the largest times --micro-batch"),
    (["--scaling", "0,2"], "--scaling 0,2: give numbers of processes from 1 to 64, such as 1,2,4"),
])
def test_a_number_of_processes_that_does_not_fit_is_one_line(words, said, tmp_path):
    done = subprocess.run([sys.executable, "labs/ddp.py", *words], cwd=ROOT, env=environment(tmp_path), text=True,
                          capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"labs/ddp.py: {said}\n")


def test_a_rank_that_is_not_there_is_said_once(tmp_path):
    launched = torchrun("labs/ddp.py", 2, tmp_path, ["--inject", "straggler:5:0.2"])
    _, errors = launched.communicate(timeout=60)
    assert said_by("labs/ddp.py", errors) == [
        "labs/ddp.py: --inject straggler:5:0.2: there is no rank 5 among 2, which are 0 to 1"]
    assert "exitcode  : 2 " in errors.split("Root Cause")[1]


# --- who dies ----------------------------------------------------------------------------------------------

def torchrun(lab, count, tmp_path, words=()):
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                             str(count), lab, *(words or LONG[lab])], cwd=ROOT, env=environment(tmp_path), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said_by(lab, errors):
    """The lines of stderr that are the lab's own."""
    return [line for line in errors.splitlines() if line.startswith(f"{lab}: ")]


def at_work(launched, count):
    """{rank: pid} of the workers, once all are in the long part: after rank 0 has said what it does."""
    assert launched.stdout.readline()
    workers = children(launched.pid)
    assert sorted(workers) == list(range(count))
    time.sleep(2)
    assert launched.poll() is None, "it must still run when its rank is killed"
    return workers


@pytest.mark.parametrize("lab", LABS)
def test_a_rank_killed_in_a_collective_is_named_and_all_end(lab, tmp_path):
    launched = torchrun(lab, 3, tmp_path)
    workers = at_work(launched, 3)
    os.kill(workers[1], signal.SIGKILL)
    begun = time.monotonic()
    _, errors = launched.communicate(timeout=60)
    assert time.monotonic() - begun < 20
    cause = errors.split("Root Cause")[1]
    assert re.search(r"rank +: 1 ", cause)
    assert "SIGKILL" in cause
    assert [rank for rank, pid in workers.items() if alive(pid)] == []
    assert all("lost another rank, which ended first" in line for line in said_by(lab, errors))
    assert left(tmp_path) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_launcher_leaves_nothing(sign, tmp_path):
    launched = torchrun("labs/ddp.py", 2, tmp_path)
    workers = at_work(launched, 2)
    launched.send_signal(sign)
    launched.communicate(timeout=60)
    assert launched.returncode != 0
    assert [rank for rank, pid in workers.items() if alive(pid)] == []
    assert left(tmp_path) == []


def left(tmp_path):
    """Files that a run left in its temporary folder, but for torchrun's own log folders."""
    return [path.name for path in tmp_path.rglob("*") if path.is_file() and "torchelastic" not in str(path)]
