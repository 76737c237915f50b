"""A pipeline's step seen from outside: when each action ran, what it waited for, and the bytes saved for backward."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import NamedTuple

import torch

from scaleout.parallel.pipeline import HandPipeline
from scaleout.timing.pipeline import Costs


class Span(NamedTuple):
    """An action of a rank: seconds on the host's clock. It waits for a message from `begin`, and works from `start`."""

    kind: str
    stage: int
    micro: int
    begin: float
    start: float
    end: float


def clock(s) -> float:
    """Seconds, once this rank's own work is done. Messages that are still to come are not waited for: `Session.clock`,
    which empties the whole device, would wait for them, and they for this rank."""
    if s.device.type == "cuda":
        torch.cuda.current_stream(s.device).synchronize()
    return time.perf_counter()


class Watched(HandPipeline):
    """A pipeline that notes a Span of each action in `spans`."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.spans: list[Span] = []
        for ways in (self.inward, self.back_in):
            for wire in ways.values():
                wire.receive = partial(self._received, wire.receive)
        for kind, name in (("F", "forward"), ("B", "backward"), ("I", "input_gradient"), ("W", "weight_gradient")):
            setattr(self, name, partial(self._noted, kind, getattr(self, name)))

    def _received(self, receive):
        message = receive()
        self.started = clock(self.s)
        return message

    def _noted(self, kind, work, stage, i):
        begin = self.started = clock(self.s)
        work(stage, i)
        self.spans.append(Span(kind, stage, i, begin, self.started, clock(self.s)))


class KeptBytes:
    """Bytes that autograd keeps for backward on this rank while the context is open: now, and at most.

    Tensors that share a storage count once. Weights and the batch, which stay anyway, do not count.
    """

    def __init__(self, *stays: torch.Tensor) -> None:
        self.stays = {t.untyped_storage().data_ptr() for t in stays}
        self.now = self.most = 0
        self.times: Counter = Counter()
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> KeptBytes:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        return _Saved(self, tensor)

    def add(self, storage: torch.UntypedStorage, sign: int) -> None:
        """One more that keeps a storage (sign 1), or one less (-1)."""
        address = storage.data_ptr()
        if address in self.stays:
            return
        self.times[address] += sign
        if self.times[address] == max(0, sign):  # the first that keeps it, or the last
            self.now += sign * storage.nbytes()
            self.most = max(self.most, self.now)


class _Saved:
    """A tensor that autograd keeps: counted until the graph lets go of it."""

    def __init__(self, ledger: KeptBytes, tensor: torch.Tensor) -> None:
        self.kept, self.tensor = ledger, tensor.detach()  # an operation's own output would lead back to it
        ledger.add(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self.kept.add(self.tensor.untyped_storage(), -1)


def most_kept(way, tokens, targets) -> list[int]:
    """Bytes that each rank keeps for backward at most in a step of a Pipeline (by rank)."""
    weights = [p for stage in way.stages.values() for p in stage.parameters()]
    with KeptBytes(*weights, *tokens, *targets) as ledger:
        way.step(tokens, targets)
    way.clear()
    return way.s.gathered(ledger.most)


def timed(way, tokens, targets, steps: int) -> tuple[list[float], list[list[Span]]]:
    """(seconds of each of `steps` steps, the spans of all ranks in the last one, from its start on)."""
    seconds: list[float] = []
    for _ in range(steps):
        if hasattr(way, "pipe"):
            way.pipe.spans.clear()
        way.s.barrier()
        begin = way.s.clock()
        way.step(tokens, targets)
        seconds.append(way.s.largest(way.s.clock() - begin))
        way.clear()
    spans = way.pipe.spans if hasattr(way, "pipe") else []
    moved = [Span(*span[:3], *(t - begin for t in span[3:])) for span in spans]
    return seconds, way.s.gathered(moved)


def costs(way, tokens, targets, rounds: int = 3) -> Costs:
    """Seconds of each stage's forward and backward, alone on the machine: rank after rank, the best of `rounds`."""
    mine = {}
    for rank in range(way.s.world):
        way.s.barrier()
        for i, stage in way.stages.items() if rank == way.s.rank else ():
            mine[i] = [
                min(times)
                for times in zip(*(_alone(way, stage, tokens[0], targets[0]) for _ in range(rounds)), strict=True)
            ]
    way.clear()
    by_stage = {i: pair for stages in way.s.gathered(mine) for i, pair in stages.items()}
    forward, backward = zip(*(by_stage[i] for i in range(len(way.place))), strict=True)
    half = tuple(seconds / 2 for seconds in backward)  # of a whole backward only the sum is told
    return Costs(tuple(forward), half, half)


def _alone(way, stage, tokens, targets) -> tuple[float, float]:
    """(forward, backward) seconds of a stage with nothing sent."""
    x = tokens if stage.first else torch.randn_like(way.like, requires_grad=True)
    begin = way.s.clock()
    output = stage(x, targets if stage.last else None)
    middle = way.s.clock()
    output.backward(None if stage.last else torch.ones_like(output))
    return middle - begin, way.s.clock() - middle
