"""The torch side of every lab: a session on the available device, clocks, batches.

A lab is one script for a laptop and for a cluster:

    def main(s, argv=None): ...          # s is a Session
    if __name__ == "__main__":
        run(main)

`python labs/x.py` runs it on one device, `torchrun --nproc-per-node N labs/x.py` on N.
"""

import gc
import os
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from scaleout.lab import corpus, join, start

LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "remote process exited")
SEVERAL = 2  # GPUs at least, for the chapters, whose runs on one process and on two compare
PATIENCE = 5.0  # seconds a survivor leaves the launcher to find the rank that ended first


@dataclass(frozen=True)
class Session:
    """Where this process stands: its device, and its rank among `world` processes."""

    device: torch.device
    backend: str  # "none" at world 1, "gloo" on CPU, "nccl" on GPUs
    rank: int
    world: int
    local_rank: int
    nodes: int
    local_world: int  # processes on this node; other nodes may have more or fewer
    group: dist.ProcessGroup | None = None  # of which ranks this is told; None: of all

    @property
    def main(self):
        """True on rank 0, the one that prints and saves."""
        return self.rank == 0

    def say(self, text=""):
        """Print on rank 0 only."""
        if self.main:
            print(text, flush=True)

    def synchronize(self):
        """Wait until the device has done its queued work; on a CPU nothing is queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def clock(self):
        """Seconds (float) on a steady clock, after the device's queue is empty."""
        self.synchronize()
        return time.perf_counter()

    def among(self, group):
        """The session of a process group's ranks only, in their own numbers: what is summed is summed over them."""
        return replace(self, rank=dist.get_rank(group), world=dist.get_world_size(group), group=group)

    def barrier(self):
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier(self.group)

    def total(self, value):
        """The sum over ranks of one number per rank (float)."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def mean(self, value):
        """The mean over ranks of one number per rank (float). Sum, then divide: not every gloo has AVG."""
        return self.total(value) / self.world

    def largest(self, value):
        """The maximum over ranks of one number per rank (float)."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def gathered(self, value, group=None):
        """What every rank has (anything that can be pickled), as a list by rank. group: of all ranks, None for the one
        that torch began with."""
        if self.world == 1:
            return [value]
        values = [None] * self.world
        dist.all_gather_object(values, value, group=group or self.group)
        return values

    def _reduce(self, value, operation):
        if self.world == 1:
            return float(value)
        cell = torch.tensor([float(value)], dtype=torch.float64, device=self.device)
        dist.all_reduce(cell, operation, group=self.group)
        return cell.item()

    def agree(self, passed):
        """True where the condition holds on every rank."""
        return self.largest(0.0 if passed else 1.0) == 0.0


# --- start and end --------------------------------------------------------------------------------------


def run(main):
    """Run `main(session)` inside `session()`: what a lab's last line calls."""
    with session() as s:
        main(s)


@contextmanager
def session(device=None):
    """A Session for this process; joins the process group when a launcher started more than one.

    device: "cpu", "cuda" or "auto"; None: LAB_DEVICE in the environment, else a GPU where there is one.
    The group is shut down at the end. A ValueError inside ends the process with one line and exit code 2,
    any other error with one line that names the rank and exit code 1 (LAB_TRACEBACK=1 shows where).
    """
    store = None
    start.begin()
    try:
        place, store = _join(device or os.environ.get("LAB_DEVICE"))
        yield place
        if place.world > 1:
            dist.barrier()  # nobody takes the store away while others still need it
    except SystemExit:
        raise
    except BaseException as error:
        _give_up(error, store)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(device):
    """(Session, store) from the launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE."""
    rank, world, local_rank, local_world = join.place()
    join.check_timeout()
    place, store = pick_device(device, local_rank, local_world), None
    if place.type == "cuda":
        torch.cuda.set_device(place)  # before the group: NCCL takes the current device
    backend, nodes = "none" if world == 1 else "nccl" if place.type == "cuda" else "gloo", 1
    if backend == "gloo":
        join.check_interface()
    if world > 1:
        store = join.meet(rank, world)
        bound = {"device_id": place} if place.type == "cuda" else {}
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world,
            timeout=join.GROUP_TIMEOUT,
            **bound,
        )
        nodes = join.wait_for_all(store, rank, world, local_world)
    return Session(place, backend, rank, world, local_rank, nodes, local_world), store


