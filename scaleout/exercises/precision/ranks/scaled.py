"""Check the lab exercise `scaled-step`: shards of weights on every rank, and an overflow in one rank's shard only.

Eight steps; after each of them weights and scaler are looked at on every rank, so that the first wrong one is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes

LR, MAX_NORM, SCALE, INTERVAL = 0.5, 1.0, 4096.0, 3
CLOSE = 1e-4  # relative to the largest change: a norm is added up in another order, and clip_grad_norm_ adds 1e-6
OWNS = (1400, 1000, 0)  # weights of each rank; the third has none
OVERHEAD = 1000  # bytes that a rank may send to each other one in a step: two numbers, be they wrapped as objects


@dataclass(frozen=True)
class Step:
    """size: of the gradients. bad: what lies in the part of rank `bad_rank`, in place of a number."""

    name: str
    size: float
    bad: float = 0.0
    bad_rank: int = 0


STEPS = (
    Step("small gradients", 1e-6),
    Step("gradients below the limit", 0.01),
    Step("an infinity on rank 1 alone", 0.02, math.inf, 1),
    Step("gradients to be clipped", 0.2),
    Step("a NaN on rank 0 alone", 0.02, math.nan, 0),
    Step("gradients below the limit again", 0.01),
    Step("gradients to be clipped again", 0.15),
    Step("a third good step in a row, of small gradients", 2e-6),
)


def weights(rank: int) -> torch.Tensor:
    """What a rank begins with: small, so that an update in fp16 is told from one in fp32."""
    return 1e-5 * torch.randn(OWNS[rank], generator=torch.Generator().manual_seed(rank))


def gradient(step: Step, rank: int, scale: float) -> torch.Tensor:
    """A rank's part of the scaled gradient, in fp16; the same true gradient for every scale."""
    seed = 10 * STEPS.index(step) + rank
    values = step.size * torch.randn(OWNS[rank], generator=torch.Generator().manual_seed(seed)) * scale
    if step.bad and step.bad_rank == rank:
        values[2] = step.bad
    return values.half()


def stepped(w, parts, rank, scale, unscale=True, clip="all", low=False, clip_first=False) -> torch.Tensor:
    """A rank's weights after a step on gradients `parts` of all ranks, or after one with something wrong in it."""
    unscaled = [(part / scale).float() if low else part.float() / (scale if unscale else 1) for part in parts]
    clipped = [part.float() for part in parts] if clip_first else unscaled
    norm = math.sqrt(sum(float(part.square().sum()) for part in (clipped if clip != "own" else [clipped[rank]])))
    return w - LR * unscaled[rank] * (min(1.0, MAX_NORM / norm) if norm and clip else 1.0)


def updated_scaler(scaler: dict, bad: bool) -> dict:
    """The scaler after a step."""
    if bad:
        return {**scaler, "scale": scaler["scale"] / 2, "good": 0}
    good = scaler["good"] + 1
    full = good == scaler["interval"]
    return {**scaler, "scale": scaler["scale"] * (2 if full else 1), "good": 0 if full else good}


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """Eight steps on this rank: what was seen in each, or what is wrong whatever else it does. Each begins where a
    right one has ended, so that all ranks go on alike."""
    w, scaler = weights(rank), {"scale": SCALE, "good": 0, "interval": INTERVAL}
    seen = []
    for step in STEPS:
        old, old_scaler = w.clone(), dict(scaler)
        parts = [gradient(step, peer, scaler["scale"]) for peer in range(world)]
        with counted() as calls:
            returned = function(w, parts[rank].clone(), scaler, LR, MAX_NORM)
        if returned is ...:
            return wrong("the function returns its ... at once: put your step in its place", "stub")
        place = f"rank {rank} of {world}, {step.name}"
        if step.bad and not calls.calls:
            return wrong(
                f"{place}: it communicated nothing in this step, so the others cannot know. All ranks have to call "
                "the same collectives in each step, whatever is in their shards",
                "told-nobody",
            )
        fault, agree = _looked(w, old, parts, scaler, old_scaler, step, rank)
        seen.append(Seen(place, fault or _sent(calls, world), agree))
        w.copy_(old if step.bad else stepped(old, parts, rank, old_scaler["scale"]))
        scaler.update(updated_scaler(old_scaler, bool(step.bad)))
    return seen


def _looked(w, old, parts, scaler: dict, old_scaler: dict, step: Step, rank: int) -> tuple[Fault, frozenset[str]]:
    """What is to be seen of weights and scaler after a step, and the mistakes that lead to it."""
    bad = bool(step.bad)
    fault = _left_out(w, old, step, rank) if bad else _applied(w, old, parts, old_scaler["scale"], rank)
    scaled = _scaler(scaler, old_scaler, bad)
    values = {slip: old if bad else value for slip, value in _known(old, parts, rank, old_scaler["scale"])}
    size = _size(old, parts, rank, old_scaler["scale"]) if not bad else 0.0
    agree = {slip for slip, value in values.items() if close(w, value, size)}
    return fault or scaled, frozenset(() if scaled else agree)


