"""Many cases of a pipeline on the ranks of one group."""

import torch

from scaleout.parallel import parity
from scaleout.parallel.pipeline import cut
from scaleout.parallel.pipeline_ways import Way, of_model
from scaleout.parallel.transformer import Transformer
from scaleout.spec.pipeline import SCHEDULES
from scaleout.spec.transformer import Shape

B, SEQ = 2, 12


def shape(tied):
    return Shape(8, 24, 2, 37, max_seq=16, tied_head=tied)


def batches(m):
    chance = torch.Generator().manual_seed(m)
    tokens = torch.randint(37, (m, B, SEQ + 1), generator=chance)
    return list(tokens[:, :, :-1].contiguous()), list(tokens[:, :, 1:].contiguous())


def alone(tied, m):
    """(loss, gradients) of one process."""
    torch.manual_seed(0)
    return parity.loss_and_gradients(Transformer(shape(tied)), *(torch.cat(part) for part in batches(m)))


def case(s, via, schedule, m, v=1, tied=True):
    """Errors of the loss and of the gradients against one process, and what was built."""
    stages = of_model(shape(tied), cut(8, s.world * v), s.device)
    way = Way(s, via, schedule, m, stages, torch.empty(B, SEQ, 24), v)
    loss, wanted = alone(tied, m)
    found = way.step(*batches(m))
    mine = way.gradients()
    return (abs(found / loss - 1), s.largest(parity.relative_error(mine, {name: wanted[name] for name in mine})),
            way.built)


def main(s):
    """{case: (error of the loss, of the gradients, what was built)}."""
    out, m = {}, 2 * s.world
    for schedule, facts in SCHEDULES.items():
        for via in ("hand", "torch"):
            v = max(facts.chunks[0], 2 if schedule == "zb1" else 1)
            try:
                out[via, schedule] = case(s, via, schedule, m, v)
            except Exception as e:
                out[via, schedule] = repr(e)[:300]
    return out
