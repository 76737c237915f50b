"""Is this machine ready for the labs? One table with ok or FIX for each need, and what to do.

    python labs/preflight.py                                     one machine; starts its own processes
    python labs/preflight.py --gpus 8                            and it must have 8 GPUs
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 labs/preflight.py
                                                                 on every node of a cluster

Exit code 0 if everything is ok, 1 if something needs fixing. Without --gpus, a machine whose GPUs are not visible
counts as a machine without GPUs, so say how many you expect.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout.lab import Check, gpu_checks, join, launch, limits, options, rate, session, table

GIB = 2**30
NEEDS_TORCH = (2, 11)
LIMIT_S = 120  # for the processes that this script starts itself


@dataclass(frozen=True)
class Options:
    """What the class needs."""

    processes: int | None = options.number(None, "processes to start (default: 2, or one per GPU)", highest=64)
    gpus: int = options.number(0, "GPUs a machine must have", 0, 64)
    disk_gib: float = options.number(5, "free disk in GiB (2^30 bytes)", 0, None)
    memory_gib: float = options.number(4, "memory in GiB", 0, None)


TIERS = {"smoke": Options(), "cpu": Options(), "gpu": Options(gpus=1, disk_gib=50, memory_gib=32)}


def python_version(version=sys.version_info):
    """Python 3.11 or newer."""
    text = ".".join(map(str, version[:3]))
    return Check("Python 3.11 or newer", tuple(version[:2]) >= (3, 11), text, "install Python 3.11 or newer")


def torch_version(version=torch.__version__):
    """torch 2.11 or newer."""
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return Check("torch 2.11 or newer", number >= NEEDS_TORCH, version, "pip install 'torch>=2.11'")


def packages():
    """What the labs import besides torch."""
    missing = [name for name in ("accelerate", "matplotlib") if importlib.util.find_spec(name) is None]
    text = "missing: " + ", ".join(missing) if missing else "found"
    return Check("accelerate, matplotlib", not missing, text, "pip install " + " ".join(missing))


def gpus(needed, visible=None, names=None):
    """GPUs that torch sees, at least `needed`."""
    visible = torch.cuda.device_count() if visible is None else visible
    names = names or sorted({torch.cuda.get_device_name(i) for i in range(visible)})
    text = f"{visible} x {', '.join(names)}" if visible else "no GPU is visible"
    if not (visible or needed):
        text += ": labs would run on the CPU (say --gpus N if you expect some)"
    return Check(
        f"GPUs, at least {needed}",
        visible >= needed,
        text,
        "see the driver line, and check that the job or the container was given its GPUs",
    )


def backend_ready():
    """NCCL where GPUs are there, gloo otherwise."""
    wanted, present = (
        ("NCCL", dist.is_nccl_available()) if torch.cuda.is_available() else ("gloo", dist.is_gloo_available())
    )
    return Check(f"backend {wanted}", present, "built in" if present else "missing", f"install a torch with {wanted}")


def disk(needed_gib, folder="."):
    """Free disk in the folder you are in, and the right to write there."""
    free = shutil.disk_usage(folder).free / GIB
    writable = os.access(folder, os.W_OK)
    return Check(
        f"disk, {needed_gib:g} GiB free here",
        free >= needed_gib and writable,
        f"{free:.0f} GiB free" + ("" if writable else ", not writable"),
        "free some space, or change to a folder you may write to",
    )


def memory(needed_gib):
    """Memory and cores that this process may use, and of how many, where its control group leaves it fewer."""
    total, cores, texts = limits.memory() / GIB, limits.cores(), []
    for used, machine, unit in ((total, limits.machine_memory() / GIB, " GiB"), (cores, os.cpu_count(), " cores")):
        texts.append(f"{used:.3g}" + (f" of the machine's {machine:.3g}" if used < machine else "") + unit)
    return Check(
        f"memory, {needed_gib:g} GiB",
        total >= needed_gib,
        ", ".join(texts),
        "use a larger machine, or ask the container or the job for more memory",
    )


def shared_memory(folder="/dev/shm", needed=GIB):
    """Shared memory: NCCL and data loaders pass tensors through it; a container has 64 MiB unless asked."""
    if not Path(folder).is_dir():
        return Check("shared memory, 1 GiB", None, "no /dev/shm on this system")
    usage = shutil.disk_usage(folder)
    return Check(
        "shared memory, 1 GiB",
        usage.free >= needed,
        f"{usage.free / GIB:.2f} GiB free of {usage.total / GIB:.2f}",
        "podman run --shm-size=8g, or --ipc=host; elsewhere remove what killed jobs left in /dev/shm",
    )


def port(text=None):
    """The port at which nodes meet is free. On one machine torchrun finds a free one by itself, so none is needed."""
    text = os.environ.get("MASTER_PORT") or "29500" if text is None else text
    if not (options.digits(text) and 0 < int(text) < 2**16):
        return Check("rendezvous port", None, f"MASTER_PORT is {text[:40]!r}, no port: torchrun takes one of its own")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return Check("rendezvous port", True, f"{text}, in use by this launch")
    try:
        join.listener(int(text)).close()
    except OSError as error:
        return Check(
            f"port {text}", None, f"{error.strerror.lower()}: several nodes need another --rdzv-endpoint, one does not"
        )
    return Check(f"port {text}", True, "free")


def host_name(name=None):
    """This host's name leads to an address: the processes that torchrun starts look for it."""
    name = socket.gethostname() if name is None else name
    try:
        return Check("host name", True, f"{name} is {socket.getaddrinfo(name, None)[0][4][0]}")
    except OSError as error:
        return Check(
            "host name",
            False,
            f"{name} leads to no address ({error.strerror.lower()})",
            "torchrun --local-addr localhost ... on one machine, or a line for the name in /etc/hosts",
        )


