"""What the driver says of a machine's GPUs, and what an all-reduce reaches, as lines of labs/preflight.py.

nvidia-smi may be missing, hang, fail, or answer with anything: then a line says so, and the others follow.
Not run on a GPU: tests/lab/test_preflight.py puts programs of its own in the place of nvidia-smi.
"""

import contextlib
import os
import re
import statistics
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout.collectives import nccl
from scaleout.collectives.alpha_beta import bus_bandwidth
from scaleout.spec import devices, topology

GIB, MIB = 2**30, 2**20
WAIT_S = 20  # for an answer of nvidia-smi, which takes a few seconds if it has to wake the GPUs
NEEDS = {13: 580, 12: 525}  # CUDA's major version: the oldest driver (NVIDIA, CUDA minor version compatibility)
SPARE = 2 * GIB  # of memory in use: more than the processes of this script use themselves
ABSURD = 0.1  # of the rate that is expected: then something else than the links between GPUs is in use
# The newest torch that the book takes for a driver: 2.13 has no build for CUDA 12.8, and its build for CUDA 12.6 knows
# no Blackwell (RELEASE.md of pytorch/pytorch).
WHEELS = {13: "2.13.0+cu130", 12: "2.13.0+cu126", "Blackwell on 12": "2.11.0+cu128"}
BLACKWELL = re.compile(r"\bG?B[123]00\b|Blackwell|RTX 50\d\d")
FIELDS = "index,uuid,name,driver_version,memory.used,memory.total"


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    need: str
    ok: bool | None  # None: not tried
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Card:
    """One GPU as nvidia-smi lists it. used: bytes, None where it does not say."""

    index: str
    uuid: str
    name: str
    driver: str
    used: int | None
    total: int


class Silent(Exception):
    """nvidia-smi gave no answer. Its text says why."""


# --- nvidia-smi -------------------------------------------------------------------------------------------------


