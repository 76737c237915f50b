"""Data parallelism from scratch: how the gradients of all ranks become their mean.

Every rank holds the same weights and its own share of the batch, so every rank has another gradient. The mean of the
gradients is the gradient of the whole batch. `naive` takes it after the backward; `Reducer` takes it in buckets, while
the backward still runs, as torch's DistributedDataParallel does (Li et al., arXiv 2006.15704).
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Layer, buckets

HOOKS = ("none", "bf16", "powersgd")


def naive(model):
    """After the backward: one all-reduce a tensor, one after the other. Nothing runs beside it."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)  # sum, then divide: not every gloo has AVG
            p.grad /= dist.get_world_size()


# --- buckets ----------------------------------------------------------------------------------------------


class Bucket:
    """Neighbouring gradients in one flat tensor: one all-reduce instead of many. Hooks see it as DDP's GradBucket."""

    def __init__(self, index, parameters, last):
        self.place, self.members, self.last = index, parameters, last
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = self.flat.split([p.numel() for p in parameters])
        self.views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        self.restart()

    def restart(self):
        """Before a backward: every gradient is still to come, and nothing is under way."""
        self.missing, self.future = set(self.members), None

    def start(self, hook, state):
        """Copy the gradients in, and begin to average them; returns at once."""
        for p, view in zip(self.members, self.views, strict=True):
            view.zero_() if p.grad is None else view.copy_(p.grad)
        self.future = hook(state, self)

    def finish(self, used):
        """Wait for the mean, and copy it out to the parameters that some rank has used (a set)."""
        self.future.wait()
        for p, view in zip(self.members, self.views, strict=True):
            if p in used:
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)

    def buffer(self):
        """The flat tensor."""
        return self.flat

    def index(self):
        """Its place among the buckets, 0 the first to be sent."""
        return self.place

    def is_last(self):
        """True for the bucket of the first layers, which is sent last."""
        return self.last

    def gradients(self):
        """The gradients in it, as views of the flat tensor."""
        return self.views

    def parameters(self):
        """The parameters whose gradients are in it."""
        return self.members


class Reducer:
    """The mean over ranks, bucket by bucket, while the backward still runs.

    A hook on every parameter says when its gradient is ready. The last gradient of a bucket starts the bucket's
    all-reduce on another thread (or stream), and the backward goes on to earlier layers. Call `finish` after it.
    """

    def __init__(
        self, model, cap_bytes=BUCKET_CAP, first_cap_bytes=FIRST_BUCKET_CAP, hook=None, state=None, find_unused=False
    ):
        """cap_bytes: of a bucket; first_cap_bytes: of the first. hook(state, bucket) returns a Future of the mean
        (default: `average`). find_unused: parameters may stay without a gradient; costs one more small all-reduce.
        """
        self.model, self.hook, self.state, self.find_unused = model, hook or average, state, find_unused
        self.trained = [p for p in model.parameters() if p.requires_grad]
        layers = [Layer("", 0.0, 0.0, p.numel() * p.element_size()) for p in self.trained]
        places = buckets(layers, cap_bytes, first_cap_bytes)  # in reverse: the last layers come first
        self.buckets = [
            Bucket(i, [self.trained[k] for k in places[i]], i == len(places) - 1) for i in range(len(places))
        ]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.members}
        self.syncing, self.next = True, 0
        self.handles = [p.register_post_accumulate_grad_hook(self._ready) for p in self.trained]

    def _ready(self, p):
        """The gradient of `p` is there. All ranks must start the buckets in the same order, so a bucket that is full
        waits until those before it have started."""
        if not self.syncing:
            return
        self.bucket_of[p].missing.discard(p)
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self.buckets[self.next].start(self.hook, self.state)
            self.next += 1

    def finish(self):
        """Wait until every parameter holds the mean. RuntimeError where a gradient never came and nobody said so."""
        if not self.syncing:
            return
        missing = {p for bucket in self.buckets for p in bucket.missing}
        if missing and not self.find_unused:
            names = [name for name, p in self.model.named_parameters() if p in missing]
            raise RuntimeError(f"no gradient came for {', '.join(names)}: use find_unused, or take them out")
        for bucket in self.buckets[self.next :]:
            bucket.start(self.hook, self.state)
        used = self._used() if self.find_unused else set(self.trained)
        for bucket in self.buckets:
            bucket.finish(used)
            bucket.restart()
        self.next = 0

    def _used(self):
        """The parameters that got a gradient on any rank."""
        flags = torch.tensor(
            [p.grad is not None for p in self.trained], dtype=torch.int32, device=self.trained[0].device
        )
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return {p for p, flag in zip(self.trained, flags.tolist(), strict=True) if flag}

    @contextmanager
    def no_sync(self):
        """Inside, gradients only add up on this rank: for all passes of an accumulation but the last."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True


# --- what goes over the wire: hooks for Reducer and for DDP --------------------------------------------------


def average(group, bucket):
    """The mean over ranks, all bits of it. A Future of the flat tensor."""
    flat = bucket.buffer().div_(dist.get_world_size(group))  # divide first: a sum could overflow
    return dist.all_reduce(flat, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def bf16(group, bucket):
    """Half the bytes: gradients travel, and are summed, as bf16, with 8 bits of precision. A Future.

    torch's own bf16_compress_hook refuses to run on gloo. DDP asks that the argument is called `bucket`.
    """
    small = (bucket.buffer() / dist.get_world_size(group)).to(torch.bfloat16)
    reduced = dist.all_reduce(small, group=group, async_op=True).get_future()
    return reduced.then(lambda future: bucket.buffer().copy_(future.value()[0]))


def power_sgd(state, bucket):
    """PowerSGD (Vogels et al., arXiv 1905.13727): two thin matrices travel instead of each matrix. A Future.

    torch's hook starts its second all-reduce when the first is done. On gloo that is on a thread of its own, where two
    buckets may take each other's place, on one rank so and on another otherwise. So on gloo one bucket waits for the
    other, and nothing runs beside the backward.
    """
    future = powerSGD_hook(state, bucket)
    if dist.get_backend(state.process_group) == "gloo":
        future.wait()
    return future


def hook_named(name, rank=1, start=2):
    """(hook, state) of one of HOOKS. PowerSGD sends matrices of `rank` columns from step `start` on; what it leaves
    out is added to the next step's gradient."""
    if name not in HOOKS:
        raise ValueError(f"hook {name!r} is unknown: use one of {', '.join(HOOKS)}")
    if name == "powersgd":
        return power_sgd, PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
    return {"none": average, "bf16": bf16}[name], None