def group_of(s):
    """All-reduce over every rank of this launch, on the labs' own backend: its sum, and how fast it is."""
    ranks = torch.ones(1, device=s.device) * (s.rank + 1)
    dist.all_reduce(ranks)
    expected = s.world * (s.world + 1) // 2
    words, slow = rate(s)
    return Check(
        f"all-reduce over {s.world} ranks",
        int(ranks) == expected and not slow,
        f"{s.backend}: sum of 1..{s.world} is {int(ranks)}; {words}",
        "the GPUs do not use their links: NCCL_DEBUG=INFO shows which path NCCL takes"
        if slow
        else "see the troubleshooting page",
    )


def group_started(processes):
    """Start `processes` of this script under torchrun and let them all-reduce; skipped for a single one."""
    if processes == 1:
        return Check(
            "all-reduce", None, "one process has no other to communicate with (try --processes 2, or a second GPU)"
        )
    environment = {"PREFLIGHT_INNER": "1", "OMP_NUM_THREADS": "1"}
    need = f"all-reduce over {processes} processes"
    try:
        with launch.ranks(
            processes,
            [str(Path(__file__).resolve())],
            environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            output, err = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Check(
            need,
            False,
            f"no answer within {LIMIT_S} s",
            "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the network in use",
        )
    lines = [line.strip() for line in (output + err).splitlines() if line.startswith("PREFLIGHT ")]
    reasons = [line for line in err.splitlines() if "preflight.py: " in line] or ["the processes ended early"]
    return Check(
        need,
        child.returncode == 0 and bool(lines),
        (lines or reasons)[0].removeprefix("PREFLIGHT "),
        f"see why: LAB_TRACEBACK=1 torchrun --nproc-per-node {processes} labs/preflight.py",
    )


def local_checks(o):
    """What each machine is asked."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        python_version(),
        torch_version(),
        packages(),
        gpus(o.gpus, seen),
        *gpu_checks(o.gpus, seen, torch.version.cuda),
        backend_ready(),
        memory(o.memory_gib),
        disk(o.disk_gib),
        shared_memory(),
        host_name(),
        port(),
    ]


def show(checks, colour):
    """The table as one string: the words say it, the colour repeats it."""
    words = {True: "ok", False: "FIX", None: "skipped"}
    paint = {True: "\033[32m", False: "\033[31m", None: "\033[33m"}
    lines = table(("need", "state", "found"), [(c.need, words[c.ok], c.found) for c in checks]).splitlines()
    if colour:
        lines[2:] = [paint[c.ok] + line + "\033[0m" for c, line in zip(checks, lines[2:], strict=True)]
    todo = [f"FIX {c.need}: {c.remedy}" for c in checks if c.ok is False]
    ready = "Ready, without GPUs." if any("no GPU is visible" in c.found for c in checks) else "Ready."
    return "\n".join([*lines, "", *(todo or [ready])])


def gather(s, checks):
    """Rank 0: the checks of all nodes, the reds of other nodes under their host's name. Others: None."""
    if s.world == 1:
        return checks
    everywhere = s.gathered((socket.gethostname(), s.local_rank, checks))
    if not s.main:
        return checks
    failed = [
        Check(f"{host}: {c.need}", c.ok, c.found, c.remedy)
        for host, local_rank, checks_of_rank in everywhere[1:]
        if local_rank == 0
        for c in checks_of_rank
        if c.ok is False
    ]
    return [*checks, *failed]


def main(s, argv=None):
    """Check, print, exit 0 or 1."""
    _, o = options.parse(TIERS, __doc__, argv)
    if os.environ.get("PREFLIGHT_INNER"):
        check = group_of(s)
        s.say(f"PREFLIGHT {check.found}")
        sys.exit(0 if check.ok else 1)
    if o.processes and s.world > 1:
        raise ValueError(f"--processes: torchrun has started {s.world} already: leave it out, or start with python")
    checks = local_checks(o) if s.local_rank == 0 else []
    processes = o.processes or torch.cuda.device_count() or 2
    checks.append(group_of(s) if s.world > 1 else group_started(processes))
    checks = gather(s, checks)
    s.say(show(checks, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    if not s.agree(all(c.ok is not False for c in checks)):
        sys.exit(1)


if __name__ == "__main__":
    session.run(main)
