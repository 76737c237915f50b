"""The Record of a lab, with where and how it ran, and the file that --save names."""

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout.lab import corpus, limits
from scaleout.records import provenance, results
from scaleout.spec.transformer import total_parameters


def device_name(device):
    """The name of the device: the GPU's name, or "2-core x86-64 CPU"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{limits.cores()}-core {platform.machine().replace('_', '-')} CPU"


def interconnect(s):
    """The link between the ranks, as far as this node can tell."""
    if s.world == 1:
        return "none"
    if s.nodes > 1:
        return _named() or "network between nodes, unnamed (set LAB_INTERCONNECT)"
    if s.device.type == "cpu":
        return "TCP on one host"
    return _named() or ("NVLink" if _nvlink() else "PCIe")


def _named():
    """The value of LAB_INTERCONNECT in one line; "" without one."""
    return " ".join(os.environ.get("LAB_INTERCONNECT", "").split())


def _nvlink():
    """True if nvidia-smi shows an active NVLink."""
    try:
        result = subprocess.run(["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return "GB/s" in result.stdout


def versions():
    """Versions of the packages that affect the result (dict of str)."""
    packages = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        packages["cuda"] = torch.version.cuda
    if torch.distributed.is_available() and torch.cuda.is_available() and dist.is_nccl_available():
        packages["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if "accelerate" in sys.modules:
        packages["accelerate"] = sys.modules["accelerate"].__version__
    return packages


def launcher(s):
    """The start of the command line of this process, as a reader would type it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return "python"
    nodes = f"--nnodes {s.nodes} " if s.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {s.local_world}"


def facts(s, dataset=None):
    """The fields of a Record that say where and how it ran (dict). dataset: the value of --dataset, once read."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(),
        "command": provenance.command_line(launcher=launcher(s)),
        "device": device_name(s.device),
        "device_kind": s.device.type,
        "device_count": s.world,
        "nodes": s.nodes,
        "interconnect": interconnect(s),
        "backend": s.backend,
        "versions": versions(),
        "dataset": dataset and corpus.named(dataset),
        "notes": [
            f"{torch.get_num_threads()} CPU thread(s) a process",
            f"load average {os.getloadavg()[0]:.1f} on {limits.cores()} cores, this run included",
            *turns(),
        ],
    }


def turns():
    """A note if the process is scheduled as a batch, so that waking threads do not preempt it (list)."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_BATCH:
        return []
    return ["scheduled as a batch (chrt --batch 0)"]


def heading(s, shape):
    """The first lines of a lab that trains: the machine and its ranks, and the parameters of a Shape. A page shows at
    least 74 characters per line."""
    return (
        f"{device_name(s.device)}, {s.world} process(es), backend {s.backend}\n"
        f"{total_parameters(shape) / 1e6:,.2f} M parameters"
    )


def record(s, stem, tier, *, notes=(), dataset=None, **fields):
    """The Record of this run: `facts` and `fields`; without a rate of tokens among them, that of its steps.

    The same on every rank but for the facts of its own device. notes: beside those that `facts` has. dataset: what
    --dataset named, where a text was read.
    """
    values = {"checkpoint_cadence": "none", "warmup_steps": 0} | facts(s, dataset)
    values |= {"notes": [*values["notes"], *notes]} | fields
    if "tokens_per_second" not in values:
        values["tokens_per_second"] = results.tokens_per_second(
            values["step_seconds"], values["warmup_steps"], values["effective_batch"], values["sequence_length"]
        )
    return results.Record(stem=stem, tier=tier, **values)


def path(r, save, folder, way="torch"):
    """The path of a Record with --save: the given file, or TIER-DEVICE-PROCESSES[-WAY].json in `folder`, a Path."""
    name = f"{r.tier}-{r.device_kind}-{r.device_count}" + ("" if way == "torch" else f"-{way}")
    return folder / f"{name}.json" if save == "auto" else Path(save)


def keep(s, r, save, folder, way="torch"):
    """Write a Record to its `path` if --save is set, on rank 0."""
    if save and s.main:
        s.say(f"record saved: {results.save(r, path(r, save, folder, way)).name}")


def end(s, checks):
    """Exit with code 1 on all ranks if a check failed on any rank."""
    if not s.agree(all(check["passed"] for check in checks.values())):
        sys.exit(1)
