"""Ways to share a model's matrices, timed in alternation beside a calibration made in the same rounds; the collectives
of a step, and the bytes that its forward keeps, each beside its prediction.

Nothing here times per step that is predicted: a prediction is made of the same step with nothing sent, and of each
collective by itself, which nothing hides.
"""

from __future__ import annotations

import statistics
from collections import Counter

import torch

from scaleout.collectives.tensor import block
from scaleout.collectives.vocabulary import ends, sums
from scaleout.lab.tensor import SEQUENCE, parts
from scaleout.measure.peak import timed
from scaleout.measure.recompute import saved
from scaleout.measure.rounds import Alternation
from scaleout.memory.activations import Sizes, block_kept
from scaleout.parallel import parity, tensor
from scaleout.parallel.step import seconds_between
from scaleout.parallel.tensor_model import dimension, is_kv
from scaleout.parallel.tensor_ways import TensorWay
from scaleout.spec import topology
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.timing import job as timing_job
from scaleout.timing import machine

# --- by the pure model ----------------------------------------------------------------------------------------------


def moves(shape, batch, seq, tp, sequence, precision="fp32"):
    """{"forward", "backward": [collectives.placements.Move]} of one step, as autograd keeps what it gathers."""
    width, stream = map(Recipe(precision).width, ("compute", "stream"))
    cut = {"sequence_parallel": sequence, "width": width, "stream": stream, "gather_again": False}
    layer, edges = block(shape, batch, seq, tp, **cut), ends(shape, batch, seq, tp, **cut)
    return {phase: layer.moves(phase) * shape.layers + edges.moves(phase) for phase in ("forward", "backward")}


def copies(shape, batch, seq, tp, sequence):
    """{ranks that add up their gradients of what they have copies of: bytes of it}, of a model in fp32."""
    cut = {"sequence_parallel": sequence, "width": 4, "gather_again": False}
    return sums(block(shape, batch, seq, tp, **cut), ends(shape, batch, seq, tp, **cut), shape.layers)


def predicted_counts(shape, batch, seq, tp, via, sequence):
    """What TensorWay.counted should find: {"forward", "backward", "copies": {collective: calls}}.

    By hand the gradients of copies go in one message for each group of ranks. torch sends each norm's by itself, and
    gathers that of learned positions, in the backward already: its rule for a table that is read by slices.
    """
    if via == "one" or tp == 1:
        loss = {"all_reduce": 3} if via == "torch" else {}  # loss_parallel sends them to itself
        return {"forward": loss, "backward": {}, "copies": {}}
    counts = {
        phase: Counter(move.collective for move in collectives)
        for phase, collectives in moves(shape, batch, seq, tp, sequence).items()
    }
    reductions = len(copies(shape, batch, seq, tp, sequence))
    if via == "torch" and sequence:
        counts["backward"]["all_gather"] += shape.positions == "learned"
        reductions = (2 * shape.layers + 1) * (2 if shape.norm == "layernorm" and shape.bias else 1)
    return {phase: dict(collectives) for phase, collectives in counts.items()} | {
        "copies": {"all_reduce": reductions} if reductions else {}
    }


def predicted_kept(shape, batch, seq, tp, sequence):
    """Bytes that the blocks of one rank keep between forward and backward."""
    layout = Layout(tp=tp, sequence_parallel=sequence, gather_again=False)
    return shape.layers * sum(block_kept(Sizes(shape, batch, seq, Recipe(precision="fp32"), layout), "none").values())


def by_profile(profile, o, tp, sequence):
    """Step time, by the rates and lines that labs/calibrate.py measured with tp processes."""
    job = Job(
        o.shape,
        o.seq,
        machine.device_of(profile),
        topology.cluster(1, tp),
        o.micro_batch,
        Layout(tp=tp, sequence_parallel=sequence, gather_again=False),
        Recipe(o.precision, foreach=False),
        MEASURED,
    )
    return timing_job.step_on(job, machine.from_profiles(job, {tp: profile})).seconds


# --- by looking -----------------------------------------------------------------------------------------------------


def kept_bytes(way, batch):
    """Bytes that the forward of the blocks keeps for the backward; weights are not counted, nor tensors outside the
    blocks."""

    def run(batch):
        with way.context():
            way.backward(way.forward(*batch))

    size = saved(run, batch, way.model, way.model.blocks)
    way.optimizer.zero_grad(set_to_none=True)
    return size


def spread(s, way):
    """Largest difference between ranks of a parameter that they have copies of, over its largest entry (float); 0
    where copies are equal."""
    worst = 0.0
    for name, p in way.whole().items():
        if s.world > 1 and (dimension(name) is None or is_kv(name)):
            extremes = torch.stack([p, -p])
            torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX)
            worst = max(worst, extremes.sum(0).max().item() / max(p.abs().max().item(), parity.TINY))
    return worst


# --- seconds --------------------------------------------------------------------------------------------------------