def pick_device(wanted=None, local_rank=0, local_world=1):
    """The torch.device of this process: GPU number `local_rank` where GPUs are there, else the CPU.

    wanted: "auto" is for chapters, which start one process and several: GPUs where there are enough for all of them,
    else the CPU, and the first process says so.
    """
    if wanted not in (None, "auto", "cpu", "cuda"):
        raise ValueError(f"device {wanted!r} is unknown: use cpu, cuda or auto")
    if wanted == "cpu" or not torch.cuda.is_available():
        if wanted == "cuda":
            raise ValueError("torch sees no GPU: use device cpu, or install a torch built for CUDA")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if wanted == "auto" and count < max(SEVERAL, local_world):
        if local_rank == 0:
            start.say(
                f"on the CPU, as a chapter's processes need {max(SEVERAL, local_world)} GPUs and here is {count} "
                "(LAB_DEVICE=cuda takes it)"
            )
        return torch.device("cpu")
    if local_world > count:  # NCCL refuses two ranks on one GPU
        raise ValueError(
            f"{local_world} processes on a node with {count} GPU(s): use --nproc-per-node {count}, or LAB_DEVICE=cpu"
        )
    return torch.device("cuda", local_rank)


def _give_up(error, store):
    """Say one line, on one rank, and end this process; the launcher then ends the others."""
    rank, joined = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1") != "1"
    if os.environ.get("LAB_TRACEBACK"):
        traceback.print_exc()
    line, code = _explain(error, rank, joined)
    if line.startswith(f"rank {rank} lost"):  # a launcher blames whoever ends first: let it be the right one
        time.sleep(PATIENCE)
    if _first_to_speak(store, code, error):
        print(f"{start.name()}: {line}", file=sys.stderr, flush=True)
    if joined:  # destroying a NCCL group with a dead member may wait for ever
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error, rank, joined):
    """(one line, exit code) for an exception. joined: whether there are other ranks."""
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, KeyboardInterrupt):
        return "stopped", 130
    if isinstance(error, ValueError):
        return text, 2
    if isinstance(error, join.Unmet):
        return text, 1
    if isinstance(error, torch.OutOfMemoryError):
        return f"rank {rank} is out of GPU memory: use a smaller --micro-batch, or --checkpointing full", 1
    if joined and any(sign in text for sign in LOST):
        return f"rank {rank} lost another rank, which ended first: the launcher's report names it", 1
    return f"rank {rank} failed: {type(error).__name__}: {text[:300]} (LAB_TRACEBACK=1 shows where)", 1


def _first_to_speak(store, code, error):
    """One rank says a bad option for all; a crash is said by each rank that crashes. False: stay silent."""
    if store is None or code != 2:
        return code != 2 or os.environ.get("RANK", "0") == "0" or isinstance(error, join.Misplaced)
    try:
        return store.add("lab/said", 1) == 1
    except RuntimeError:
        return True


# --- memory ---------------------------------------------------------------------------------------------


def reset_allocator(s):
    """Free what earlier work left behind, and forget the allocator's peak. Only a GPU's allocator keeps either."""
    gc.collect()  # models in reference cycles live until then
    if s.device.type == "cuda":
        torch.cuda.empty_cache()  # else "reserved" starts with blocks of that work
        torch.cuda.reset_peak_memory_stats(s.device)


def allocator(s, prefix=""):
    """Peaks in bytes that a GPU's allocator counted: "allocated" to tensors, and "reserved" from the device.

    Rounding to blocks is in the first, unused parts of blocks in the second; the CUDA context is in neither.
    Empty on a CPU, which keeps no such count. prefix: what the names begin with.
    """
    if s.device.type != "cuda":
        return {}
    s.synchronize()
    return {
        f"{prefix}allocated": torch.cuda.max_memory_allocated(s.device),
        f"{prefix}reserved": torch.cuda.max_memory_reserved(s.device),
    }


# --- data -----------------------------------------------------------------------------------------------


def batch(text, step, sequences, seq, rank=0, world=1, seed=0, device="cpu"):
    """This rank's share of step `step`: (tokens, targets), each int64 [sequences, seq]; targets are one byte later.

    text: uint8 tensor. The global batch of sequences * world windows depends on seed and step only, so that N
    ranks with b sequences each see exactly what one process sees with N * b.
    """
    corpus.long_enough(text, seq)
    chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(text) - seq - 1, (sequences * world,), generator=chance)
    mine = starts[rank * sequences : (rank + 1) * sequences]
    windows = text[mine[:, None] + torch.arange(seq + 1)].long().to(device)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def batches(s, o, text, step, alone=False):
    """Batches of a step, one a pass, for options with micro_batch, accumulation, seq and seed: this rank's, or those of
    all ranks together, for one process `alone`."""
    rank, world, sequences = (0, 1, o.micro_batch * s.world) if alone else (s.rank, s.world, o.micro_batch)
    return [
        batch(text, step * o.accumulation + i, sequences, o.seq, rank, world, o.seed, s.device)
        for i in range(o.accumulation)
    ]


def as_tensor(text):
    """Bytes as a uint8 tensor, copied once (a read-only buffer would make torch warn)."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def dataset(path=None, seq=0):
    """What `corpus.read` reads, `as_tensor`. ValueError where it is no longer than a sequence of seq tokens."""
    return as_tensor(corpus.long_enough(corpus.read(path), seq))
