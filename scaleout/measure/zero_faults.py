"""A silent fault of ZeRO: each rank clips its shard by the norm of that shard."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from scaleout.lab import zero as lab_zero
from scaleout.measure.zero import make
from scaleout.parallel.zero import assert_one_norm
from scaleout.parallel.zero_ways import HAND, ZeroWay

STEPS = 5
USUAL = 1.0  # what is clipped to where --clip is not given


def refuse(s, o) -> None:
    """ValueError, in one line, if the fault would show nothing."""
    if s.world == 1:
        raise ValueError("--fault is about several ranks: use torchrun --nproc-per-node 2")
    if o.via not in HAND:
        raise ValueError(f"--fault clip is shown by hand: use --via {', '.join(HAND)}")
    if o.optimizer != "adamw":
        raise ValueError("--fault clip is shown with AdamW: leave out --optimizer muon")


def show(s, o, batches) -> None:
    """Train a few steps with the fault, and the same steps clipped by the whole norm, and print both.
    batches(step): those of this rank, one per micro-batch."""
    sick, well = (make(s, replace(o, clip=None), o.via) for _ in range(2))
    limit, rows, refusal, start = o.clip or USUAL, [], "", well.whole()
    for step in range(STEPS):
        losses = [s.mean(way.gradients(batches(step))) for way in (sick, well)]
        norm = nn.utils.clip_grad_norm_(sick.hand.parameters(), limit).item()  # what one writes without ranks
        well.hand.clip(limit)
        norms = s.gathered(norm)
        refusal = refusal or caught(s, norm)
        for way in (sick, well):
            way.update()
        rows.append(
            {
                "losses": losses,
                "norms": norms,
                "norm": math.hypot(*norms),
                "copies": spread(s, sick),
                "apart": distance(sick.whole(), well.whole()) / distance(start, well.whole()),
            }
        )
    s.say("\n" + lab_zero.fault(rows, limit, refusal))


def caught(s, norm: float) -> str:
    """What the assertion says of this rank's norm; "" where all have the same."""
    try:
        assert_one_norm(norm, s.device)
    except RuntimeError as error:
        return str(error)
    return ""


def distance(tensors: dict, references: dict) -> float:
    """Of two sets of weights, as two points."""
    return math.sqrt(sum((tensors[name] - references[name]).double().square().sum().item() for name in tensors))


def spread(s, way: ZeroWay) -> float | None:
    """Largest difference between the ranks' copies of a weight; None in stage 3, which has no copies."""
    if way.via == "stage-3":
        return None
    worst = 0.0
    for p in way.model.parameters():
        extremes = torch.stack([p.detach(), -p.detach()])
        torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX)
        worst = max(worst, extremes.sum(0).max().item())
    return worst
