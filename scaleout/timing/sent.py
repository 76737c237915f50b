"""Seconds of all that a rank sends in a step, by axis, whether compute hides it or not: one collective after another.

`collectives.job` says what is sent; `timing.job` says what of it a step waits for.
"""

from __future__ import annotations

from math import fsum

from scaleout.collectives.job import Sent, traffic
from scaleout.spec.job import Job
from scaleout.timing import machine
from scaleout.timing.machine import Machine


def seconds(job: Job, rank: int | None = None, on: Machine | None = None) -> dict[str, float]:
    """By axis, as `traffic` has them, of a rank of the pipeline (None: the one in the middle). on: a machine of one's
    own, such as a calibrated one. ValueError for a rank that is not there."""
    on = on or machine.from_datasheet(job)
    found = traffic(job, rank)
    return {axis: fsum(_seconds(job, on, axis, sent) for sent in one.sent) for axis, one in found.items()}


def _seconds(job: Job, on: Machine, axis: str, sent: Sent) -> float:
    """Of all collectives of one kind. What replicas exchange may stand under cp, and is known by what it carries."""
    if axis == "pp":
        # The sum of a tied embedding's gradients is a ring of two: half of it there, and half of the sum back.
        return sent.count * (on.hop(sent.size) if sent.collective == "send" else 2 * on.hop(sent.size / 2))
    if sent.carries in ("gradients", "weights"):
        among = on.data if sent.ranks == job.layout.replicas else on.shards
        copies = sent.collective == "all_reduce" and job.layout.zero > 0
        return sent.count * (on.copies if copies else among)(sent.collective, sent.size)
    if sent.carries == "weights again":
        return sent.count * on.kept(sent.collective, sent.size)
    if sent.collective == "send":
        return sent.count * on.turn(sent.size)
    return sent.count * (on.tensor if axis == "tp" else on.context)(sent.collective, sent.size)
