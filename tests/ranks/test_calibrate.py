"""labs/calibrate.py and labs/preflight.py, run as a reader runs them."""

import socket
from types import SimpleNamespace

import pool
import pytest
import samples
import torch
from lab_runs import free_port, lab_module, run, torchrun
from torch.utils._python_dispatch import TorchDispatchMode

from scaleout.measure import collectives, units
from scaleout.records import profiles

TINY = [
    "--seconds",
    "0.01",
    "--largest-mb",
    "1",
    "--largest-matrix",
    "128",
    "--tokens",
    "32",
    "--hidden",
    "32",
    "--seq",
    "16",
    "--head",
    "8",
]


# --- calibrate ------------------------------------------------------------------------------------------


def test_calibrate_two_processes(tmp_path):
    out = tmp_path / "machine.json"
    done = torchrun(["labs/calibrate.py", *TINY, "--out", out])
    assert done.returncode == 0, done.stderr
    profile = profiles.load(out)
    assert profile["world"] == 2
    assert profile["backend"] == "gloo"
    assert set(profile["collectives"]) == set(profiles.COLLECTIVES)
    for line in profile["collectives"].values():
        assert [p["bytes"] for p in line["points"]] == [4096, 16_384, 65_536, 262_144, 1_000_000]
        assert all(1e-7 < p["seconds"] < 5 for p in line["points"])
        worst = max(abs(p["fitted"] / p["seconds"] - 1) for p in line["points"])
        assert line["worst_relative_error"] == pytest.approx(worst)
    assert 1e8 < profile["matmul_flops_per_second"]["fp32"] < 1e13
    assert 1e8 < profile["copy_bytes_per_second"] < 1e12
    assert "worst residual" in done.stdout
    assert "profile saved: machine.json" in done.stdout
    assert "calibrate:" not in done.stderr, "no progress where output is no terminal"


def test_groups_of_ranks_are_measured_while_their_like_are(tmp_path):
    """What a mesh of four needs is in one profile: of all, and of two and two at once."""
    words = [*TINY, "--no-kernels", "--largest-mb", "0.1"]
    output = pool.output(["labs/calibrate.py", *words], 4, XDG_CACHE_HOME=str(tmp_path))
    profile = profiles.load(tmp_path / "scaleout" / "machine-cpu-4.json")
    assert list(profile["groups"]) == ["2"] and set(profile["groups"]["2"]) == set(profiles.COLLECTIVES)
    assert all(line["seconds_per_byte"] >= 0 < line["points"][0]["seconds"] for line in profile["groups"]["2"].values())
    rows = [line.split()[:2] for line in output.splitlines() if line.startswith("all_gather ")]
    assert rows[:2] == [["all_gather", "4"], ["all_gather", "2"]]


def test_a_group_s_profile_is_part_of_the_whole_ones_or_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = samples.profile(8)
    lines, line = whole["collectives"], whole["collectives"]["all_reduce"]
    whole["groups"] = {"2": {"all_reduce": line}}
    known = profiles.several(None, "cpu", [2, 8], 8)
    assert known == {2: None, 8: None} and profiles.lacking(known, 8) == "no profile of 8 processes (labs/calibrate.py)"
    profiles.save(whole, profiles.default_path("cpu", 8))
    known = profiles.several(None, "cpu", [2, 8], 8)
    assert profiles.lacking(known, 8) == "" and known[8] == whole
    assert (known[2]["world"], known[2]["collectives"]) == (2, {"all_reduce": line})
    known = profiles.several(None, "cpu", [2, 4, 8], 8)
    assert profiles.lacking(known, 8) == "the profile of 8 processes has no groups of 4 (run labs/calibrate.py again)"
    profiles.save(whole | {"world": 4, "groups": {}}, profiles.default_path("cpu", 4))
    assert profiles.several(None, "cpu", [2, 4, 8], 8)[4]["collectives"] == lines
    for wrong in ([], {"two": lines}, {"2": {"gossip": line}}, {"2": []}):
        with pytest.raises(ValueError, match=r"groups must be a table|'gossip' needs alpha_seconds"):
            profiles.validate(whole | {"groups": wrong})


