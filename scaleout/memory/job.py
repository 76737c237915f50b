"""What each rank of a job holds, by kind and by moment: the one account that every page, lab and search asks."""

from __future__ import annotations

from scaleout.memory import mesh
from scaleout.memory.accounts import Account
from scaleout.spec import checks
from scaleout.spec.job import Job


def accounts(job: Job) -> tuple[Account, ...]:
    """The account of each rank of the pipeline, first to last; all ranks of one stage hold as much as one another."""
    checks.instance("job", job, Job)
    return mesh.accounts(
        job.shape, job.batch, job.seq, job.recipe, job.layout, job.blocks, context=job.context
    )


def fullest(job: Job) -> Account:
    """Of these the one with the highest peak."""
    found = accounts(job)
    return found[mesh.fullest(found)]