def ask(*words, seconds=WAIT_S):
    """What nvidia-smi prints (str). Silent where it is missing, fails, or takes longer than `seconds`."""
    try:
        child = subprocess.Popen(
            ["nvidia-smi", *words],
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError:
        raise Silent("no nvidia-smi here") from None
    try:
        answer, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: where the driver hangs, it stays
        raise Silent(f"nvidia-smi gave no answer in {seconds:g} s, the driver may hang") from None
    if child.returncode:
        raise Silent("nvidia-smi failed: " + " ".join(answer.split())[:100])
    return answer


def cards(answer):
    """[Card] of the answer to --query-gpu. Silent where there is none in it."""
    gpus = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 6 and words[0].isdecimal() and words[5].isdecimal() and re.match(r"\d+", words[3]):
            used = int(words[4]) * MIB if words[4].isdecimal() else None
            gpus.append(Card(*words[:4], used, int(words[5]) * MIB))
    if not gpus:
        raise Silent("nvidia-smi lists no GPU")
    return gpus


def named(visible):
    """The words of CUDA_VISIBLE_DEVICES (str or None): numbers, GPU- and MIG- UUIDs, a scheduler's own."""
    return [word.strip() for word in (visible or "").split(",") if word.strip()]


def ours(gpus, visible):
    """The GPUs that CUDA_VISIBLE_DEVICES, `visible` (str or None), leaves to this process."""
    if visible is None:
        return gpus
    words = named(visible)
    return [
        card
        for card in gpus
        if any(word == card.index or (word[:4] == "GPU-" and card.uuid.startswith(word)) for word in words)
    ]


# --- checks -----------------------------------------------------------------------------------------------------


def driver(gpus, built, seen, hidden=""):
    """Whether the driver can run this torch.

    gpus: [Card]. built: the CUDA that torch was built for, "13.0", or None. seen: GPUs that torch sees.
    hidden: what keeps torch from them on purpose (str); "" where nothing does.
    """
    version, number = gpus[0].driver, int(re.match(r"\d+", gpus[0].driver)[0])
    cuda = max((major for major, least in NEEDS.items() if number >= least), default=None)
    offers = f"runs CUDA {cuda}" if cuda else "is older than CUDA 12"
    words = f"driver {version} {offers}, this torch is built for {f'CUDA {built}' if built else 'CPU'}"
    if seen:  # whatever its number: NVIDIA's compatibility packages make old drivers run new CUDA
        return Check("driver", True, words)
    if hidden:
        return Check("driver", None, f"{words}; {hidden} hides {len(gpus)} GPU(s)")
    if built and cuda and int(built.split(".")[0]) <= cuda:
        return Check(
            "driver",
            False,
            f"{words}, and torch sees none of {len(gpus)} GPU(s)",
            "python -c 'import torch; torch.cuda.init()' says why",
        )
    newer = "" if cuda == max(NEEDS) else f"a driver of {NEEDS[max(NEEDS)]} or newer"
    if cuda is None:
        return Check("driver", False, words, newer)
    wheel = WHEELS["Blackwell on 12" if cuda == 12 and BLACKWELL.search(gpus[0].name) else cuda]
    return Check(
        "driver",
        False,
        words,
        f"pip install torch=={wheel} --index-url https://download.pytorch.org/whl/"
        + wheel.split("+")[1]
        + (f", or {newer}" if newer else ""),
    )


def room(gpus, holders):
    """Whether another process uses memory of the GPUs. holders: {uuid: [pid]} (str) of the processes on each."""
    known = [card for card in gpus if card.used is not None]
    if not known:
        return Check("GPU memory", None, "nvidia-smi does not say which process uses it")
    occupied = [
        f"another process uses {card.used / GIB:.1f} GiB of GPU {card.index}"
        + (f" (pid {', '.join(holders[card.uuid])})" if card.uuid in holders else "")
        for card in known
        if card.used > SPARE
    ]
    free = min(card.total - card.used for card in known)
    return Check(
        "GPU memory",
        not occupied,
        "; ".join(occupied) or f"at least {free / GIB:.1f} GiB free on each GPU",
        "end that process, or leave out its GPUs: CUDA_VISIBLE_DEVICES=...",
    )


def holders(answer, mine):
    """{uuid: [pid]} of the answer to --query-compute-apps, without the processes `mine` (of int)."""
    pids = {}
    for line in answer.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if pid.isdecimal() and int(pid) not in mine:
            pids.setdefault(uuid, []).append(pid)
    return pids


def launched():
    """Numbers of this process and of those that the same torchrun started (set of int)."""
    mine = {os.getpid()}
    for stat in Path("/proc").glob("[0-9]*/stat") if "TORCHELASTIC_RUN_ID" in os.environ else ():
        with contextlib.suppress(OSError):  # it may have ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getppid():
                mine.add(int(stat.parent.name))
    return mine


def links(answer):
    """How the GPUs are connected, pairs counted by kind, from the answer to `topo -m`."""
    rows = [
        line.split()
        for line in re.sub(r"\x1b\[[0-9;]*m", "", answer).splitlines()
        if re.match(r"GPU\d+\s", line.lstrip("\x1b[0123456789;m"))
    ]
    rows = [row for row in rows if "X" in row]  # the heading names GPUs too
    kinds = Counter(kind for index, row in enumerate(rows) for kind in row[index + 2 : len(rows) + 1])
    if not rows or not all(re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", kind) for kind in kinds):
        return Check("links between GPUs", None, "nvidia-smi topo -m was not understood")
    if len(rows) == 1:
        return Check("links between GPUs", None, "a single GPU")
    words = [
        f"{count} pair(s) by {'NVLink' if kind.startswith('NV') else 'PCIe'} ({kind})"
        for kind, count in sorted(kinds.items())
    ]
    return Check("links between GPUs", True, ", ".join(words))


def gpu_checks(needed, seen, built, environment=None):
    """[Check] of driver, memory and links of the GPUs; skipped where there is no nvidia-smi to ask.

    needed, seen: GPUs asked for, and visible to torch. built: torch.version.cuda.
    """
    environment = os.environ if environment is None else environment
    visible, names = environment.get("CUDA_VISIBLE_DEVICES"), ("driver", "GPU memory", "links between GPUs")
    try:
        gpus = cards(ask(f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"))
    except Silent as why:
        first = Check(
            "driver",
            False if needed and not seen else None,
            str(why),
            "restart the machine, or give it back"
            if "hang" in str(why)
            else "install NVIDIA's driver, or take a machine that has it: nvidia-smi must list the GPUs",
        )
        return [first, *(Check(name, None, "no GPU to ask about") for name in names[1:])]
    mine, sliced = ours(gpus, visible), any(word.startswith("MIG-") for word in named(visible))
    hidden = "" if mine or sliced else f"CUDA_VISIBLE_DEVICES={visible!r}"  # Slurm's NoDevFiles, a number too high
    hidden = "LAB_DEVICE=cpu" if environment.get("LAB_DEVICE") == "cpu" else hidden
    checks = [driver(gpus, built, seen, hidden)]
    if hidden:
        return [*checks, *(Check(name, None, f"{hidden} hides the GPUs") for name in names[1:])]
    if sliced:
        return [
            *checks,
            Check(names[1], None, "nvidia-smi knows which processes use the whole GPU, not its MIG slices"),
            Check(names[2], None, "MIG slices have no links: they communicate through the host"),
        ]
    try:
        gpu_pids = holders(ask("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"), launched())
    except Silent:
        gpu_pids = {}
    checks.append(room(mine, gpu_pids))
    try:
        checks.append(links(ask("topo", "-m")))
    except Silent as why:
        checks.append(Check(names[2], None, str(why)))
    return checks


def check_tier(tier):
    """Refuse --tier gpu where torch sees no GPU, in one line that names the driver. LAB_DEVICE=cpu asks for the CPU."""
    if tier != "gpu" or os.environ.get("LAB_DEVICE") == "cpu" or torch.cuda.is_available():
        return
    driver, *_ = gpu_checks(True, 0, torch.version.cuda)
    raise ValueError(
        f"--tier gpu, and torch sees no GPU: {driver.found}{': ' * bool(driver.remedy)}{driver.remedy}; "
        "LAB_DEVICE=cpu runs it on the CPU all the same"
    )


# --- the all-reduce ---------------------------------------------------------------------------------------------


def expected(name, ranks, size):
    """Bus bandwidth in bytes/s that the book expects of an all-reduce of `size` bytes over the `ranks` GPUs of one node
    called `name`; None where it does not know the GPU."""
    device = devices.reported_as(name)
    if device is None:
        return None
    inside = topology.cluster(1, ranks, device.link)
    return bus_bandwidth("all_reduce", size, ranks, nccl.price("all_reduce", size, inside).seconds)


def rate(s, rounds=5):
    """(words, whether it is absurdly low) of an all-reduce over all ranks of the Session `s`: 256 MiB on GPUs, 4 on
    a CPU; the median of `rounds` after two more, on the slowest rank."""
    size, spent = (256 if s.device.type == "cuda" else 4) * MIB, []
    message = torch.ones(size // 4, device=s.device)
    for _ in range(rounds + 2):
        s.barrier()
        start = s.clock()
        dist.all_reduce(message)
        spent.append(s.clock() - start)
    seconds = s.largest(statistics.median(spent[2:]))
    reached, known = bus_bandwidth("all_reduce", size, s.world, seconds), None
    if s.device.type == "cuda" and s.nodes == 1:
        known = expected(torch.cuda.get_device_name(s.device), s.world, size)
    words = f"{size // MIB} MiB in {seconds * 1e3:.1f} ms, busbw {reached / 1e9:.3g} GB/s"
    if known:
        words += f" (the book expects {known / 1e9:.3g})"
    return words, bool(known and reached < ABSURD * known)
