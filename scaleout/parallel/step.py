"""One training step: the interface of every implementation, and points in time on a device."""

import time

import torch
from torch.profiler import record_function as phase


def stamp(s):
    """A point in time on the device of Session `s`: on a GPU, when its queue gets here."""
    if s.device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start, end):
    """Seconds from one stamp to another; GPU stamps must have been reached."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3


class Way:
    """One way to train: a model on every rank, its optimizer, and steps with them. The same seed gives the same weights
    in every way and on all ranks.

    A way has its Session `s`, its name `via`, its `model` without what is wrapped around it, and `optimizer`. A step's
    batches are what the way trains on: [(tokens, targets)], one a pass, unless it says otherwise.
    """

    updated = None  # stamps at both ends of the last update

    def gradients(self, batches, *options) -> float:
        """Forward and backward of a step's batches; the mean loss. options: as the way has them."""
        raise NotImplementedError

    def update(self) -> None:
        """Step the optimizer, forget the gradients."""
        start = stamp(self.s)
        with phase("update"):
            self.make_update()
        self.updated = start, stamp(self.s)

    def make_update(self) -> None:
        """The update itself, which `update` times."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, batches, *options) -> float:
        """One training step; the mean loss."""
        loss = self.gradients(batches, *options)
        self.update()
        return loss

    def whole(self, gradients: bool = False) -> dict:
        """{name: full tensor}, copies, of the parameters or their gradients. Collective."""
        return {name: (p.grad if gradients else p.detach()).clone() for name, p in self.model.named_parameters()}

    @property
    def built(self) -> str:
        """What was built, in words."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back the process groups that the way has made."""
