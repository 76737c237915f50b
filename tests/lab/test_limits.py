"""lab/limits.py on control groups of both versions, made up as folders, and what preflight and the labs say of them."""

import os

import pytest
from lab_runs import lab_module

from scaleout.lab import fits, limits
from scaleout.spec import Shape

GIB = 2**30


def groups(root, listed, files):
    """The folders of a process whose /proc/self/cgroup says `listed`. files: {path below the root: text}."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "listed").write_text(listed)
    return limits.all_groups(root / "listed", root)


@pytest.mark.parametrize(
    ("listed", "files"),
    [
        ("0::/job/step", {"job/step/memory.max": "max\n", "job/memory.max": f"{3 * GIB}\n"}),  # the parent's counts
        ("0::/job", {"unified/job/memory.max": f"{3 * GIB}\n"}),  # both versions
        (
            "4:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
        ),  # none at the root
        ("4:memory:/docker/4711", {"memory/memory.limit_in_bytes": f"{3 * GIB}\n"}),  # the host's path
    ],
)
def test_the_least_limit_of_a_group_and_those_above_it_counts(listed, files, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "machine_memory", lambda: 64 * GIB)
    assert limits.memory(groups(tmp_path, listed, files)) == 3 * GIB


@pytest.mark.parametrize(
    ("listed", "files", "cores"),
    [
        ("0::/job", {"job/cpu.max": "150000 100000\n"}, 2),
        ("0::/job", {"job/cpu.max": "max 100000\n"}, 64),
        ("0::/job", {"job/cpu.max": "25600000 100000\n"}, 64),  # more than there are
        (
            "3:cpu,cpuacct:/job",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        (
            "3:cpu,cpuacct:/job",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
            64,
        ),
    ],
)
def test_cores_are_the_cpu_time_of_a_group(listed, files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "machine_cores", lambda: 64)
    assert limits.cores(groups(tmp_path, listed, files)) == cores


def test_without_control_groups_the_machine_counts(tmp_path):
    assert limits.all_groups(tmp_path / "missing", tmp_path) == []
    assert limits.memory([]) == limits.machine_memory()
    assert limits.cores([]) == limits.machine_cores()


def test_preflight_shows_the_limit_and_whose_it_is(monkeypatch):
    preflight = lab_module("preflight")
    monkeypatch.setattr(limits, "machine_memory", lambda: 24 * GIB)
    monkeypatch.setattr(limits, "memory", lambda: 3 * GIB)
    monkeypatch.setattr(limits, "cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    check = preflight.memory(4)
    assert (check.ok, check.found) == (False, "3 of the machine's 24 GiB, 1 of the machine's 8 cores")
    monkeypatch.setattr(limits, "memory", lambda: 24 * GIB)
    assert preflight.memory(4).ok


def test_a_model_that_a_limit_leaves_no_room_for_is_refused_in_one_line(monkeypatch):
    """60 layers of 1,024: 3.0 GB of weights are below a limit of 3 GiB, with their states 12.1 GB are not."""
    shape = Shape(layers=60, hidden=1024, heads=16, ff=4096, vocab=256)
    monkeypatch.setattr(limits, "memory", lambda: 3 * GIB)
    with pytest.raises(
        ValueError,
        match=r"^weights, gradients and AdamW's two moments take 1[0-9]\.\d GB, and this "
        r"machine has 3\.2 GB: use fewer --layers",
    ):
        fits.host(shape, 1, fits.REPLICATED)
    with pytest.raises(ValueError, match=r"each of 2 processes here has 1\.6 GB"):
        fits.host(shape, 2)
