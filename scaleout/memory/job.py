"""The memory of each rank of a job, by kind and by moment: the account that every page, lab and search uses."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scaleout.memory import mesh
from scaleout.memory.accounts import Account
from scaleout.memory.mesh_peaks import ends_of
from scaleout.memory.states import bucket_bytes
from scaleout.spec import checks
from scaleout.spec.frameworks import fp32_shards
from scaleout.spec.job import Job


def rank_account(job: Job, rank: int = 0) -> Account:
    """The account of one rank of the pipeline; the GPUs of one stage use the same memory."""
    checks.instance("job", job, Job)
    if job.layout.m == 1 or job.layout.pp > 1 or job.recipe.keeps_gradients:
        return _rank_account(job, rank)
    # the second micro-batch finds the gradients of the first; between two steps there are DDP's buckets alone
    account = _rank_account(job.other(gradients="kept"), rank)
    by_units = job.sharded and job.layout.replicas == job.layout.ranks
    buckets = 0 if by_units else bucket_bytes(job.shape, job.recipe, job.layout)
    return replace(account, rest=account.rest | {"gradients": buckets})


def _rank_account(job: Job, rank: int) -> Account:
    account = mesh.rank_account(
        job.shape, job.batch, job.seq, job.recipe, job.layout, rank, job.blocks, job.context, job.replicas
    )
    alone = job.layout.zero == 3 and job.shards > 1 and fp32_shards(job.program, job.recipe)
    return _without_half(account) if alone else account


def _without_half(account: Account) -> Account:
    """Without the shards in 16 bits."""
    shards, offloaded = account.states["weights"], account.host.get("weights", 0)
    moments = {name: _less(kinds, shards) for name, kinds in account.moments.items()}
    less = _less(account.states, shards), _less(account.rest, shards), _less(account.host, offloaded)
    return Account(moments, *less)


def _less(kinds: dict[str, int], size: int) -> dict[str, int]:
    return kinds | {"weights": kinds["weights"] - size} if kinds.get("weights") else kinds


def accounts(job: Job) -> tuple[Account, ...]:
    """The account of each rank of the pipeline, first to last."""
    return tuple(rank_account(job, rank) for rank in range(job.layout.pp))


def fullest(job: Job) -> Account:
    """The account of the rank with the highest peak."""
    return _fullest(job)[1]


def fullest_rank(job: Job) -> int:
    """The rank of the pipeline with the highest peak; of several the first."""
    return _fullest(job)[0]


@lru_cache(maxsize=64)
def _fullest(job: Job) -> tuple[int, Account]:
    """(rank, account) of the highest peak, from the few ranks that can have it: a page needs this for many jobs."""
    checks.instance("job", job, Job)
    candidates = ((end.rank, rank_account(job, end.rank)) for end in ends_of(job.layout, job.stages))
    return max(candidates, key=lambda candidate: (candidate[1].peak_bytes, -candidate[0]))
