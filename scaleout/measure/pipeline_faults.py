"""Faults of a pipeline's runtime, on purpose: ranks that both send first, and receives that are waited for too early."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from scaleout.measure.pipeline import gathered
from scaleout.measure.pipeline_sleep import LIKE, batch, sleepers
from scaleout.parallel.pipeline import Wire
from scaleout.parallel.pipeline_ways import Way
from scaleout.timing.pipeline import even


class Rendezvous(Wire):
    """A wire whose sender waits until the receiver takes the message, and whose receiver asks only when it needs it.
    `standing` has what this rank waits for: (what, peer)."""

    def __init__(self, standing: list, patience: float, *given) -> None:
        super().__init__(*given)
        self.standing, self.patience, self.done = standing, timedelta(seconds=patience), 0
        self.what = "activations" if self.source < self.target else "gradient"

    def begin(self, m: int) -> None:
        self.done = 0

    def sent_one(self) -> None:
        """All has gone."""

    def send(self, message: Tensor) -> None:
        self._wait(dist.isend(message.contiguous(), self.target, self.group), "send", self.target)

    def receive(self) -> Tensor:
        buffer = torch.empty_like(self.like)
        self._wait(dist.irecv(buffer, self.source, self.group), "receive", self.source)
        return buffer

    def _wait(self, work, does: str, peer: int) -> None:
        self.standing[:] = [does, self.what, self.done, peer]
        work.wait(self.patience)
        self.standing.clear()
        self.done += 1


def both_send(s, m: int, patience: float) -> list | None:
    """1F1B on wires where nobody prepares to receive: in its middle part two ranks both send. What each rank waits for,
    by rank: ["send" | "receive", what, its number, peer]; None where the step ends.

    gloo only: a send there waits for its receiver whatever its size. torch's flight recorder notes no sends and
    receives of gloo (2.13), so each rank notes its own.
    """
    standing: list = []
    like, costs = torch.zeros(LIKE), even(s.world, *[0.001] * 3)
    way = Way(s, "hand", "1f1b", m, sleepers(costs), like, wire=partial(Rendezvous, standing, patience))
    try:
        way.step(*batch(m, like))
    except RuntimeError:                                         # the time-out of a message
        if not standing:
            raise
    found = gathered(s, list(standing))
    return found if any(found) else None


class Early(Wire):
    """A wire that can be asked to wait for its next message before it is needed."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.ready: deque = deque()

    def fetch(self) -> None:
        """Wait for the next message, and keep it."""
        self.ready.append(super().receive())

    def receive(self) -> Tensor:
        return self.ready.popleft() if self.ready else super().receive()


def front_loaded(actions):
    """The work of a rank that waits for the message of its next action before it computes this one."""
    def work(pipe, m):
        does = {"F": pipe.forward, "B": pipe.backward, "I": pipe.input_gradient, "W": pipe.weight_gradient}
        for (kind, stage, i), after in zip(actions, [*actions[1:], None], strict=True):
            if after is not None:
                wire = {"F": pipe.inward, "W": {}}.get(after.kind, pipe.back_in).get(after.stage)
                if isinstance(wire, Early):
                    wire.fetch()
            does[kind](stage, i)
    return work
