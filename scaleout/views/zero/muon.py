"""Muon in the view `zero`: the blocks' matrices have one average, and their momentum is gathered whole, because a shard
of a matrix cannot be orthogonalized alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import fsum

from scaleout.collectives.zero import Message, muon_messages
from scaleout.memory.zero_frames import BORROWED, Frame
from scaleout.spec.muon import matrix_parameters
from scaleout.timing import muon
from scaleout.timing.job import Step

GATHER = "gather the momentum"  # of each matrix, to all ranks, in 16 bits


def adamw_share(setting) -> float:
    """Share of the parameters that AdamW updates, with a second average: embedding, head, norms."""
    return 1 - matrix_parameters(setting.shape) / setting.parameters


def messages(setting) -> tuple[Message, ...]:
    """What the update communicates in addition to the step."""
    return muon_messages(setting.shape, setting.recipe, setting.layout)


def frames(plain: tuple[Frame, ...], pieces: float) -> Iterator[Frame]:
    """A step with the all-gathers in its update. pieces: their volume in N."""
    ranks, extra = len(plain[0].held["momentum"]), 0.0
    for frame in plain:
        yield replace(frame, sent=frame.sent + extra)
        if frame.phase == "update" and pieces:
            for shard in range(ranks):
                extra = pieces * (shard + 1) / ranks
                held_states = frame.held | {"momentum": _lent(frame.held["momentum"], shard)}
                yield Frame(GATHER, held_states, frame.sent + extra, frame.crossed, ("momentum", shard, "out"))


def _lent(grid, shard: int):
    """A shard of the momentum on every rank."""
    return tuple(tuple(state or BORROWED * (s == shard) for s, state in enumerate(row)) for row in grid)


def time(setting, plain: Step) -> Step:
    """A step with Muon's matmuls in its update, and its communication exposed."""
    muon_seconds = muon.seconds(setting.job)
    parts = plain.parts | {
        "update": plain.parts["update"] + muon_seconds["matmuls"],
        "exposed data": plain.parts["exposed data"] + muon_seconds["communication"],
    }
    communication = plain.communication + muon_seconds["communication"]
    return replace(plain, parts=parts, seconds=fsum(parts.values()), communication=communication)
