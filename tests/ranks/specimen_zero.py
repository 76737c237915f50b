"""Many cases of ZeRO on the ranks of one group. No size of this model divides by 2 or 4."""

import functools

import torch

from scaleout.parallel import parity
from scaleout.parallel.zero_ways import WAYS, Way
from scaleout.spec.transformer import Shape

SHAPE = Shape(2, 30, 3, 61, max_seq=15, ff=101)
STEPS, RATE = 3, 1e-3
ALIKE = 1e-3            # AdamW's eps here: far above a gradient that is rounding and nothing else


def batches(s, step, rank=None):
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(SHAPE.vocab, (s.world * 2, 16), generator=chance)
    share = tokens if rank is None else tokens[2 * rank:2 * rank + 2]
    return [(share[:, :-1].contiguous(), share[:, 1:].contiguous())]


def trained(s, via, rank):
    """(way, losses, gradients, weights, states) after a few steps of AdamW."""
    way, losses = Way(s, SHAPE, via, rate=RATE), []
    for group in way.optimizer.param_groups:
        group["eps"] = ALIKE
    for step in range(STEPS):
        losses.append(way.gradients(batches(s, step, rank)))
        gradients = way.whole(gradients=True)
        way.update()
    return way, losses, gradients, way.whole(), way.states()


@functools.cache
def alone(s):
    return trained(s, "one", None)[1:]


def case(s, via):
    wanted = alone(s)
    way, *found = trained(s, via, s.rank)
    out = {"loss": max(abs(s.mean(f) / w - 1) for f, w in zip(found[0], wanted[0], strict=True))}
    for i, name in enumerate(("gradients", "weights"), 1):
        out[name] = parity.worst(s, found[i], wanted[i])
    out |= {kind: parity.worst(s, found[3][kind], wanted[3][kind]) for kind in wanted[3]}
    out |= {"kinds": list(found[3]), "stored": way.stored(), "built": way.built}
    return out


def main(s):
    return {via: case(s, via) for via in WAYS if via != "one"}