def _left_out(w, old, step: Step, rank: int) -> Fault:
    if torch.equal(w, old):
        return None
    if not w.isfinite().all():
        return "stepped-on-it", (
            "its weights are not finite now: a step whose gradients have an infinity or a NaN must be skipped"
        )
    if rank != step.bad_rank:
        return "own-flag", (
            f"its weights have changed. Its own shard was finite, but that of rank {step.bad_rank} was not: if "
            "one rank skips a step, all have to"
        )
    return "zeroed", ("its weights have changed: skip the whole step, also for the weights whose gradients are finite")


def _size(old, parts, rank: int, scale: float) -> float:
    """The largest change that a right step makes on this rank."""
    right = stepped(old, parts, rank, scale)
    return max(float((right - old).abs().max()), 1e-12) if len(old) else 0.0


def _applied(w, old, parts, scale: float, rank: int) -> Fault:
    """What is to be seen of the weights after a step that is to be made."""
    right = stepped(old, parts, rank, scale)
    if close(w, right, _size(old, parts, rank, scale)):
        return None
    if torch.equal(w, old):
        return "not-in-place", (
            "its weights have not changed. Change them in place, as with weights -= ...; or did you skip a step that "
            "should be applied?"
        )
    if not w.isfinite().all():
        return "not-finite", "its weights are not finite now, although all gradients are: do you divide by zero?"
    return "wrong-weights", (
        f"its weights are off by up to {float((w - right).abs().max()):.2g}, and the step should change them by up to "
        f"{float((right - old).abs().max()):.2g}"
    )


WORDS = {
    "in-fp16": "gradients were divided by the scale in fp16, where small ones become zero again or lose bits: "
               "convert first, gradient.float()",
    "clip-before-unscale": "gradients were clipped while the scale was still on them: unscale, then clip",
    "own-norm": "gradients were clipped by the norm of this rank's shard: use the norm over all ranks",
    "not-unscaled": "gradients still have the scale on them: divide by it",
    "not-unscaled-whole": "gradients still have the scale on them: divide by it",
    "not-clipped": "gradients were not clipped to `most`",
    "uphill": "its weights went the other way: subtract",
}  # fmt: skip


def _known(old, parts, rank: int, scale: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights that mistakes lead to."""
    yield "in-fp16", stepped(old, parts, rank, scale, low=True)
    yield "clip-before-unscale", stepped(old, parts, rank, scale, clip_first=True)
    yield "own-norm", stepped(old, parts, rank, scale, clip="own")
    yield "not-unscaled", stepped(old, parts, rank, scale, unscale=False)
    yield "not-unscaled-whole", stepped(old, parts, rank, scale, unscale=False, clip=None)
    yield "not-clipped", stepped(old, parts, rank, scale, clip=None)
    yield "uphill", 2 * old - stepped(old, parts, rank, scale)


def close(actual: torch.Tensor, expected: torch.Tensor, size: float) -> bool:
    """Within CLOSE of the largest change of a step, and within fp32's own rounding of the weights."""
    return actual.shape == expected.shape and bool(
        ((actual - expected).abs() <= CLOSE * size + 4e-7 * expected.abs()).all()
    )


def _scaler(scaler: dict, old: dict, bad: bool) -> Fault:
    """What is wrong with the scaler where the weights are right."""
    right = updated_scaler(old, bad)
    actual = {key: _number(scaler.get(key)) for key in right}
    if actual == right:
        return None
    scale, good = actual["scale"], actual["good"]
    if bad and actual == updated_scaler(old, False):
        return "counted-as-good", (
            "its scaler counted this step as a good one. With an infinity or a NaN anywhere, all ranks skip the step"
        )
    if bad and scale == old["scale"]:
        return "not-halved", "the scale has not changed: halve it when a step is skipped, on all ranks"
    if bad and scale == right["scale"]:
        return "good-goes-on", f"`good` is {good:g} after an overflow: it counts good steps in a row, so set it to 0"
    if not bad and scale == old["scale"] and right["scale"] != scale:
        return "not-doubled", f"there were {INTERVAL} good steps in a row, and the scale has not changed: double it"
    if not bad and scale == right["scale"] != old["scale"]:
        return "count-goes-on", f"the scale was doubled and `good` is {good:g}: start the count again at 0"
    if not bad and scale == old["scale"]:
        return "not-counted", f"`good` is {good:g} after a good step, and should be {right['good']}"
    return "wrong-scale", f"the scale is {scale:g} after {old['scale']:g}, and should be {right['scale']:g}"


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _sent(calls: counted, world: int) -> Fault:
    """What is wrong with how a right step communicated."""
    if not calls.calls:
        return "unseen", "weights and scaler are right, but you called no collective"
    if calls.sent > OVERHEAD * (world - 1):
        return "sent-too-much", (
            f"weights and scaler are right, but this rank sent {calls.sent:,.0f} bytes: send only a "
            "flag and a sum of squares, and no gradients"
        )
    return None


CHECK = Check(
    "scaleout.exercises.precision.ranks",
    "sharded_step",
    (2, 3),
    rank_report,
    by_mistakes(WORDS),
    wait_seconds=5,
    right="right on 2 and 3 processes: all ranks skip two steps, apply the others, and have one scale",
)
