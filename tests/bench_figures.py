"""What each part of `make bench` prints at its smallest, and how a figure is read from it."""

import math
import re
import subprocess
import sys

from repo import ROOT

NUMBER = r"(-?(?:[\d,]+(?:\.\d+)?|nan|inf))"

REDRAWS = [
    f"slider to redraw, {how}, {what}"
    for how in ("dragged", "by key", "at random settings", "pressed by a mouse at random settings")
    for what in ("median", "p95")
]
VIEW = [
    *REDRAWS,
    "page to painted picture, cold cache",
    "page to painted picture, warm cache",
    "first touch to Python's first answer, cold cache",
    "first touch to Python's first answer, warm cache",
    "touch to picture after 10 s at the view",
    "bytes before the first touch",
    "bytes for Python",
]

# part -> the figures that it is to print, each at the start of a line
PARTS = {
    "build": ["make site, nothing changed", "the site on disk"],
    "checkpoint": [
        "beside blocked",
        "beside until there",
        "beside step beside",
        "waited blocked",
        "waited until there",
        "quiet step",
        "blocked, beside over waited",
        "a step beside the writing over a quiet one",
    ],
    "comm": [
        "ring over gloo, 16777216 B: bandwidth ratio, 2 processes",
        *[f"step predicted / measured, {way}, 2 processes" for way in ("naive", "buckets by hand", "torch DDP")],
        "error of the prediction at the median",
    ],
    "faults": ["runs that ended bit-equal after kills"],
    "fsdp_memory": ["the peak", "forward", "loss", "backward", "update", "worst kind at the peak", "collectives"],
    "lab": ["calibrate, 1 process"],
    "memory": [
        "scaleout.memory.accounts",
        "scaleout.memory.accounts, worst kind at the peak",
        "accelerate estimate-memory",
        "accelerate estimate-memory, AdamW only",
    ],
    "mesh": [
        f"search, {job} GPUs, {how}"
        for job in ("llama-3-405b on 16384", "llama-3-70b on 512", "llama-3-8b on 64")
        for how in ("cold", "again")
    ],
    "train": [
        "smoke, 2 process(es), the job against a bare fully_shard loop:",
        "smoke, 1 process(es), FSDP against plain, both in the job:",
        "  ratio by seconds",
        "  ratio by CPU seconds",
    ],
    "widget": VIEW,
}
ERRORS = {"fsdp_memory", "memory"}  # parts whose figures are errors, and may be none


def read(printed: str, name: str, least: float = math.ulp(0.0)) -> list[float]:
    """The figures behind a name, wherever a line begins with it. AssertionError where there is none, or where one is
    no finite number of at least `least`."""
    found = re.findall(rf"^{re.escape(name)}\s+{NUMBER}", printed, re.MULTILINE)
    numbers = [float(one.replace(",", "")) for one in found]
    assert numbers, f"no figure {name!r} in:\n{printed}"
    assert all(math.isfinite(one) and one >= least for one in numbers), f"{name}: {numbers}"
    return numbers


def check(part: str) -> None:
    """Run a part at its smallest by the bench's own command, and read every figure of it."""
    done = subprocess.run(
        [sys.executable, "tools/bench.py", "--smallest", part], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read_all(part, done.stdout)


def read_all(part: str, printed: str) -> None:
    """Read every figure of a part from what it printed."""
    for name in PARTS[part]:
        read(printed, name, 0.0 if part in ERRORS else math.ulp(0.0))
