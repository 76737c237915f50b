"""Runs with one scarcity each: a small training job whose step can be made to lack any resource, and its counters.

Each `Workload` is the same job, the book's transformer with an all-reduce of its gradients, with one amount changed.
A remedy changes an amount too: it helps the run that lacks this resource, and no other.
"""

import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from scaleout.measure.recompute import saved
from scaleout.parallel import private
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import total_parameters
from scaleout.timing import verdict
from scaleout.timing.verdict import ARITHMETIC, CAPACITY, FIXED, GAUGE, INPUT, NETWORK, TRAFFIC, WAITING

WIDTH = 768  # of the extra matrix multiplications
ELEMENTS = 2**23  # of the extra additions: 32 MiB in fp32, more than caches hold
MATMUL_FLOP = 2 * WIDTH**3  # of one of them
ADDITION_BYTES = 3 * 4 * ELEMENTS  # two operands are read, the sum is written
MIB = 2**20
WARMUP = 1  # steps that do not count


@dataclass(frozen=True)
class Workload:
    """Amounts of one step. matmuls, additions: extra ones in the backward. network: bytes per second of the emulated
    link. loader: seconds for a batch; late: seconds that one rank takes longer; once: seconds of bookkeeping in the
    update; unseen: seconds between steps, outside the timer. limit: bytes that tensors may fill (emulated): where
    stored activations would take more, every block is recomputed."""

    matmuls: int = 0
    additions: int = 0
    network: float = 4e9
    loader: float = 0.001
    late: float = 0.0
    once: float = 0.001
    unseen: float = 0.0
    limit: float | None = 512 * MIB


def workloads(o):
    """{resource: Workload} of the options: each lacks one resource."""
    base, injected = Workload(), o.injected_ms / 1e3
    return {
        ARITHMETIC: replace(base, matmuls=o.matmuls),
        TRAFFIC: replace(base, additions=o.additions),
        NETWORK: replace(base, network=4 * total_parameters(o.shape) / injected),
        WAITING: replace(base, late=injected),
        INPUT: replace(base, loader=injected),
        FIXED: replace(base, once=injected),
        CAPACITY: replace(base, limit=None),  # just what a run with recomputation fills: Bench knows
        GAUGE: replace(base, unseen=injected),
    }


