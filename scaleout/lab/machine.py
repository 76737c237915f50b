"""A description of this machine for a tour of the labs: python -m scaleout.lab.machine prints it as JSON.

A process of its own asks torch, for a driver that hangs must not take the tour along, and a GPU that was asked keeps
memory for whoever asked.
"""

import json
import os
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from scaleout.lab import hosts, limits
from scaleout.records import provenance

PACKAGES = ("torch", "triton", "accelerate", "transformers", "matplotlib")
GIB = 2**30


def processor():
    """The processor's name, where the system tells."""
    with suppress(OSError):
        if match := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.M):
            return match[1].strip()
    return platform.machine()


def software():
    """{package: version} of what is installed."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def gpus():
    """(how many GPUs the labs would use, bytes of the smallest, {what: in words})."""
    import torch

    from scaleout.lab import preflight

    facts = {"torch": torch.__version__ + (f", CUDA {torch.version.cuda}" if torch.version.cuda else ", for CPUs")}
    count = 0 if os.environ.get("LAB_DEVICE") == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()
    if not count:
        return 0, 0.0, facts
    devices = [torch.cuda.get_device_properties(i) for i in range(count)]
    names = ", ".join(sorted({device.name for device in devices}))
    facts["GPU"] = (
        f"{count} x {names}, {min(device.total_memory for device in devices) / GIB:.1f} GiB, compute capability "
        f"{devices[0].major}.{devices[0].minor}"
    )
    with suppress(preflight.Silent):
        answer = preflight.ask(f"--query-gpu={preflight.FIELDS}", "--format=csv,noheader,nounits")
        facts["driver"] = preflight.cards(answer)[0].driver
    return count, float(min(device.total_memory for device in devices)), facts


def describe():
    """The fields of a lab.tour.Machine (dict)."""
    count, size, facts = gpus()
    installed = software()
    facts = {
        "processor": f"{processor()}, {limits.cores()} core(s)",
        "memory": f"{limits.memory() / GIB:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version for name, version in installed.items() if name != "torch"},
        **facts,
        "commit": provenance.commit(),
    }
    return {
        "cores": limits.cores(),
        "gpus": count,
        "gpu_bytes": size,
        "no_hosts": hosts.refused() or "",
        "facts": facts,
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
