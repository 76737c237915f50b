"""Many cases of a pipeline on the ranks of one group."""

import functools

import torch

from scaleout.measure import pipeline as measure_pipeline
from scaleout.measure import pipeline_faults
from scaleout.parallel import parity, pipeline
from scaleout.parallel.pipeline_stage import tied_weights
from scaleout.parallel.pipeline_ways import Pipeline, of_model
from scaleout.parallel.transformer import Transformer
from scaleout.spec.mesh import blocks
from scaleout.spec.pipeline import SCHEDULES
from scaleout.spec.transformer import Shape

B, SEQ, LAYERS = 2, 12, 8


def shape(tied=True):
    return Shape(LAYERS, 24, 2, 37, max_seq=16, tied_head=tied)


def batches(m):
    chance = torch.Generator().manual_seed(m)
    tokens = torch.randint(37, (m, B, SEQ + 1), generator=chance)
    return list(tokens[:, :, :-1].contiguous()), list(tokens[:, :, 1:].contiguous())


@functools.cache
def alone(tied, m):
    """(loss, gradients) of one process."""
    torch.manual_seed(0)
    return parity.loss_and_gradients(Transformer(shape(tied)), *(torch.cat(part) for part in batches(m)))


def way(s, via, schedule, m, v=1, tied=True, layers=None):
    stages = of_model(shape(tied), layers or blocks(LAYERS, s.world * v), s.device)
    return Pipeline(s, via, schedule, m, stages, torch.empty(B, SEQ, 24), v)


def case(s, via, schedule, m, v=1, tied=True, layers=None, cut_tie=False):
    """(error of the loss, of the gradients, what was built, stages by rank)."""
    made = way(s, via, schedule, m, v, tied, layers)
    if cut_tie:
        made.pipe.tie.weights = []
    loss, wanted = alone(tied, m)
    found = made.step(*batches(m))
    mine = dict(made.gradients())
    for weight in tied_weights(made.stages):  # both copies: gradients() has one of two on a rank
        mine["tokens.weight"] = max(
            (weight.grad, mine["tokens.weight"]), key=lambda g: (g - wanted["tokens.weight"]).abs().max().item()
        )
    made.close()
    names = s.gathered(sorted(mine))
    assert {name for each in names for name in each} == set(wanted), "every parameter has a gradient on some rank"
    error = parity.worst(s, mine, {name: wanted[name] for name in mine})
    return abs(found / loss - 1), error, made.built, s.gathered([*made.stages])


def chunks(schedule):
    """The fewest stages per rank that torch's own takes too."""
    return 2 if schedule == "zb1" else SCHEDULES[schedule].chunks[0]


def watched(s, m):
    """Spans by rank of 1F1B by its loop: kind, stage and micro-batch."""
    made = Pipeline(
        s,
        "hand",
        "1f1b",
        m,
        of_model(shape(), blocks(LAYERS, s.world), s.device),
        torch.empty(B, SEQ, 24),
        pipeline_type=measure_pipeline.Watched,
    )
    seconds, spans = measure_pipeline.timed(made, *batches(m), 1)
    assert all(span.begin <= span.start <= span.end for row in spans for span in row)
    return [[span[:3] for span in row] for row in spans], len(seconds)


class Counted(pipeline.Wire):
    """A wire that counts how many of its messages nobody is known to have taken."""

    most = 0

    def send(self, message):
        super().send(message)
        self.most = max(self.most, len(self.sent))


def outstanding(s, m):
    """By rank: the most outputs under way that 1F1B keeps at a time."""
    made = Pipeline(
        s,
        "hand",
        "1f1b",
        m,
        of_model(shape(), blocks(LAYERS, s.world), s.device),
        torch.empty(B, SEQ, 24),
        wire=Counted,
    )
    made.step(*batches(m))
    return s.gathered([wire.most for wire in made.pipe.outward.values()])


def refused(s, *words):
    """The message that a way ends with."""
    try:
        way(s, *words)
    except ValueError as error:
        return str(error)
    return ""


def main(s, every):
    """{case: what it found}. every: all seven schedules, or the three by hand."""
    m, out = 2 * s.world, {}
    for schedule in SCHEDULES if every else ("1f1b", "zbv"):
        for via in ("hand", "torch"):
            out[via, schedule] = case(s, via, schedule, m, chunks(schedule))
        out["kept", schedule] = measure_pipeline.most_kept(way(s, "hand", schedule, m, chunks(schedule)), *batches(m))
    out["hand", "naive"] = case(s, "hand", "naive", m)
    out["hand", "gpipe one"] = case(s, "hand", "gpipe", 1)
    out["hand", "untied"] = case(s, "hand", "1f1b", m, tied=False)
    out["hand", "zero-bubble on one stage"] = case(s, "hand", "zb1", m)
    uneven = (LAYERS - s.world + 1, *[1] * (s.world - 1))
    out["hand", "uneven"] = case(s, "hand", "1f1b", m, layers=uneven)
    out["no tie"] = case(s, "hand", "1f1b", m, cut_tie=True)
    out["watched"] = watched(s, m)
    out["outstanding"] = outstanding(s, m)
    out["refused"] = [refused(s, "hand", "1f1b", s.world - 1), refused(s, "torch", "naive", m)]
    return out


def hang(s):
    """What each rank waits for."""
    return pipeline_faults.both_send(s, 2 * s.world, 6.0)
