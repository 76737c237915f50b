"""Step time on a mesh, predicted from timings of its parts: a rank's part of a block and the ends of the model without
communication, each collective alone, an update. No step that is predicted is timed.

If each rank has its own processor, the parts are combined as in `timing.job`, action by action. If several ranks share
a core, a rank that waits leaves the core to another: a bubble then costs nothing, and the step takes the time of all
work on the available cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from math import fsum

import torch
import torch.distributed as dist
from torch import nn

from scaleout.lab.limits import cores
from scaleout.lab.text import progress
from scaleout.measure.collectives import neighbours
from scaleout.measure.mesh import planned_calls
from scaleout.measure.peak import timed
from scaleout.parallel.flat import all_gather, reduce_scatter
from scaleout.parallel.recipe import make_optimizer
from scaleout.parallel.tensor import Group
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.records import profiles
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import blocks_of
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape
from scaleout.timing import machine
from scaleout.timing.job import step_on
from scaleout.timing.pipeline import Costs, summary

PARTS = ("compute", "along tp", "along pp", "along dp", "update")
ROW = 4  # messages timed one after the other: ranks begin at unlike times, which one alone would show
PIECES = ("block", "first", "last")


class Alone:
    """One rank's part of a model of one block, of which nothing is sent, and what its pieces take."""

    def __init__(self, s, shape: Shape, layout: Layout, batch: int, seq: int) -> None:
        group = Group()
        group.size, group.rank, group.silent = layout.tp, s.rank % layout.tp, True
        with s.device:
            model = Transformer(replace(shape, layers=1))
        self.model = TensorTransformer(model, group, layout.sequence_parallel)
        share = seq // layout.tp if layout.sequence_parallel else seq
        self.tokens = torch.zeros(batch, seq, dtype=torch.long, device=s.device)
        self.x = torch.randn(batch, share, shape.hidden, device=s.device, requires_grad=True)
        (block,) = self.model.layers
        ends = {"first": [self.model.tokens, self.model.positions], "last": [self.model.norm, self.model.head]}
        self.weights = {"block": list(block.parameters())} | {
            name: list(nn.ModuleList(filter(None, modules)).parameters()) for name, modules in ends.items()
        }
        recipe = Recipe(precision="fp32", foreach=False)
        self.optimizers = {name: make_optimizer(weights, recipe, 1e-3) for name, weights in self.weights.items()}

    def forward(self, piece: str) -> torch.Tensor:
        """A piece's output: of the last, the loss."""
        if piece == "block":
            return self.model.layers[0](self.x)
        if piece == "first":
            return self.model.embed(self.tokens)
        self.model.layers, blocks, self.model.first = [], self.model.layers, False
        output = self.model(self.x, self.tokens)
        self.model.layers, self.model.first = blocks, True
        return output

    def sample(self, s) -> dict[str, tuple[float, float, float]]:
        """{piece: seconds of its forward, backward, update}, all ranks at once, the slowest rank's."""
        seconds = {}
        for piece in PIECES:
            forward, output = timed(s, lambda piece=piece: self.forward(piece))
            backward, _ = timed(s, lambda output=output: output.backward(torch.ones_like(output)))
            for p in self.weights[piece]:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            update, _ = timed(s, self.optimizers[piece].step)
            seconds[piece] = forward, backward, update
            self.model.zero_grad(set_to_none=True)
        return seconds


def key(layout: Layout, batch: int) -> tuple:
    """Layouts with the same have the same pieces."""
    return layout.tp, batch, layout.sequence_parallel