# Words of a remedy, and what it changes.
REMEDIES = {
    ARITHMETIC: ("half the arithmetic (a lower precision)", lambda w: replace(w, matmuls=w.matmuls // 2)),
    TRAFFIC: ("fused kernels: a quarter of the memory traffic", lambda w: replace(w, additions=w.additions // 4)),
    NETWORK: ("a network four times as fast", lambda w: replace(w, network=4 * w.network)),
    WAITING: ("a healthy rank in place of the slow one", lambda w: replace(w, late=0.0)),
    INPUT: ("four loader workers", lambda w: replace(w, loader=w.loader / 4)),
    FIXED: ("the bookkeeping every fourth step", lambda w: replace(w, once=w.once / 4)),
    CAPACITY: ("more memory: activations are stored", lambda w: replace(w, limit=Workload.limit)),
    GAUGE: ("a timer that runs from step to step", lambda w: w),
}


class Traffic(private.TorchDispatchMode):
    """Counts the bytes that operations read and write."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in private.tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return result


class Bench:
    """The job of a session `s` with options `o` on batches(step), a list with one: counters of any workload."""

    def __init__(self, s, o, batches):
        self.s, self.o, self.batches = s, o, lambda step: batches(step)[0]
        if s.device.type == "cpu":
            torch.set_num_threads(1)  # a thread that waits for another would count as arithmetic
        self.flop_per_s, self.bytes_per_s = self._rates()
        self.kept = {name: self._memory(name) for name in ("none", "full")}
        self.counted = {name: self._counts(name) for name in ("none", "full")}

    def _rates(self):
        """FLOP/s of a large matmul and bytes/s of a large addition, the best of a few."""
        a = torch.randn(WIDTH, WIDTH, device=self.s.device)
        x = torch.randn(ELEMENTS, device=self.s.device)
        y = torch.empty_like(x)
        matmul = min(self._seconds(lambda: a @ a) for _ in range(5))
        copy = min(self._seconds(lambda: torch.add(x, 1.0, out=y)) for _ in range(5))
        return MATMUL_FLOP / matmul, 2 * x.nbytes / copy

    def _seconds(self, work):
        start = self.s.clock()
        work()
        return self.s.clock() - start

    def model(self, checkpointing):
        """The transformer, the same on all ranks, and its optimizer."""
        torch.manual_seed(self.o.seed)
        model = Transformer(self.o.shape, checkpointing=checkpointing).to(self.s.device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def _memory(self, checkpointing):
        """Bytes of weights, gradients, Adam's states and what is saved for the backward."""
        model, _ = self.model(checkpointing)
        weights = sum(p.nbytes for p in model.parameters())
        return 4 * weights + saved(lambda batch: model(*batch), self.batches(0), model)

    def limit(self, workload):
        """Bytes that tensors may fill."""
        return workload.limit or 1.02 * self.kept["full"]

    def checkpointing(self, workload):
        """Whether this workload stores its activations or recomputes them."""
        return "none" if self.kept["none"] <= self.limit(workload) else "full"

    def counters(self, workload):
        """`verdict.Counters` of a workload, all ranks' together, and each rank's (compute, wait) seconds."""
        running = self.model(self.checkpointing(workload))
        steps = [self.step(running, workload, i) for i in range(WARMUP + self.o.steps)][WARMUP:]
        doubled = [self.step(running, workload, i, 2) for i in range(2)]
        least = {name: min(step[name] for step in steps) for name in steps[0]}  # the step that was disturbed least
        floating, traffic = self.counted[self.checkpointing(workload)]
        extra = workload.matmuls * MATMUL_FLOP
        ranks = self.s.gathered((least["compute"], least["wait"]))
        if self.s.world == 1:  # the emulated other rank: the late one, where there is one
            ranks.append((least["compute"] + workload.late, 0.0))
        counters = verdict.Counters(
            **{name: self.s.largest(seconds) for name, seconds in least.items() if name != "compute"},
            compute=min(compute for compute, _ in ranks),
            doubled=self.s.largest(min(step["wall"] for step in doubled)),
            flops=floating + extra,
            model_flops=self.counted["none"][0] + extra,
            bytes=traffic + workload.additions * ADDITION_BYTES,
            flop_per_s=self.flop_per_s,
            bytes_per_s=self.bytes_per_s,
            memory=self.kept[self.checkpointing(workload)],
            limit=self.limit(workload),
        )
        return counters, ranks

    def added(self, workload, counters):
        """Step time that is predicted for what a workload has beside the plain job: what is injected, and
        extra work at this machine's full rates."""
        gradients = 4 * total_parameters(self.o.shape)
        repeated = counters.flops - counters.model_flops + workload.matmuls * MATMUL_FLOP
        moved = workload.additions * ADDITION_BYTES
        plain = Workload()
        slept = workload.loader + workload.late + workload.once + workload.unseen - plain.loader - plain.once
        link = gradients / workload.network - gradients / plain.network
        return slept + link + repeated / self.flop_per_s + moved / self.bytes_per_s

    def _counts(self, checkpointing):
        """FLOPs and bytes of one step's forward and backward, without the extra work."""
        model, _ = self.model(checkpointing)
        floating, traffic = FlopCounterMode(display=False), Traffic()
        with floating, traffic:
            model(*self.batches(0)).backward()
        return floating.get_total_flops(), traffic.bytes

    def step(self, running, workload, i, factor=1):
        """Step time by phase, in the order of a training loop. factor: times as many sequences."""
        s, (model, optimizer) = self.s, running
        s.barrier()
        began = s.clock()
        time.sleep(workload.unseen)
        timer = s.clock()
        batch = [part.repeat(factor, 1) for part in self.batches(i)]
        time.sleep(workload.loader * factor)
        loaded = s.clock()
        model(*batch).backward()
        self._extra(workload, factor)
        if s.rank == 1:
            time.sleep(workload.late)
        computed = s.clock()
        if s.world == 1:
            time.sleep(workload.late)  # until the emulated rank arrives
        s.barrier()
        arrived = s.clock()
        self._reduce(model, workload)
        reduced = s.clock()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(workload.once)
        ended = s.clock()
        return {
            "wall": ended - began,
            "timer": ended - timer,
            "input": loaded - timer,
            "compute": computed - loaded,
            "wait": arrived - computed,
            "transfer": reduced - arrived,
            "update": ended - reduced,
        }

    def _extra(self, workload, factor):
        """Matrix multiplications and additions beside the model's own."""
        if workload.matmuls:
            a = torch.ones(WIDTH, WIDTH, device=self.s.device)
            for _ in range(factor * workload.matmuls):
                a @ a
        if workload.additions:
            x = torch.ones(ELEMENTS, device=self.s.device)
            out = torch.empty_like(x)  # new memory would be mapped page by page, which is slower than writing it
            for _ in range(factor * workload.additions):
                torch.add(x, x, out=out)

    def _reduce(self, model, workload):
        """The gradients' all-reduce, over a link of so many bytes per second."""
        gradients = [p.grad for p in model.parameters()]
        if self.s.world > 1:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
        time.sleep(sum(gradient.nbytes for gradient in gradients) / workload.network)