def test_calibrate_one_process_says_what_it_skips(tmp_path):
    output = pool.output(["labs/calibrate.py", *TINY], XDG_CACHE_HOME=str(tmp_path))
    profile = profiles.load(tmp_path / "scaleout" / "machine-cpu-1.json")
    assert profile["collectives"] == {}
    assert "collectives: skipped, one process has no other to communicate with" in output
    assert str(tmp_path) not in output, "no path of this machine on the screen"
    ways = profile["kernels"]["units"]
    assert list(ways) == ["plain", "stage 1", "stage 2", "stage 3", "fully_shard"], "no DDP of one process"
    for way, rows in ways.items():
        assert [row["bytes"] for row in rows] == sorted({row["bytes"] for row in rows}) and len(rows) > 2
        assert all(row["units"] == 5 and row["update"] > units.LEAST for row in rows), way
    assert all(row[phase] == units.LEAST for row in ways["plain"] for phase in ("forward", "backward", "rest"))
    assert profile["kernels"]["together"] > 0


@pytest.mark.parametrize(("late", "alone"), [(3.0, 0.5), (0.25, 0.5)])
def test_a_collective_is_timed_between_kernels(late, alone):
    """What it takes after a kernel, without the kernel; at least what it takes after a barrier."""
    now, last = [0.0], ["barrier"]

    def call(name, seconds):
        now[0] += seconds(last[0])
        last[0] = name

    s = SimpleNamespace(clock=lambda: now[0], largest=float, barrier=lambda: call("barrier", lambda _: 7.0))
    work = lambda: call("work", lambda before: late if before == "kernel" else alone)  # noqa: E731
    kernel = lambda: call("kernel", lambda _: 1.0)  # noqa: E731
    assert collectives.between(s, work, kernel, 0.1) == pytest.approx(max(late, alone))


class Clock(TorchDispatchMode):
    """A clock by which a process's first matrix product takes a second, and each later one a microsecond."""

    now = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "mm" in str(func):
            self.now += 1e-6 if self.now else 1.0
        return func(*args, **(kwargs or {}))


def test_what_the_first_product_loads_is_not_timed():
    calibrate, clock = lab_module("calibrate"), Clock()
    s = SimpleNamespace(device="cpu", clock=lambda: clock.now, largest=float, barrier=lambda: None)
    with clock:
        rate, side = calibrate.matmul_rate(s, torch.float32, calibrate.Options(seconds=0.4, largest_matrix=512))
    assert side == 512
    assert rate == pytest.approx(2 * 512**3 / 1e-6)


def test_message_sizes_split_over_any_number_of_ranks():
    calibrate = lab_module("calibrate")
    for world in (2, 3, 4, 7, 8):
        found = calibrate.sizes(calibrate.Options(largest_mb=0.1), world)
        assert found == sorted(set(found))
        assert all(size % (4 * world) == 0 for size in found)


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--largest-mb", "nan"], ["--out", ""], ["--x", "1"]])
def test_calibrate_refuses_in_one_line(words, tmp_path):
    with pytest.raises(ValueError) as caught:
        lab_module("calibrate").main(None, words)
    assert "\n" not in str(caught.value)


# --- preflight ------------------------------------------------------------------------------------------


def test_preflight_of_a_ready_machine():
    done = run(["labs/preflight.py", "--disk-gib", "0.1", "--memory-gib", "1"], MASTER_PORT=str(free_port()))
    lines = done.stdout.splitlines()
    assert "all-reduce over 2 processes" in done.stdout
    assert "gloo: sum of 1..2 is 3" in done.stdout
    red = [line for line in lines if line.startswith("FIX ")]
    assert (done.returncode, red) == (0, []), done.stdout
    assert lines[-1] in ("Ready.", "Ready, without GPUs.")
    assert "\033" not in done.stdout, "no colour where output is no terminal"


