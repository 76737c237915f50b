"""CPU and memory that this process may use: those of the machine, or less by its control groups. Standard library only.

A container, a Slurm job or a systemd service has a control group with limits (docs.kernel.org: admin-guide/cgroup-v2,
admin-guide/cgroup-v1). The kernel silently kills a process that uses more memory, and throttles one that uses more
CPU time; `os.sysconf` and `os.cpu_count` still describe the whole machine.
"""

import math
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def machine_memory():
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory(groups=None):
    """Bytes of memory that this process and what it starts may use. groups: folders, for `groups()`."""
    limits = [
        _bytes(folder / name)
        for folder in (all_groups() if groups is None else groups)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min([machine_memory(), *filter(None, limits)])


def machine_cores():
    """Cores that this process may run on: all, or those that taskset, Slurm or a cpuset left it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(groups=None):
    """`machine_cores`, or as many as the CPU time of its control groups is worth, rounded up. groups: as `memory`."""
    quotas = [_quota(folder) for folder in (all_groups() if groups is None else groups)]
    return min([machine_cores(), *(math.ceil(quota) for quota in quotas if quota)])


def all_groups(listed=Path("/proc/self/cgroup"), root=ROOT):
    """Folders of the control groups that this process is in, and of those above them: each may limit it.

    listed: a line a hierarchy, "4:memory:/some/group" in version 1 and "0::/some/group" in version 2. In a container
    the path may be the host's, which is not there: then its last parts may be, and the root always is.
    """
    try:
        lines = listed.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory") and "cpu" not in kinds.split(","):
            continue
        for top in (root / kinds, root) if kinds else (root, root / "unified"):
            folder = top / path.lstrip("/")
            folders += [place for place in (folder, *folder.parents) if place.is_dir() and place.is_relative_to(top)]
    return list(dict.fromkeys(folders))


def _bytes(path):
    """A limit in bytes; None where there is none. "max", or a number near 2^63, means none."""
    text = _text(path)
    return int(text) if text.isdecimal() and 0 < int(text) < 2**62 else None


def _quota(folder):
    """Cores' worth of CPU time that a group may use (float); None where it has no limit."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None
    return int(quota) / int(period)


def _text(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""