class Calibration:
    """Step time with nothing sent, by hand and with sequence parallelism, and of each collective at each size
    that a step sends; a sample of each a round. The slowest rank's figure counts."""

    def __init__(self, s, o, silent):
        """silent: {False, True or only one: a TensorWay by hand, without or with sequence parallelism}, whose group
        sends nothing from now on."""
        self.s, self.silent, self.group = s, silent, tensor.Group()
        for way in silent.values():
            way.model.group.silent = True
        self.compute = {sequence: [] for sequence in silent}
        self.update = {sequence: [] for sequence in silent}
        size = o.shape, o.micro_batch, o.seq, s.world
        self.moves = {
            sequence: [m for messages in moves(*size, sequence, o.precision).values() for m in messages]
            for sequence in silent
        }
        self.sums = {sequence: copies(*size, sequence) for sequence in silent}
        kinds = {(m.collective, m.size) for messages in self.moves.values() for m in messages}
        kinds |= {("all_reduce", size) for messages in self.sums.values() for size in messages.values()}
        self.seconds = {kind: [] for kind in sorted(kinds)} if s.world > 1 else {}

    def sample(self, batch):
        """One round."""
        for sequence, way in self.silent.items():
            spent, _ = timed(self.s, lambda way=way: way.step(batch))
            update = self.s.largest(seconds_between(*way.updated))
            self.update[sequence].append(update)
            self.compute[sequence].append(spent - update)
        for (name, size), samples in self.seconds.items():
            x = torch.zeros(1, size // 4, 1, device=self.s.device)
            send = {
                "all_reduce": self.group.reduced,
                "reduce_scatter": self.group.scattered,
                "all_gather": lambda x: self.group.gathered(x[:, : x.shape[1] // self.group.size]),
            }[name]
            samples.append(timed(self.s, lambda send=send, x=x: send(x))[0])

    def middle(self, collective, size, warmup=0):
        """Median seconds of one message."""
        return statistics.median(self.seconds[collective, size][warmup:])

    def predict(self, sequence, warmup):
        """(step time, exposed communication in it), in seconds."""
        messages = sum(self.middle(move.collective, move.size, warmup) for move in self.moves[sequence])
        messages += sum(self.middle("all_reduce", size, warmup) for size in self.sums[sequence].values())
        alone = [statistics.median(samples[sequence][warmup:]) for samples in (self.compute, self.update)]
        return sum(alone) + messages, messages


class Rounds(Alternation):
    """The ways of tensor parallelism. "one" is one process with the whole model, on rank 0 while the others wait."""

    def __init__(self, s, o, ways, calibration, batch):
        """ways: {name: TensorWay}. batch(step): (tokens, targets), the same on every rank."""
        super().__init__(s, o, ways, list(ways), lambda step: (batch(step),))
        self.calibration = calibration

    def sample(self, batch, step):
        """One round of the calibration."""
        self.calibration.sample(batch)

    def take(self, via, share, step):
        """One step of a way, timed."""
        work, loss = self.ways[via].step, [0.0]
        alone = via == "one"

        def turn():
            if self.s.main or not alone:
                loss[0] = work(share[0])

        self.seconds[via].append(timed(self.s, turn)[0])
        self.losses[via].append(self.s.largest(loss[0]))

    def rows(self, warmup):
        """{way: {"measured", "predicted": {figure: number}, "loss": the last}}; figures as in lab.tensor.FIGURES."""
        o, rows, batch = self.o, {}, self.batches(0)[0]
        size = o.shape, o.micro_batch, o.seq, self.s.world
        for name, way in self.ways.items():
            via, sequence = parts(name)
            tp = 1 if via == "one" else self.s.world
            middle = statistics.median(self.seconds[name][warmup:])
            row = {
                "measured": {"seconds": middle},
                "predicted": {},
                "loss": self.losses[name][-1],
                "counts": {phase: dict(collectives) for phase, collectives in way.counted(batch).items()},
                "wanted": predicted_counts(*size, via, sequence),
            }
            for figure, counts in (("measured", row["counts"]), ("predicted", row["wanted"])):
                row[figure]["collectives"] = sum(sum(collectives.values()) for collectives in counts.values())
            if o.precision == "fp32":
                row["measured"]["kept"] = kept_bytes(way, batch)
                row["predicted"]["kept"] = predicted_kept(*size[:3], tp, sequence)
            if via != "one":
                seconds, exposed = self.calibration.predict(sequence, warmup)
                row["predicted"]["seconds"] = seconds
                if self.s.world > 1:
                    row["predicted"]["exposed"] = exposed
                    row["measured"]["exposed"] = max(0.0, middle - (seconds - exposed))
            rows[name] = row
        return rows


def names(o):
    """The ways of a run, by name."""
    doors = ("", SEQUENCE) if o.sequence_parallel else ("",)
    return ["one", *(f"{via}{door}" for via in ("hand", "torch") for door in doors)]


def make(s, o, name, **changes):
    """One TensorWay of a lab's options, by its name."""
    via, sequence = parts(name)
    settings = {"rate": o.lr, "seed": o.seed, "precision": o.precision} | changes
    return TensorWay(s, o.shape, via, sequence, **settings)
