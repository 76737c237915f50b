"""Recomputation on the ranks of one group: all-gathers of a step under fully_shard, gradients against one process."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from scaleout.measure import recompute as measure
from scaleout.memory import recompute
from scaleout.memory.activations import Sizes
from scaleout.parallel import parity, recompute_ways
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

SHAPE, BATCH, SEQ = Shape(4, 24, 4, 64, max_seq=12), 2, 12
O = SimpleNamespace(  # noqa: E741
    shape=SHAPE,
    recipe=Recipe("fp32"),
    sizes=Sizes(SHAPE, BATCH, SEQ, Recipe("fp32"), Layout()),
    lr=0.1,
    seed=0,
)


def policies(z):
    return {
        "none": recompute.none(z),
        "full": recompute.full(z),
        "every second": recompute.every_kth(z, 2),
        "segments of two": recompute.segments(z, 2),
        "one segment": recompute.segments(z, 4),
        "the core": recompute.selective(z, recompute.core(z)),
    }


def batch(world):
    tokens = torch.randint(64, (world * BATCH, SEQ + 1), generator=torch.Generator().manual_seed(7))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def main(s):
    """{(policy, via): (messages of the forward, of the backward, largest relative error of a gradient)}."""
    whole, found = batch(s.world), {}
    share = tuple(part[s.rank * BATCH : (s.rank + 1) * BATCH] for part in whole)
    alone = measure.make(s, O, recompute.none(O.sizes), "torch").model
    alone(*whole).backward()
    wanted = {str(i): p.grad for i, p in enumerate(alone.parameters())}
    for name, policy in policies(O.sizes).items():
        for via in recompute_ways.VIAS:
            *orders, model = measure.messages(s, O, policy, share, via)
            own = {str(i): p.grad.full_tensor() for i, p in enumerate(model.parameters())}
            found[name, via] = *orders, parity.worst(s, own, wanted)
    return found


class Again(nn.Module):
    """A unit that is made again from outside."""

    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def forward(self, x):
        return checkpoint(self.unit, x, use_reentrant=True)


def around(s):
    """{prefetch set by hand: gathers of a step} of four units of `fully_shard`, each within a reentrant checkpoint."""
    found = {}
    for by_hand in (False, True):
        units = [fully_shard(nn.Linear(4, 4)) for _ in range(4)]
        for unit, following in pairwise(units) if by_hand else ():
            unit.set_modules_to_forward_prefetch([following])
        model = fully_shard(nn.Sequential(*map(Again, units)))
        with measure.Messages() as seen:
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        found[by_hand] = seen.order.count("G")
    return found
