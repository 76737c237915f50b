"""The time that Muon's update adds to a step: the matrices are gathered, and made orthogonal.

Its communication comes after the backward, so that nothing hides it. `spec.muon` counts the arithmetic of
Newton-Schulz, `collectives.zero.muon_messages` the bytes.
"""

from __future__ import annotations

from math import fsum

from scaleout.collectives.zero import muon_messages
from scaleout.spec import checks
from scaleout.spec.job import Job
from scaleout.spec.muon import step_flops
from scaleout.timing import machine


def seconds(job: Job, how: str = "gather") -> dict[str, float]:
    """Seconds by datasheets beside `timing.job`'s step: {"communication", "matmuls"}. how: one of `muon_messages`'.

    The matrix multiplications of Newton-Schulz run at the rate of large ones in 16 bits: of all matrices on every rank
    with "gather" and without ZeRO, else of an n-th of them (where matrices deal out evenly). ValueError as in
    `muon_messages`.
    """
    checks.instance("job", job, Job)
    sixteen = job.other(precision="bf16", main_gradients="none")
    rank, layout = machine.from_datasheet(sixteen), job.layout
    share = 1 if how == "gather" or not layout.zero else layout.replicas
    messages = muon_messages(job.shape, job.recipe, layout, how)
    return {
        "communication": fsum(
            message.count * rank.data(message.collective, message.bytes / message.count) for message in messages
        ),
        "matmuls": step_flops(job.shape) / share / rank.rates.matmul_flop_per_s,
    }
