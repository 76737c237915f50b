"""One model on every rank: by hand, with torch's DistributedDataParallel, or with Accelerate.

All three leave the same gradient on every rank, the mean over ranks. They differ in what they keep for it:
DDP copies gradients into buckets, a second set of gradients that stays (unless the gradients are views of it).
"""

import os
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

ROUTES = ("hand", "torch", "accelerate")


@dataclass
class Look:
    """What DDP's hook notes: the tensor of each bucket, while `watching`.

    Apart from Replicas: DDP's reducer holds its hook's state out of the garbage collector's sight, and a state that
    leads back to the model would keep weights and buckets for good.
    """

    watching: bool = False
    buckets: dict = field(default_factory=dict)


class Replicas:
    """A model on every rank. Call it like the model; `backward(loss)` leaves every rank the mean gradient."""

    def __init__(self, s, model, via="torch", view=False):
        """s: a lab.Session. view: gradients are views of DDP's buckets (gradient_as_bucket_view).

        ValueError for an unknown route, and where Accelerate would quietly train as a single process.
        """
        if via not in ROUTES:
            raise ValueError(f"route {via!r} is unknown: use one of {', '.join(ROUTES)}")
        self.s, self.model, self.via = s, model, via
        self.accelerator, self.wrapped, self.look = None, model, Look()
        if via == "accelerate":
            self._with_accelerate(view)
        elif via == "torch" and s.world > 1:
            where = [s.device] if s.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(model, device_ids=where, gradient_as_bucket_view=view)
        if self.ddp:
            self.wrapped.register_comm_hook(self.look, _reduce_and_look)
        self._assert_built()

    @property
    def ddp(self):
        """True where DDP does the work, made by torch or by Accelerate."""
        return isinstance(self.wrapped, DistributedDataParallel)

    @property
    def built(self):
        """What was built, in words."""
        return f"{type(self.wrapped).__name__} on {self.s.world} rank(s), by {self.via}"

    def _with_accelerate(self, view):
        from accelerate import Accelerator, DistributedDataParallelKwargs  # 0.7 s: only where it is asked for

        if self.s.world == 1 and "MASTER_ADDR" in os.environ and "RANK" not in os.environ:
            raise ValueError("accelerate launch --cpu starts one process whatever --num_processes says: use "
                             "accelerate launch --config_file labs/launch/accelerate.yaml --num_processes N")
        options = DistributedDataParallelKwargs(gradient_as_bucket_view=view)
        self.accelerator = Accelerator(cpu=self.s.device.type == "cpu", mixed_precision="no",
                                       kwargs_handlers=[options])
        self.wrapped = self.accelerator.prepare(self.model)

    def _assert_built(self):
        """Equal losses prove nothing when every rank trains alone: look at what there is."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.accelerator is not None:
            ranks = self.accelerator.num_processes
        if ranks != self.s.world or (self.s.world > 1 and self.via != "hand") != self.ddp:
            raise RuntimeError(f"asked for {self.s.world} ranks by {self.via}, and got {ranks} with "
                               f"{type(self.wrapped).__name__}")

    def __call__(self, *inputs):
        return self.wrapped(*inputs)

    def backward(self, loss):
        """Gradients of this rank's loss, then their mean over ranks."""
        if self.accelerator is not None:
            self.accelerator.backward(loss)
        else:
            loss.backward()
        if self.via == "hand" and self.s.world > 1:
            for p in self.model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)           # gloo has no AVG: sum, then divide
                    p.grad /= self.s.world

    def spread(self):
        """Largest difference of any weight between this rank's model and rank 0's (float)."""
        worst = 0.0
        for p in self.model.parameters() if self.s.world > 1 else ():
            theirs = p.detach().clone()
            dist.broadcast(theirs, 0)
            worst = max(worst, (theirs - p.detach()).abs().max().item())
        return self.s.largest(worst)


def _reduce_and_look(look, bucket):
    """DDP's own all-reduce of a bucket; notes the bucket's tensor while `look.watching`."""
    if look.watching:
        look.buckets[bucket.index()] = bucket.buffer()
    return allreduce_hook(None, bucket)


def bucket_bytes(model):
    """Bytes of DDP's buckets: one place for every gradient."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)