class Units:
    """The pieces of some layouts' steps, sampled in rounds. compute: {key: {piece: [(forward, backward, update)]}};
    seconds: {(collective, ranks, bytes): [seconds]}, all groups of so many ranks at once."""

    def __init__(self, s, o, layouts: Iterable[tuple[Layout, int]]) -> None:
        """o: options with shape and seq. layouts: [(Layout, sequences of a micro-batch)]."""
        self.s, self.o, layouts = s, o, list(layouts)
        self.alone = {key(*pair): Alone(s, o.shape, *pair, o.seq) for pair in layouts}
        self.compute = {pair: {piece: [] for piece in PIECES} for pair in self.alone}
        wanted = {
            tuple(call[1:4])
            for layout, batch in layouts
            for pp in range(layout.pp)
            for call in planned_calls(o.shape, batch, o.seq, layout, pp)
        }
        self.seconds: dict[tuple, list[float]] = {pair: [] for pair in sorted(wanted)}
        self.groups = {n: neighbours(s, n) for n in sorted({n for _, n, _ in wanted})}

    def sample(self) -> None:
        """One round."""
        for pair, alone in self.alone.items():
            for piece, seconds in alone.sample(self.s).items():
                self.compute[pair][piece].append(seconds)
        for call in self.seconds:
            spent, _ = timed(self.s, lambda call=call: [self.send(*call) for _ in range(ROW)])
            self.seconds[call].append(spent / ROW)

    def send(self, kind: str, n: int, size: float) -> None:
        """One message of so many bytes among neighbours; "send": one to the other of two, and one back."""
        length = max(n, int(size) // 4)
        if self.groups[n] is None:  # the ranks that are left over
            return
        group, x = self.groups[n], torch.zeros(length + -length % n, device=self.s.device)
        if kind == "all_reduce":
            dist.all_reduce(x, group=group)
        elif kind == "all_gather":
            all_gather(x, x[: len(x) // n].clone(), group=group)
        elif kind == "reduce_scatter":
            reduce_scatter(x[: len(x) // n].clone(), x, group=group)
        else:
            peer = dist.get_global_rank(group, 1 - dist.get_rank(group))
            receive = dist.irecv(torch.empty_like(x), peer, group)
            dist.send(x, peer, group)
            receive.wait()

    # --- put together -----------------------------------------------------------------------------------------------

    def predicted(self, layout: Layout, batch: int, cores: int | None = None) -> tuple[float, dict[str, float]]:
        """(step time in seconds, the same by PARTS, averaged over a pipeline's ranks). cores: of this host, which its
        ranks share; None: each rank has its own processor."""
        counts, separate = blocks_of(self.o.shape, layout), cores is None or cores >= self.s.world
        piece = {
            name: [statistics.median(column) for column in zip(*samples, strict=True)]
            for name, samples in self.compute[key(layout, batch)].items()
        }
        calls = [planned_calls(self.o.shape, batch, self.o.seq, layout, pp) for pp in range(layout.pp)]
        axis_seconds = {
            axis: [fsum(times * self.middle(*call) for name, *call, times in sent if name == axis) for sent in calls]
            for axis in ("tp", "pp", "dp")
        }
        ends = [[piece["first"]] * (i == 0) + [piece["last"]] * (i == layout.stages - 1) for i in range(layout.stages)]
        forward, backward, update = (
            [n * piece["block"][k] + fsum(end[k] for end in ends[i]) for i, n in enumerate(counts)] for k in range(3)
        )
        work = layout.m * fsum((*forward, *backward)) / layout.pp
        parts = dict(
            zip(
                PARTS,
                (
                    work,
                    *(statistics.mean(axis_seconds[axis]) for axis in ("tp", "pp", "dp")),
                    sum(update) / layout.pp / (layout.dp if layout.zero else 1),
                ),
                strict=True,
            )
        )
        if separate:  # the pipeline's order, with what its stages send inside
            parts["along pp"] = self.ordered(layout, forward, backward, axis_seconds, calls) - work - parts["along tp"]
        return fsum(parts.values()), parts

    def ordered(self, layout, forward, backward, axis_seconds, calls) -> float:
        """Seconds of the forwards and backwards in the order of the schedule, each rank on a processor of its own."""
        stage_ranks = [pp for stage in range(layout.stages) for pp in [stage % layout.pp]]
        inside = [axis_seconds["tp"][pp] / layout.m / layout.chunks / 2 for pp in stage_ranks]
        hop = max((self.middle(*call) for sent in calls for name, *call, _ in sent if call[0] == "send"), default=0.0)
        halves = tuple((b + i) / 2 for b, i in zip(backward, inside, strict=True))
        costs = Costs(tuple(map(sum, zip(forward, inside, strict=True))), halves, halves, hop)
        return summary(layout.schedule, layout.pp, layout.m, layout.chunks, costs).seconds

    def middle(self, kind: str, n: int, size: float) -> float:
        """Median seconds of one message."""
        return statistics.median(self.seconds[kind, n, size]) / (2 if kind == "send" else 1)


def by_profile(s, o, layout: Layout, batch: int) -> tuple[float | None, str]:
    """(step time by hand in seconds, on the machine that labs/calibrate.py measured with as many ranks as each group
    has, or None; the reason for None). Combined as in `timing.job`: no part of this model is timed for it."""
    known = profiles.several(o.machine, s.device.type, machine.groups(layout), s.world)
    if reason := profiles.lacking(known, s.world):
        return None, reason
    job = Job(
        o.shape,
        o.seq,
        machine.device_of(known[s.world]),
        cluster(1, s.world),
        batch,
        layout,
        Recipe(precision="fp32", foreach=False, gradients="kept"),
        MEASURED,
    )
    step = step_on(job, machine.from_profiles(job, known))
    return (step.crowded if (shared(s) or s.world) < s.world else step.seconds), ""


def shared(s) -> int | None:
    """CPU cores that the ranks share; None where each has a device of its own."""
    return cores() if s.device.type == "cpu" else None


def alternate(s, ways: dict, steps: int, batch, sample=None) -> tuple[dict[str, list], dict[str, list]]:
    """({name: step times}, {name: losses}) of implementations that take turns, so that other load on the machine
    affects all of them equally. batch(way, step): that of all replicas. sample(): done before each round."""
    seconds, losses = ({name: [] for name in ways} for _ in range(2))
    for step in progress(range(steps), "train", s.main):
        if sample:
            sample()
        for name, way in ways.items():
            drawn = batch(way, step)
            spent, loss = timed(s, lambda way=way, drawn=drawn: way.step(drawn))
            seconds[name].append(spent)
            losses[name].append(s.largest(loss))
    return seconds, losses
