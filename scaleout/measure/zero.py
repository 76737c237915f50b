"""ZeRO's ways looked at from outside: what a step sends, what each rank holds of every state, and where it has most,
each beside its prediction.

Bytes on the wire are counted twice. The collectives that a way asks for are counted by the shares that a ring sends of
them (`collectives.zero.share`). What the backend makes of them is in the sockets: on Linux the kernel counts, for each
TCP connection, what has arrived. gloo makes an all-reduce of every reduce-scatter.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import struct
from collections import Counter, namedtuple
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from scaleout.collectives import zero as wire
from scaleout.measure import fsdp_ledger
from scaleout.measure.rounds import Alternation
from scaleout.measure.zero_step import zero_step
from scaleout.memory import accounts, fsdp
from scaleout.memory.zero import at_rest, dealt
from scaleout.parallel import private
from scaleout.parallel.zero_deepspeed import DeepSpeedWay
from scaleout.parallel.zero_ways import DEALT, DEEPSPEED, SHARDED, ZeroWay
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, tensors, units
from scaleout.spec.transformer import total_parameters

STATES = {"exp_avg": "momentum", "exp_avg_sq": "variance", "momentum_buffer": "momentum"}  # of torch's optimizers
PROGRAMS = {"ddp": ("DistributedDataParallel", 0), "keep": ("fully_shard", 3), "reshard": ("fully_shard", 3)}
PROGRAMS |= dict.fromkeys(DEALT, ("ZeroRedundancyOptimizer", 1))
PROGRAMS |= {via: ("DeepSpeed", int(via[-1])) for via in DEEPSPEED}
# Of each operation of torch.distributed the collective, and the tensor whose bytes `alpha_beta` calls its size.
OPERATIONS = {
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "allreduce_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "all_gather_into_tensor": ("all_gather", None),
    "all_reduce": ("all_reduce", 0),
}
CALM = 1e-3  # of a model whose gradients have a norm of about 1
ARRIVED = 128  # where struct tcp_info of linux/tcp.h has tcpi_bytes_received, 64 bits

Calls = namedtuple("Calls", "bytes count")


class Wire(private.TorchDispatchMode):
    """Counts what is asked of torch.distributed while the context is open. found: {collective: Calls}.

    operations: which are counted; `key` says under what name.
    """

    def __init__(self, operations=OPERATIONS) -> None:
        super().__init__()
        self.operations, self.bytes, self.count = operations, Counter(), Counter()

    def key(self, collective: str, func, args):
        """What an operation is counted under: its collective."""
        return collective

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # let it turn into operations on this rank's shard, which come here
        result = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and name in self.operations:
            collective, index = self.operations[name]
            key = self.key(collective, func, args)
            self.bytes[key] += sum(
                t.nbytes
                for t in private.tree_leaves(result if index is None else args[index])
                if isinstance(t, torch.Tensor)
            )
            self.count[key] += 1
        return result

    @property
    def found(self) -> dict:
        return {name: Calls(size, self.count[name]) for name, size in self.bytes.items()}


def sent(messages: dict[str, Calls], ranks: int, gloo: bool = False) -> float:
    """Bytes that a rank sends for these collectives, the mean over ranks. gloo: as gloo sends them."""
    as_sent = {"reduce_scatter": "all_reduce"} if gloo else {}
    return sum(calls.bytes * wire.share(as_sent.get(name, name), ranks) for name, calls in messages.items())


def arrived() -> int | None:
    """Bytes that have come to this process by TCP, ever, over connections that are open; None where no kernel says."""
    total, folder = 0, Path("/proc/self/fd")
    if not folder.exists() or not hasattr(socket, "TCP_INFO"):
        return None
    for link in folder.iterdir():
        with suppress(OSError):
            if link.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as sock:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)  # OSError for other kinds
                    total += struct.unpack_from("=Q", info, ARRIVED)[0] if len(info) >= ARRIVED + 8 else 0
    return total


def make(s, o, via: str) -> ZeroWay:
    """One ZeroWay of a lab's options."""
    kind = DeepSpeedWay if via in DEEPSPEED else ZeroWay
    return kind(s, o.shape, via, optimizer=o.optimizer, rate=o.lr, seed=o.seed, clip=o.clip)


def calm(optimizer) -> None:
    """Let AdamW divide by far more than a gradient that is rounding and nothing else (a key's bias, which softmax does
    not see): its own eps would make a step of it as long as any other, and two runs could not be compared."""
    for group in optimizer.param_groups:
        if "betas" in group:
            group["eps"] = CALM


# --- by the pure model ----------------------------------------------------------------------------------------------


def program(via: str) -> tuple[str, int]:
    """(name in collectives.zero.WAYS, stage) of a way."""
    return PROGRAMS.get(via) or ("paper", int(via.rpartition("-")[2]))


