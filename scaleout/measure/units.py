"""Time what replicas take in a step beside the model: gradients reduced by DDP, units gathered and reduced by hand and
by `fully_shard`, with the host's work and all copies; and the optimizer's step on shards.

A small model is trained plain and in each way, in turn, on a few tokens; the difference is the way's. Several widths
show the seconds of a unit and those of its bytes. One process has them too: its collectives are copies.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch.nn.parallel import DistributedDataParallel

from scaleout.lab.text import progress
from scaleout.parallel import shard
from scaleout.parallel.transformer import Transformer
from scaleout.parallel.zero import STAGES
from scaleout.spec.sharding import Sharding, tensors, units
from scaleout.spec.transformer import Shape, total_parameters

LAYERS, SEQ = 4, 4
WAYS = ("plain", "ddp", "stage 1", "stage 2", "stage 3", "fully_shard")
PHASES = ("forward", "backward", "rest", "update")
ROUNDS_PER_SECOND, WARMUP = 25, 2
LEAST = 1e-9  # seconds that a difference counts for at least
NONE = SimpleNamespace(step=lambda: None, zero_grad=lambda set_to_none: None)  # in place of an optimizer


class Sharded:
    """A model in one of WAYS, its AdamW, and the seconds of its steps by phase."""

    def __init__(self, s, way: str, shape: Shape) -> None:
        with s.device:
            self.model = Transformer(shape)
            self.tokens = torch.zeros(1, SEQ, dtype=torch.long)
        if way == "fully_shard":
            shard.shard(s, self.model, Sharding(s.world))
        self.hand = STAGES[int(way[-1])](s, self.model) if way.startswith("stage") else None
        self.call = DistributedDataParallel(self.model) if way == "ddp" else self.hand or self.model
        self.optimizer = torch.optim.AdamW(self.call.parameters(), foreach=True)
        self.samples: list[list[float]] = []

    def sample(self, s) -> None:
        """A step: forward, backward with the reductions, the rest of a stage by hand, the optimizer."""
        s.barrier()
        stamps = [s.clock()]
        loss = self.call(self.tokens, self.tokens)
        stamps.append(s.clock())
        self.hand.backward(loss) if self.hand else loss.backward()
        stamps.append(s.clock())
        self.optimizer.step()
        stamps.append(s.clock())
        self.hand.step(NONE) if self.hand else None
        stamps.append(s.clock())
        self.optimizer.zero_grad(set_to_none=True)
        forward, backward, update, rest = (b - a for a, b in pairwise(stamps))
        self.samples.append([s.largest(spent) for spent in (forward, backward, rest, update)])

    def medians(self) -> dict[str, float]:
        """{phase: seconds}."""
        columns = zip(*self.samples[WARMUP:], strict=True)
        return dict(zip(PHASES, map(statistics.median, columns), strict=True))


def measure(s, widths: tuple[int, ...], seconds: float) -> dict[str, list[dict]]:
    """{way: [{"units", "bytes", "tensors", "parameters" of a rank, and by phase seconds}]}, a row a width. Of forward,
    backward and rest it is what the way takes beside the plain model; of the update all."""
    table: dict[str, list[dict]] = {way: [] for way in WAYS if way != "ddp" or s.world > 1}
    for hidden in progress(widths, "units", s.main):
        shape = Shape(LAYERS, hidden, 2, 16, max_seq=SEQ)
        models = {way: Sharded(s, way, shape) for way in table}
        for _ in range(WARMUP + max(1, round(ROUNDS_PER_SECOND * seconds))):
            for model in models.values():
                model.sample(s)
        plain = models["plain"].medians() | {"update": 0.0}
        facts = {"units": len(units(shape, Sharding(s.world))), "bytes": 4 * total_parameters(shape)}
        for way, model in models.items():
            facts["parameters"] = total_parameters(shape) / (s.world if way not in ("plain", "ddp") else 1)
            spent = {phase: max(LEAST, seconds - plain[phase]) for phase, seconds in model.medians().items()}
            table[way].append(facts | {"tensors": len(tensors(shape))} | spent)
    return table
