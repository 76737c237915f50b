"""A step of the view `mesh` as acts: which axis sends when, and how much of it has been sent by then.

Micro-batches go by in rounds. In each round the tensor and context groups communicate, and then stages send to each
other. Replicas send after the last micro-batch, except what ZeRO's stages 2 and 3 send with each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

INSIDE = 12  # acts up to the last micro-batch
MOMENTS = INSIDE + 3  # the acts, and after the last two of replicas the whole step


@dataclass(frozen=True)
class Act:
    """axis: that sends; words: what; shares: of what each axis sends in a step, by the end of it."""

    axis: str
    words: tuple[str, ...]
    shares: dict[str, float]


@lru_cache(maxsize=16)  # the same at each moment
def acts(layout) -> tuple[Act, ...]:
    """Of a step, in their order."""
    inside = ("tp", "cp", "pp") if layout.cp > 1 else ("tp", "pp")
    rounds, result, shares = INSIDE // len(inside), [], dict.fromkeys(("tp", "cp", "dp", "pp"), 0.0)
    with_each = {2: layout.m / (layout.m + 1), 3: 1.0}.get(layout.zero, 0.0)  # of what replicas send
    for turn in range(1, rounds + 1):
        upto = f"micro-batch {ceil(turn * layout.m / rounds)} of {layout.m}"
        for axis in inside:
            shares = shares | {axis: turn / rounds}
            if axis == "tp":
                shares["dp"] = with_each * turn / rounds
            words = _words(axis, layout)
            texts = (*(f"{upto}: {word}" for word in words), f"{upto.removeprefix('micro-batch ')}: {words[-1]}")
            result.append(Act(axis, texts, shares))
    for share, words in zip(((1 + with_each) / 2, 1.0), _closing_words(layout), strict=True):
        shares = shares | {"dp": share}
        result.append(Act("dp", words, shares))
    return tuple(result)


def _words(axis: str, layout) -> tuple[str, ...]:
    if axis == "tp":
        if layout.tp == 1:
            return ("through the blocks, no communication", "no TP")
        return ("in every block TP ranks exchange activations, forward and backward", "TP, in every block")
    if axis == "cp":
        return ("in every attention CP ranks pass keys and values around", "CP, in every attention")
    if layout.pp == 1:
        return ("there is no other stage", "no PP")
    return ("PP sends activations on, and gradients back", "PP, stage to stage")


def _closing_words(layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if layout.replicas == 1:
        return ("no replica to reduce gradients with", "no DP"), ("the optimizer updates all weights", "the update")
    if layout.zero == 3:
        first = ("gradients were scattered, block by block, in each micro-batch", "scattered in each")
        return first, ("each replica updates its shard; the next step gathers", "each updates its shard")
    first = ("after the last: replicas reduce gradients (DP)", "DP: gradients are reduced")
    if not layout.zero:
        return first, ("after the last: each replica gets the sums (DP)", "DP: each gets the sums")
    return first, ("each updates its shard and gathers the new weights (DP)", "DP: new weights are gathered")


def around(layout, moment: int) -> tuple[Act | None, Act | None]:
    """(the act that has just been, the one that comes); (None, None) for the whole step."""
    if moment == MOMENTS:
        return None, None
    all_acts = acts(layout)
    return (all_acts[moment - 1] if moment else None), (all_acts[moment] if moment < len(all_acts) else None)


def sent_shares(layout, moment: int) -> dict[str, float]:
    """Of what each axis sends in a step, by this moment."""
    last, _ = around(layout, moment)
    return last.shares if last else dict.fromkeys(("tp", "cp", "dp", "pp"), float(moment == MOMENTS))