def predicted_messages(shape, ranks: int, via: str, passes: int = 1) -> dict[str, Calls]:
    """What `Wire` should find in a step: {collective: Calls}; DDP's buckets are not counted one by one."""
    name, stage = program(via)
    parts = units(shape, Sharding(ranks))
    options = {"keep": via == "keep"} | ({"stay": parts[0].parameters} if via == "reshard" else {})
    options = {"unit": total_parameters(shape)} | (options if via in SHARDED else {})
    gather_every_pass = None if stage >= 2 else False
    sizes: Counter = Counter()
    for message in wire.messages(
        total_parameters(shape),
        Recipe("fp32"),
        Layout(dp=ranks, zero=stage),
        name,
        passes=passes,
        every_pass=gather_every_pass,
        **options,
    ):
        sizes[message.collective] += message.bytes
    gathers = {3: 2 * len(parts) - (via in SHARDED) * (len(parts) if via == "keep" else 1)}.get(stage, len(parts))
    calls = {
        "all_gather": gathers * (passes if stage == 3 else 1),
        "reduce_scatter": len(parts) * (passes if stage >= 2 else 1),
    }
    return {kind: Calls(size, calls.get(kind)) for kind, size in sizes.items()}


def predicted_held(shape, ranks: int, via: str) -> dict[str, int]:
    """Bytes of each state on rank 0 when its backward is over."""
    kinds = at_rest(total_parameters(shape), Recipe("fp32"), Layout(dp=ranks, zero=program(via)[1]))["device"]
    if via in DEALT:
        mine = first_share([math.prod(size) for size in tensors(shape).values()], ranks)
        kinds |= {"momentum": mine, "variance": mine}
    return kinds


def first_share(sizes: list[int], ranks: int) -> int:
    """Bytes of one state on rank 0 where whole tensors of these elements are dealt to the ranks."""
    return 4 * sum(size for size, owner in zip(sizes, dealt(sizes, ranks), strict=True) if owner == 0)


def predicted_peak(o, ranks: int, via: str, device: str = "cpu") -> int:
    """Bytes at the fullest instant of a step with AdamW on one rank."""
    shape, size = o.shape, (o.micro_batch, o.seq)
    name, stage = program(via)
    if name == "fully_shard":
        return fsdp.fsdp_account(shape, *size, Recipe("fp32"), Sharding(ranks, reshard=SHARDED[via]), device).peak_bytes
    if name == "paper":
        return max(sum(kinds.values()) for kinds in zero_step(shape, *size, ranks, stage).values())
    buckets = "views" if ranks > 1 else "none"
    return accounts.account(shape, *size, Recipe("fp32", buckets=buckets), Layout(dp=ranks, zero=stage)).peak_bytes


# --- by looking -----------------------------------------------------------------------------------------------------


def looked(way: ZeroWay, batches) -> dict:
    """A step of a way, looked at: {"messages": {collective: Calls}, "arrived": bytes by TCP a rank or None, "held":
    {state: bytes} of rank 0 when its backward is over, "loss"}. Collective, the same on every rank."""
    s, kinds = way.s, {}
    look = lambda: kinds or kinds.update({STATES.get(kind, kind): size for kind, size in way.stored().items()})  # noqa: E731
    if way.via == "stage-1":  # reduces when its backward is over, and then has no whole gradients
        plain, way.hand.reduce = way.hand.reduce, lambda unit: (look(), plain(unit))
    s.barrier()
    start = arrived()
    with Wire() as seen:
        loss = way.gradients(batches)
        look()
        way.update()
    s.barrier()
    end = arrived()
    received = None if start is None or s.device.type != "cpu" or s.world == 1 else s.mean(end - start)
    return {"messages": seen.found, "arrived": received, "held": s.gathered(kinds)[0], "loss": s.mean(loss)}


def peak(way: ZeroWay, batch) -> int:
    """Bytes at the fullest instant of a step on rank 0, as the ledger books them. Collective."""
    kinds, _ = fsdp_ledger.measured(way, batch)
    return int(way.s.gathered(sum(kinds.values()))[0])


class Rounds(Alternation):
    """The ways of a run, timed in alternation and then looked at."""

    def __init__(self, s, o, names, batches) -> None:
        """batches(step): this rank's, one a pass."""
        super().__init__(s, o, {via: make(s, o, via) for via in names}, list(names), batches)

    def rows(self, warmup: int) -> dict[str, dict]:
        """{way: {"measured", "predicted": {figure: number}, "loss", "messages": as in `looked`}}; figures as in
        lab.zero.FIGURES. After `alternate`."""
        rows, o, ranks = {}, self.o, self.s.world
        for i, (via, way) in enumerate(self.ways.items()):
            seen = looked(way, self.batches(o.steps + i))
            wanted = predicted_messages(o.shape, ranks, via, o.accumulation) if ranks > 1 else {}
            measured = {"seconds": statistics.median(self.seconds[via][warmup:]), "sent": sent(seen["messages"], ranks)}
            predicted = {"sent": sent(wanted, ranks)}
            if seen["arrived"] is not None:
                measured["tcp"], predicted["tcp"] = seen["arrived"], sent(wanted, ranks, gloo=True)
            measured |= seen["held"]
            predicted |= predicted_held(o.shape, ranks, via)
            if o.accumulation == 1 and via not in DEEPSPEED:
                measured["peak"] = peak(way, self.batches(o.steps + i)[0])
                predicted["peak"] = predicted_peak(o, ranks, via, self.s.device.type)
            rows[via] = {
                "measured": measured,
                "predicted": predicted,
                "loss": self.losses[via][-1],
                "messages": seen["messages"],
            }
        return rows
