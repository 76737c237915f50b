"""Data parallelism from scratch: how the gradients of all ranks become their mean.

Every rank has the same weights and its own part of the batch, so every rank has a different gradient. The mean of the
gradients is the gradient of the whole batch. `naive` averages after the backward pass; `Reducer` averages in buckets,
during the backward pass, as torch's DistributedDataParallel does (Li et al., arXiv 2006.15704).
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Layer, buckets

HOOKS = ("none", "bf16", "powersgd")


def naive(model):
    """After the backward pass: one all-reduce per tensor, one after the other. Nothing overlaps."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)  # sum, then divide: not every gloo has AVG
            p.grad /= dist.get_world_size()


# --- buckets ----------------------------------------------------------------------------------------------


class Bucket:
    """Neighboring gradients in one flat tensor: one all-reduce instead of many. It has the methods of DDP's GradBucket,
    so that the same hooks work."""

    def __init__(self, index, parameters, last):
        self.place, self.members, self.last = index, parameters, last
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = self.flat.split([p.numel() for p in parameters])
        self.views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        self.restart()

    def restart(self):
        """Before a backward pass: no gradient is ready, and no all-reduce has started."""
        self.missing, self.future = set(self.members), None

    def start(self, hook, state):
        """Copy the gradients into the bucket and start the all-reduce. Returns at once."""
        for p, view in zip(self.members, self.views, strict=True):
            view.zero_() if p.grad is None else view.copy_(p.grad)
        self.future = hook(state, self)

    def finish(self, used):
        """Wait for the mean, and copy it to the parameters in `used` (a set): those that some rank used."""
        self.future.wait()
        for p, view in zip(self.members, self.views, strict=True):
            if p in used:
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)

    def buffer(self):
        """The flat tensor."""
        return self.flat

    def index(self):
        """Its place among the buckets; 0 is sent first."""
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
    """Averages gradients over ranks, bucket by bucket, during the backward pass.

    A hook on every parameter reports when its gradient is ready. The last gradient of a bucket starts the bucket's
    all-reduce on another thread (or stream), and the backward pass goes on to earlier layers. Call `finish` after it.
    """

    def __init__(
        self, model, cap_bytes=BUCKET_CAP, first_cap_bytes=FIRST_BUCKET_CAP, hook=None, state=None, find_unused=False
    ):
        """cap_bytes: of a bucket; first_cap_bytes: of the first. hook(state, bucket) returns a Future of the mean
        (default: `average`). find_unused: parameters may have no gradient; this costs one more small all-reduce.
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
        """The gradient of `p` is ready. All ranks must start the buckets in the same order, so a full bucket waits
        until the buckets before it have started."""
        if not self.syncing:
            return
        self.bucket_of[p].missing.discard(p)
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self.buckets[self.next].start(self.hook, self.state)
            self.next += 1

    def finish(self):
        """Wait until every parameter has the mean. RuntimeError if a gradient never came and find_unused is not set."""
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
        """Inside, gradients are only accumulated on this rank: for all passes of a step but the last."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True


# --- how a bucket is communicated: hooks for Reducer and DDP -------------------------------------------------


def average(group, bucket):
    """The mean over ranks, without compression. A Future of the flat tensor."""
    flat = bucket.buffer().div_(dist.get_world_size(group))  # divide first: a sum could overflow
    return dist.all_reduce(flat, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def bf16(group, bucket):
    """Half the bytes: gradients are sent and summed in bf16, with 8 bits of precision. A Future.

    torch's own bf16_compress_hook refuses to run on gloo. DDP requires that the argument is called `bucket`.
    """
    small = (bucket.buffer() / dist.get_world_size(group)).to(torch.bfloat16)
    reduced = dist.all_reduce(small, group=group, async_op=True).get_future()
    return reduced.then(lambda future: bucket.buffer().copy_(future.value()[0]))


def power_sgd(state, bucket):
    """PowerSGD (Vogels et al., arXiv 1905.13727): sends two thin matrices instead of each matrix. A Future.

    torch's hook starts its second all-reduce when the first is done. On gloo this happens on a separate thread, where
    two buckets may swap their order, on one rank and not on another. So on gloo each bucket waits for the one before
    it, and nothing overlaps with the backward pass.
    """
    future = powerSGD_hook(state, bucket)
    if dist.get_backend(state.process_group) == "gloo":
        future.wait()
    return future


def hook_named(name, rank=1, start=2):
    """(hook, state) for one of HOOKS. PowerSGD sends matrices of `rank` columns from step `start` on, and adds what it
    leaves out to the next step's gradient."""
    if name not in HOOKS:
        raise ValueError(f"hook {name!r} is unknown: use one of {', '.join(HOOKS)}")
    if name == "powersgd":
        return power_sgd, PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
    return {"none": average, "bf16": bf16}[name], None
