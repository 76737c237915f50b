"""What each rank of a job holds, by kind and by moment: the one account that every page, lab and search asks."""

from __future__ import annotations

from functools import lru_cache

from scaleout.memory import mesh
from scaleout.memory.accounts import Account
from scaleout.memory.mesh_peaks import ends_of
from scaleout.spec import checks
from scaleout.spec.job import Job


def accounts(job: Job) -> tuple[Account, ...]:
    """The account of each rank of the pipeline, first to last; all ranks of one stage hold as much as one another."""
    checks.instance("job", job, Job)
    return mesh.accounts(job.shape, job.batch, job.seq, job.recipe, job.layout, job.blocks, context=job.context)


def fullest(job: Job) -> Account:
    """Of these the one with the highest peak."""
    return _fullest(job)[1]


def fullest_rank(job: Job) -> int:
    """The rank of the pipeline that has it; of several the first."""
    return _fullest(job)[0]


@lru_cache(maxsize=64)
def _fullest(job: Job) -> tuple[int, Account]:
    """Of those that may be the one: a page asks for every job that a lever leads to."""
    checks.instance("job", job, Job)
    candidates = (
        (
            end.rank,
            mesh.rank_account(job.shape, job.batch, job.seq, job.recipe, job.layout, end.rank, job.blocks, job.context),
        )
        for end in ends_of(job.layout, job.stages)
    )
    return max(candidates, key=lambda candidate: (candidate[1].peak_bytes, -candidate[0]))