def test_preflight_of_one_process_skips_the_all_reduce():
    done = pool.lab(
        ["labs/preflight.py", "--disk-gib", "0.1", "--memory-gib", "1", "--processes", "1"],
        MASTER_PORT=str(free_port()),
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("all-reduce"))
    assert line.split()[1] == "skipped"
    assert "one process has no other to communicate with" in line
    assert done.returncode == 0, "what was not tried is not to fix"


def test_preflight_says_what_to_do_and_exits_1():
    done = pool.lab(["labs/preflight.py", "--gpus", "1", "--disk-gib", "1e9"], 2)
    assert "all-reduce over 2 ranks" in done.stdout
    red = [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("FIX ")]
    assert [need for need in red if need != "FIX driver"] == ["FIX GPUs, at least 1", "FIX disk, 1e+09 GiB free here"]
    assert done.returncode == 1
    assert "Ready" not in done.stdout


def test_each_preflight_check_can_fail(tmp_path, monkeypatch):
    preflight = lab_module("preflight")
    assert preflight.python_version((3, 10, 4)).ok is False
    assert preflight.python_version((3, 11, 0)).ok is True
    assert preflight.torch_version("2.10.1+cu128").ok is False
    assert preflight.torch_version("2.11.0").ok is True
    assert preflight.gpus(2, 1, ["H200"]).found == "1 x H200"
    assert preflight.gpus(2, 1, ["H200"]).ok is False
    assert preflight.gpus(0, 0, []).ok is True
    assert preflight.disk(1e9, tmp_path).ok is False
    assert preflight.memory(1e9).ok is False
    assert preflight.shared_memory(tmp_path, 2**80).ok is False
    assert preflight.shared_memory(tmp_path / "gone").ok is None
    monkeypatch.setattr(preflight.os, "access", lambda path, how: False)
    locked = preflight.disk(0, tmp_path)
    assert (locked.ok, locked.found.split(", ")[-1]) == (False, "not writable")
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    assert preflight.packages().remedy == "pip install accelerate matplotlib"
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        busy = preflight.port(str(number))
        assert (busy.ok, "one does not" in busy.found) == (None, True), "torchrun on one machine takes another"
    assert preflight.port(str(number)).ok is True


@pytest.mark.parametrize("text", ["tcp://10.96.0.12:23456", "99999", "0", "x"])
def test_a_master_port_that_is_none_is_no_traceback(text):
    """Kubernetes sets MASTER_PORT=tcp://... for a Service that is called master."""
    check = lab_module("preflight").port(text)
    assert (check.ok, check.found) == (None, f"MASTER_PORT is {text!r}, no port: torchrun takes one of its own")


def test_a_host_name_that_leads_nowhere_is_to_fix():
    preflight = lab_module("preflight")
    check = preflight.host_name("no.such.host.invalid")
    assert check.ok is False and "--local-addr localhost" in check.remedy
    assert preflight.host_name("localhost").ok is True


def test_the_words_say_what_the_colours_say():
    preflight = lab_module("preflight")
    checks = [
        preflight.Check("a", True, "1"),
        preflight.Check("b", False, "2", "do this"),
        preflight.Check("c", None, "3"),
    ]
    plain = preflight.show(checks, colour=False)
    assert [line.split()[1] for line in plain.splitlines()[2:5]] == ["ok", "FIX", "skipped"]
    assert plain.splitlines()[-1] == "FIX b: do this"
    coloured = preflight.show(checks, colour=True)
    assert coloured.splitlines()[3].startswith("\033[31m")
    assert (
        coloured.replace("\033[31m", "").replace("\033[32m", "").replace("\033[33m", "").replace("\033[0m", "") == plain
    )
