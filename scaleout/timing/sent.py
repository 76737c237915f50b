"""The time of all communication of a rank in a step, by axis, hidden or not: one collective after another.

`collectives.job` has the bytes; `timing.job` has the exposed part.
"""

from __future__ import annotations

from math import fsum

from scaleout.collectives.job import Sent, traffic
from scaleout.spec.job import Job
from scaleout.timing.machine import Machine, from_datasheet


def seconds(job: Job, rank: int | None = None, machine: Machine | None = None) -> dict[str, float]:
    """By axis, as `traffic` has them, of a rank of the pipeline (None: the one in the middle). machine: one of one's
    own, such as a calibrated one. ValueError for a rank that is not there."""
    machine = machine or from_datasheet(job)
    axes = traffic(job, rank)
    return {axis: fsum(_seconds(job, machine, axis, sent) for sent in messages.sent) for axis, messages in axes.items()}


def _seconds(job: Job, machine: Machine, axis: str, sent: Sent) -> float:
    """Seconds of all collectives of one kind. What replicas exchange may stand under cp: what it carries tells it."""
    if axis == "pp":
        # The sum of a tied embedding's gradients is a ring of two: half of it there, and half of the sum back.
        return sent.count * (machine.hop(sent.size) if sent.collective == "send" else 2 * machine.hop(sent.size / 2))
    if sent.carries in ("gradients", "weights"):
        among = machine.data if sent.ranks == job.layout.replicas else machine.shards
        copies = sent.collective == "all_reduce" and job.layout.zero > 0
        return sent.count * (machine.copies if copies else among)(sent.collective, sent.size)
    if sent.carries == "weights again":
        return sent.count * machine.keepers(sent.collective, sent.size)
    if sent.collective == "send":
        return sent.count * machine.turn(sent.size)
    return sent.count * (machine.tensor if axis == "tp" else machine.context)(sent.collective, sent.size)
