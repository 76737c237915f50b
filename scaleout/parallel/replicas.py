"""One model on every rank: by hand, with torch's DistributedDataParallel, or with Accelerate.

All leave the same gradient on every rank, the mean over ranks. They differ in when they communicate (after the
backward by hand, beside it with buckets) and in what they keep for it: buckets are a second set of gradients that
stays (unless the gradients are views of it).
"""

import os
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function as phase

from scaleout.parallel import ddp as parallel_ddp
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP

ROUTES = ("hand", "torch", "accelerate")
WAYS = ("hand", "buckets", "torch", "accelerate")  # "buckets" is by hand too: parallel.ddp.Reducer


@dataclass(frozen=True)
class Settings:
    """How gradients travel. None is torch's default; what a way cannot do is refused by `Replicas`."""

    view: bool = False  # gradients are views of DDP's buckets (gradient_as_bucket_view)
    bucket_mb: float | None = None  # cap of a bucket in MiB; a given cap holds for the first bucket too
    hook: str = "none"  # one of parallel.ddp.HOOKS
    hook_rank: int = 1  # columns of PowerSGD's matrices
    static_graph: bool = False
    find_unused: bool = False

    @property
    def caps(self):
        """(cap, first cap) in bytes."""
        if self.bucket_mb is None:
            return BUCKET_CAP, FIRST_BUCKET_CAP
        return int(self.bucket_mb * 2**20), int(self.bucket_mb * 2**20)

    @property
    def ddp(self):
        """Keyword arguments of DistributedDataParallel, and of Accelerate's DistributedDataParallelKwargs."""
        settings = {
            "gradient_as_bucket_view": self.view,
            "static_graph": self.static_graph,
            "find_unused_parameters": self.find_unused,
        }
        return settings if self.bucket_mb is None else settings | {"bucket_cap_mb": self.bucket_mb}


@dataclass
class Look:
    """What the hook of every bucket does and notes.

    `buckets`: the tensor of each bucket, while `watching`. `silent`: nothing is sent; with `alone`, a group of this
    rank only, the hook does all its other work. `wrap`: what stands around the hook (an injected slow link).

    Apart from Replicas: DDP's reducer holds its hook's state out of the garbage collector's sight, and a state that
    leads back to the model would keep weights and buckets for good.
    """

    watching: bool = False
    silent: bool = False
    buckets: dict = field(default_factory=dict)
    alone: object = None
    hook: tuple = (parallel_ddp.average, None)
    wrap: object = None


class Replicas:
    """A model on every rank. Call it like the model; `backward(loss)` leaves every rank the mean gradient."""

    def __init__(self, s, model, via="torch", view=False, settings=None):
        """s: a lab.session.Session. settings: how gradients travel; `view` alone is Settings(view=view).

        ValueError for an unknown route, and where Accelerate would quietly train as a single process.
        """
        if via not in WAYS:
            raise ValueError(f"route {via!r} is unknown: use one of {', '.join(WAYS)}")
        self.s, self.model, self.via = s, model, via
        self.settings = settings = settings or Settings(view=view)
        self.accelerator, self.reducer, self.wrapped = None, None, model
        self.look = Look(hook=parallel_ddp.hook_named(settings.hook, settings.hook_rank))
        if via == "accelerate":
            self._with_accelerate()
        elif via == "torch" and s.world > 1:
            devices = [s.device] if s.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(model, device_ids=devices, **settings.ddp)
        elif via == "buckets" and s.world > 1:
            self.reducer = parallel_ddp.Reducer(
                model,
                *settings.caps,
                hook=_reduce_and_look,
                state=self.look,
                find_unused=settings.find_unused or settings.static_graph,
            )
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
        wrapped = type(self.reducer or self.wrapped).__name__
        return f"{wrapped} on {self.s.world} rank(s), by {self.via}"

    def _with_accelerate(self):
        from accelerate import Accelerator, DistributedDataParallelKwargs  # 0.7 s: only where it is asked for

        if self.s.world == 1 and "MASTER_ADDR" in os.environ and "RANK" not in os.environ:
            raise ValueError(
                "accelerate launch --cpu starts one process whatever --num_processes says: use "
                "accelerate launch --config_file labs/launch/accelerate.yaml --num_processes N"
            )
        options = DistributedDataParallelKwargs(**self.settings.ddp)
        self.accelerator = Accelerator(cpu=self.s.device.type == "cpu", mixed_precision="no", kwargs_handlers=[options])
        self.wrapped = self.accelerator.prepare(self.model)

    def _assert_built(self):
        """Equal losses prove nothing when every rank trains alone: look at what there is."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.accelerator is not None:
            ranks = self.accelerator.num_processes
        several, wanted = (
            self.s.world > 1,
            {"hand": (False, False), "buckets": (False, True)}.get(self.via, (True, False)),
        )
        if ranks != self.s.world or (self.ddp, self.reducer is not None) != (wanted if several else (False, False)):
            raise RuntimeError(
                f"asked for {self.s.world} ranks by {self.via}, and got {ranks} with {type(self.wrapped).__name__}"
            )

    def __call__(self, *inputs):
        return self.wrapped(*inputs)

    def no_sync(self):
        """A context for one forward and backward in which gradients accumulate on this rank without communication."""
        if self.accelerator is not None:
            return self.accelerator.no_sync(self.wrapped)
        return (self.reducer or self.wrapped).no_sync() if self.reducer or self.ddp else nullcontext()

    def backward(self, loss, last=True):
        """Gradients of this rank's loss, then their mean over ranks. last=False: a pass inside `no_sync()`."""
        with phase("backward"):
            if self.accelerator is not None:
                self.accelerator.backward(loss)
            else:
                loss.backward()
        if self.s.world > 1 and last and not self.ddp:
            with phase("reduce"):  # DDP waits inside the backward
                if self.reducer is not None:
                    self.reducer.finish()
                elif not self.look.silent:
                    parallel_ddp.naive(self.model)

    def spread(self):
        """Largest difference of any weight between this rank's model and rank 0's (float)."""
        worst = 0.0
        for p in self.model.parameters() if self.s.world > 1 else ():
            theirs = p.detach().clone()
            dist.broadcast(theirs, 0)
            worst = max(worst, (theirs - p.detach()).abs().max().item())
        return self.s.largest(worst)


def _reduce_and_look(look, bucket):
    """The hook of every bucket, by hand and in DDP. DDP asks that its argument is called `bucket`."""
    flat = bucket.buffer()
    if look.watching:
        look.buckets[bucket.index()] = flat
    hook, state = look.hook
    if look.silent and look.alone is not None and state is None:
        return hook(look.alone, bucket)
    if look.silent:
        future = torch.futures.Future(devices=[flat.device] if flat.device.type == "cuda" else None)
        future.set_result(flat)
        return future
    return look.wrap(hook, state, bucket) if look.wrap else hook(state, bucket)
