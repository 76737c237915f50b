"""What a lab keeps: the Record with where and how it ran, and the file that --save names."""

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
    """What the device is called: the GPU's name, or "2-core x86-64 CPU"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{limits.cores()}-core {platform.machine().replace('_', '-')} CPU"


def interconnect(s):
    """What joins the ranks, as far as this node can tell."""
    if s.world == 1:
        return "none"
    if s.nodes > 1:
        return _named() or "network between nodes, unnamed (set LAB_INTERCONNECT)"
    if s.device.type == "cpu":
        return "TCP on one host"
    return _named() or ("NVLink" if _nvlink() else "PCIe")


def _named():
    """What LAB_INTERCONNECT says, as one line; "" for nothing."""
    return " ".join(os.environ.get("LAB_INTERCONNECT", "").split())


def _nvlink():
    """True where nvidia-smi shows an active NVLink."""
    try:
        result = subprocess.run(["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return "GB/s" in result.stdout


def versions():
    """Versions of what decides the result (dict of str)."""
    packages = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        packages["cuda"] = torch.version.cuda
    if torch.distributed.is_available() and torch.cuda.is_available() and dist.is_nccl_available():
        packages["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if "accelerate" in sys.modules:
        packages["accelerate"] = sys.modules["accelerate"].__version__
    return packages


def launcher(s):
    """How this process was started, as a reader would type it again."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return "python"
    nodes = f"--nnodes {s.nodes} " if s.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {s.local_world}"


def facts(s, dataset=None):
    """The fields of a Record that say where and how it ran (dict). dataset: what --dataset named, once it was read."""
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
    """In words, where the system was asked not to let what wakes take the processor from a rank; else none (list)."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_BATCH:
        return []
    return ["scheduled as a batch (chrt --batch 0)"]


def heading(s, shape):
    """How a lab that trains begins: a line of the machine and its ranks, and the parameters of a Shape, which the lab
    goes on from. A page shows 74 characters of a line at least."""
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
    """Where --save puts a Record: the file given, or TIER-DEVICE-PROCESSES[-WAY].json in `folder`, a Path."""
    name = f"{r.tier}-{r.device_kind}-{r.device_count}" + ("" if way == "torch" else f"-{way}")
    return folder / f"{name}.json" if save == "auto" else Path(save)


def keep(s, r, save, folder, way="torch"):
    """Write a Record to its `path` where --save asks for it, on rank 0."""
    if save and s.main:
        s.say(f"record saved: {results.save(r, path(r, save, folder, way)).name}")


def end(s, checks):
    """Exit code 1 on all ranks where a check of a Record failed on any."""
    if not s.agree(all(check["passed"] for check in checks.values())):
        sys.exit(1)
