"""Hosts as network namespaces: joined, shaped, and gone afterwards, whatever happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ready
from host_runs import of, real
from lab_runs import ENVIRONMENT, ROOT, alive

from scaleout.lab import hosts as lab_hosts


def interfaces():
    """Names of the interfaces in this process's own namespace."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


TALK = """
import socket, sys, time
if sys.argv[1] == "hear":
    with socket.create_server(("0.0.0.0", 9000)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        begun, heard = None, 0
        while piece := peer.recv(2**16):
            begun = begun or time.perf_counter()
            heard += len(piece)
        print(heard, time.perf_counter() - begun, flush=True)
else:
    with socket.create_connection((sys.argv[2], 9000), 10) as peer:
        peer.sendall(bytes(int(sys.argv[3])))
"""


def send(hosts, size):
    """(bytes heard, seconds) of one message from host 1 to host 0."""
    hear = hosts.start(0, [sys.executable, "-c", TALK, "hear"], stdout=subprocess.PIPE, text=True)
    assert hear.stdout.readline() == "ready\n"
    hosts.start(1, [sys.executable, "-c", TALK, "say", hosts.address(0), str(size)])
    heard, seconds = hear.communicate(timeout=30)[0].split()
    return int(heard), float(seconds)


@real
def test_hosts_are_joined_shaped_and_gone_afterwards():
    before = interfaces()
    with lab_hosts.Hosts(3) as hosts:
        mine = of(os.getpid())
        assert len(mine) == 4, "three hosts and their switch"
        assert interfaces() == before, "nothing is made in the machine's own namespace"
        hosts.shape(40e6)
        heard, seconds = send(hosts, 1_000_000)
        assert heard == 1_000_000
        line = (heard - lab_hosts.burst(40e6)) / (40e6 / 8 * lab_hosts.GOODPUT)
        # a busy machine starts the clock late, when bytes wait already, or is slow; twice the rate would be neither
        assert 0.6 * line < seconds < 4 * line
        stays = hosts.start(2, ["sleep", "600"])
        hosts.shape(None)
        hosts.shape(40e6, latency_seconds=0.001)
        with pytest.raises(ValueError, match=r"a link of 10 bit/s: use at least 1e6"):
            hosts.shape(10)
        assert lab_hosts.leftovers() == [] or not mine & set(lab_hosts.leftovers()), "those in use are no leftovers"
    assert stays.returncode is not None
    assert of(os.getpid()) == set()
    assert interfaces() == before
    assert signal.getsignal(signal.SIGTERM) is not lab_hosts._stop


@real
def test_an_error_inside_leaves_nothing():
    with pytest.raises(RuntimeError), lab_hosts.Hosts(2) as hosts:
        stays = hosts.start(0, ["sleep", "600"])
        raise RuntimeError
    assert stays.returncode is not None
    assert of(os.getpid()) == set()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_number_of_hosts_is_checked(count):
    with pytest.raises(ValueError, match=f"{count} hosts: use 2 to 4"):
        lab_hosts.Hosts(count)


HOLD = """
import time
from scaleout.lab.hosts import Hosts
with Hosts(2) as hosts:
    hosts.start(0, ["sh", "-c", "echo ready; exec sleep 600"])
    time.sleep(600)
"""


def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@real
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_processes_and_hosts(sign):
    process = holder()
    assert len(of(process.pid)) == 3
    inside = [pid for name in of(process.pid) for pid in lab_hosts.inside(name)]
    assert len(inside) == 1
    process.send_signal(sign)
    process.wait(20)
    assert of(process.pid) == set()
    assert not alive(inside[0])


@real
def test_what_a_killed_run_left_is_removed_by_the_next():
    process = holder()
    inside = [pid for name in of(process.pid) for pid in lab_hosts.inside(name)]
    os.kill(ready.process_of(process.pid), signal.SIGKILL)
    process.wait(20)
    try:
        assert of(process.pid) <= set(lab_hosts.leftovers())
        assert len(of(process.pid)) == 3
    finally:
        lab_hosts.sweep()
    assert of(process.pid) == set()
    assert not alive(inside[0])


# --- machines without ------------------------------------------------------------------------------------


def test_a_kernel_that_refuses_is_a_lack_too(monkeypatch):
    def no(*words):
        raise ValueError("the kernel refuses network namespaces here: ip netns add x: Operation not permitted")

    monkeypatch.setattr(lab_hosts, "missing", lambda: "")
    monkeypatch.setattr(lab_hosts, "_ip", no)
    assert lab_hosts.refused().startswith("the kernel refuses network namespaces here")
    monkeypatch.setattr(lab_hosts, "missing", lambda: "needs root")
    assert lab_hosts.refused() == "needs root"


def test_what_is_missing_is_said():
    def nothing(name):
        return None

    assert lab_hosts.missing("darwin", 0) == "needs Linux, this is darwin"
    assert lab_hosts.missing("linux", 1000) == "needs root, to make network namespaces (try sudo)"
    assert lab_hosts.missing("linux", 0, nothing) == "needs ip and tc (Debian: apt-get install iproute2)"
    assert lab_hosts.missing("linux", 0, str) == ""
