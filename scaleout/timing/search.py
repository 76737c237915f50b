"""All layouts of a model on a cluster: which fit, how long their steps take, and why each is not the best.

`search` prices every way to cut a job's model and its batch: degrees of tp, cp, pp and dp, ZeRO, and what is
recomputed, each with the micro-batch and the chunks that suit it best; `cut` prices one of them. Each is a job.
Closed forms (`timing.quick`) find the leaders; these, the best, and what `cut` gives have the seconds of `timing.job`
itself (`Plan.exact`). Layouts within the band of the fastest are equal. The best is the simplest of them that none of
them dominates (`Plan.dominates`): not slower, not larger, and clearly less of one. Without tp, cp and pp nothing of a
model has to be cut, so that where such a layout is equal, it is compared with others of its kind only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import fsum
from typing import Any

from scaleout.memory import allocator
from scaleout.spec import checks, frameworks, job_checks, mesh
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.slices import check_tensor, divides
from scaleout.timing.band import Band, band
from scaleout.timing.plan import Plan, exact
from scaleout.timing.quick import RECOMPUTE, TOLERANCE, Pricer, Way

BATCHES = (1, 2, 4, 8)  # sequences of a micro-batch
LEADERS = 16  # of those within the band, the fastest: with the seconds of the whole model
ALIKE = 0.01  # of a cut's chunks and micro-batches: steps that differ by less are taken for as fast


@dataclass(frozen=True)
class Ranking:
    """plans: the fastest of each cut that fits, the fastest cut first; over: of those that do not fit, the smallest
    first. best: the simplest within the band of the fastest that none of these dominates, None where nothing fits; in
    `plans` it stands for its cut, which may be faster with other chunks. fastest: seconds of the fastest layout, in
    `plans` or not; infinite where nothing fits. refused: how many cuts there cannot be, by the reason. across: nothing
    fits with tensor parallelism inside a node, so that it goes across."""

    plans: tuple[Plan, ...]
    over: tuple[Plan, ...]
    best: Plan | None
    band: Band
    refused: dict[str, int]
    fastest: float
    across: bool = False

    @property
    def limit(self) -> float:
        """Seconds up to which the band does not tell a step from the fastest; 0 where nothing fits."""
        return (1 + self.band.share) * self.fastest if self.plans else 0.0

    def equal(self, plan: Plan) -> bool:
        """Whether the band does not tell a plan from the fastest."""
        return plan.fits and plan.seconds <= self.limit

    def reason(self, plan: Plan) -> str:
        """Why this one loses against the best: one reason, with its amount; "" for the best itself."""
        if not plan.fits:
            return f"does not fit by {max(plan.over / 1e9, 0.1):.{0 if plan.over >= 1e9 else 1}f} GB"
        if plan.cannot:
            return plan.cannot.split(":")[0]
        if self.best is None or plan == self.best:
            return ""
        return "equal within the band" if self.equal(plan) else plan.loses_by(self.best)


def search(job: Job, sequences: int | None = None, *, usable: int | None = None, most_cp: int = 16) -> Ranking:
    """Every cut of the job's model on its cluster, for as many sequences in a step (None: as it has).

    usable: bytes that tensors may take on a GPU, None for `allocator.usable`. most_cp: the largest degree of context
    parallelism that is tried. Of the job's own layout, micro-batch and recomputation nothing stays. ValueError for a
    job whose gradients do not last from micro-batch to micro-batch.
    """
    checks.instance("job", job, Job)
    if not job.recipe.keeps_gradients or job.recipe.adapter != "none":
        raise ValueError(
            'micro-batches accumulate gradients: use a recipe with gradients="kept" or main_gradients, and no adapter'
        )
    checks.whole("most_cp", most_cp)
    ask = _search(job, sequences, usable)
    inside = ask.run(most_cp, False)
    if inside.best is None and job.cluster.nodes > 1:
        wide = ask.run(most_cp, True)
        return wide if wide.best else inside
    return inside


def cut(
    job: Job,
    sequences: int | None = None,
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    zero: int = 1,
    checkpointing: str = "none",
    chunks: int = 0,
    usable: int | None = None,
) -> Plan:
    """The plan of one cut, whose dp is what is left. chunks: of each pipeline stage, if they can be so many; 0 for the
    fastest. ValueError, in one line with what would work, where it cannot be on these GPUs; one that does not fit them
    is a plan, and one that its framework cannot run."""
    checks.one_of("checkpointing", checkpointing, RECOMPUTE)
    check_tensor(job.shape, tp)
    usual: dict[str, Any] = frameworks.usual(job.program, tp)
    ask, layout = _search(job, sequences, usable), Layout(tp=tp, cp=cp, pp=pp, zero=zero, **usual)
    gpus, ranks = job.cluster.ranks, tp * cp * pp
    job_checks.sequence(job, layout)
    mesh.filled(job.shape.layers, pp)
    if gpus % ranks:
        nearest = job_checks.nearest(job, layout)
        raise ValueError(
            f"tp {tp} x cp {cp} x pp {pp} does not divide {gpus:,} GPUs: the nearest that works is tp "
            f"{nearest.tp}, cp {nearest.cp}, pp {nearest.pp}"
        )
    dp = gpus // ranks
    if ask.sequences % dp or ask.sequences < dp * pp:
        least = max(dp * pp, round(ask.sequences / dp) * dp)
        stages, enough = (f" of {pp} stages", f", at least {dp * pp:,}") if pp > 1 else ("", "")
        raise ValueError(
            f"{dp:,} replicas{stages} take a multiple of {dp:,} sequences{enough}: use {least:,}, not {ask.sequences:,}"
        )
    base = replace(layout, dp=dp, micro_batches=ask.sequences // dp)
    ways = list(ask.ways(base))
    kept = [way for way in ways if way.job.layout.chunks == chunks]
    return exact(ask.choose(kept or ways, checkpointing), ask.usable)


@lru_cache(maxsize=4)
def _search(job: Job, sequences: int | None, usable: int | None) -> _Search:
    """The last ones are kept: a page asks for one cut after another of the job that it searched."""
    return _Search(job, sequences, usable)


class _Search:
    """A job's layouts, priced."""

    def __init__(self, job: Job, sequences: int | None, usable: int | None) -> None:
        self.job = job
        self.sequences = job.sequences if sequences is None else sequences
        self.usable = allocator.usable(job.device.memory_bytes) if usable is None else usable
        checks.whole("sequences", self.sequences)
        checks.whole("usable", self.usable)
        self.price = Pricer(job)
        self.refused: dict[tuple, str] = {}

    def run(self, most_cp: int, across_nodes: bool) -> Ranking:
        """across_nodes: with tensor parallelism across two nodes."""
        refused: Counter[str] = Counter()
        fit: list[Plan] = []
        large: list[Plan] = []
        for base in self._cuts(most_cp, across_nodes, refused):
            ways = list(self.ways(base))
            if not ways:
                refused["no micro-batch of the job's kind"] += 1
            for checkpointing in RECOMPUTE if ways else ():
                if reason := self.cannot(ways[0], checkpointing):
                    refused[reason.split(":")[0]] += 1
                    continue
                plan = self.choose(ways, checkpointing)
                (fit if plan.fits else large).append(plan)
        fit.sort(key=lambda plan: plan.seconds)
        large.sort(key=lambda plan: plan.bytes)
        return self._results(fit, large, dict(refused), across_nodes)

    def _results(self, fit: list[Plan], large: list[Plan], refused: dict[str, int], across_nodes: bool) -> Ranking:
        """The ranking, with the exact seconds of the leaders and the best of those within the band."""
        lead: list[Plan] = []
        spread, fastest = band(self.job), float("inf")
        while fit and (
            fit[0].seconds <= (1 + TOLERANCE) * fastest
            or (len(lead) < LEADERS and fit[0].seconds <= (1 + spread.share) * fastest)
        ):
            lead.append(exact(fit.pop(0)))
            fastest = min(fastest, lead[-1].seconds)
        plans = [*lead, *fit]
        best = self._best(plans, (1 + spread.share) * fastest)
        plans.sort(key=lambda plan: plan.seconds)
        if best is None and large:
            large[0] = exact(large[0], self.usable)
        return Ranking(tuple(plans), tuple(large), best, spread, refused, fastest, across_nodes)

    def _best(self, plans: list[Plan], limit: float) -> Plan | None:
        """The simplest that takes no longer than the limit and is not dominated. In `plans` it takes the place of its
        own cut, and what it was compared with has exact seconds."""
        equal = [plan for plan in plans if plan.seconds <= limit]
        for _, alike in groupby(sorted(equal, key=lambda plan: plan.simple), lambda plan: plan.simple):
            own = [(way, plan) for plan in alike for way in self._alternatives(plan, limit)]
            for way, plan in sorted(own, key=lambda pair: (pair[0].layout.stages, pair[0].seconds)):
                best = exact(way, self.usable)
                if not best.fits or best.seconds > limit:
                    continue
                if not (self._dominated(best, plans) or self._dominated(best, [way for way, _ in own])):
                    plans[plans.index(plan)] = best
                    return best
        return None

    def _alternatives(self, plan: Plan, limit: float) -> list[Plan]:
        """The plan's cut with each micro-batch and number of chunks that fits and may take no longer than the limit."""
        base = replace(plan.layout, chunks=1, schedule="1f1b")
        each = (self.choose([way], plan.checkpointing) for way in self.ways(base))
        return [one for one in each if one.fits and one.seconds <= (1 + TOLERANCE) * limit]

    def _dominated(self, plan: Plan, others: list[Plan]) -> bool:
        """Whether one of the others dominates the plan; those that seem to become exact. A plan that does not cut the
        model is compared with others that do not."""
        for i, other in enumerate(others):
            if (plan.axes or not other.axes) and other.dominates(plan):
                others[i] = other if other.exact else exact(other)
                if others[i].dominates(plan):
                    return True
        return False

    def choose(self, ways: list[Way], checkpointing: str) -> Plan:
        """Of a cut's ways the fastest that fits; of those as fast the one with the fewest chunks, then the largest
        micro-batch. Where none fits the smallest, of several as small the fastest."""
        size = {way: self.price.peak(way, checkpointing) for way in ways}
        least = min(size.values())
        fitting = [way for way in ways if size[way] <= max(least, self.usable)]
        parts = {way: self.price.parts(way, checkpointing) for way in fitting}
        seconds = {way: fsum(shares.values()) for way, shares in parts.items()}
        fastest = min(seconds.values())
        equal = [way for way in fitting if seconds[way] <= (1 + ALIKE) * fastest]
        way = min(equal, key=lambda way: (way.job.layout.chunks, -way.job.batch, seconds[way]))
        return Plan(
            self._job(way, checkpointing),
            size[way],
            size[way] - self.usable,
            way.rank.crossing,
            seconds[way],
            parts[way],
            cannot=self.cannot(way, checkpointing),
        )

    def cannot(self, way: Way, checkpointing: str) -> str:
        """Why the framework cannot run it, or "": the same for all micro-batches and chunks, and all degrees above 1
        but the pipeline's, whose stages need not be even."""
        layout = way.job.layout
        key = layout.tp > 1, layout.cp > 1, layout.replicas > 1, layout.pp, layout.zero, checkpointing
        if key not in self.refused:
            self.refused[key] = frameworks.refusal(self._job(way, checkpointing))
        return self.refused[key]

    def _job(self, way: Way, checkpointing: str) -> Job:
        return replace(way.job, recipe=self.price.recipe(way.job.layout, checkpointing))

    def ways(self, base: Layout, *batches: int) -> Iterator[Way]:
        """A cut with each of these micro-batches (none: of BATCHES), and each number of chunks."""
        sequences = self.sequences // base.dp
        for batch in batches or BATCHES:
            m = sequences // batch
            if sequences % batch or m < base.pp:
                continue
            options: list[dict] = [{}] + [
                {"chunks": v, "schedule": "interleaved"}
                for v in chunks(self.job.shape.layers, base.pp)
                if base.pp > 1 and m % (m // base.pp) == 0
            ]
            for option in options:
                try:
                    yield self.price.way(replace(base, micro_batches=m, **option), batch)
                except ValueError:  # of the job's own replicas: hybrid sharding that does not divide these
                    continue

    def _cuts(self, most_cp: int, across_nodes: bool, refused: Counter[str]) -> Iterator[Layout]:
        """Degrees and ZeRO stages that fill the cluster with the model."""
        job, gpus, node = self.job, self.job.cluster.ranks, self.job.cluster.gpus_per_node
        for tp in checks.divisors(min(gpus, node * (1 + across_nodes))):
            if gpus % tp:
                continue
            if not divides(job.shape, tp):
                refused[f"tp {tp} does not divide the model"] += 1
                continue
            for cp in checks.divisors(min(gpus // tp, most_cp)):
                if gpus % (tp * cp):
                    continue
                if job.seq % (2 * cp * tp if cp > 1 else tp):
                    refused[f"cp {cp} does not divide the sequence"] += 1
                    continue
                for pp in checks.divisors(gpus // (tp * cp)):
                    if pp > 1 and not even(job.shape.layers, pp):
                        refused["more stages than blocks" if pp > job.shape.layers else "uneven stages"] += 1
                        continue
                    yield from self._replicated(tp, cp, pp, refused)

    def _replicated(self, tp: int, cp: int, pp: int, refused: Counter[str]) -> Iterator[Layout]:
        dp = self.job.cluster.ranks // (tp * cp * pp)
        usual: dict[str, Any] = frameworks.usual(self.job.program, tp)
        if self.sequences % dp:
            refused["the sequences do not fall to the replicas"] += 1
            return
        if pp > 1 and self.sequences // dp < pp:
            refused["fewer sequences than stages"] += 1
            return
        for zero in (0,) if dp * cp == 1 else (0, 1, 3) if pp == 1 else (0, 1):
            yield Layout(
                dp=dp,
                tp=tp,
                cp=cp,
                zero=zero,
                pp=pp,
                micro_batches=self.sequences // dp,
                **usual,
            )


def even(layers: int, stages: int) -> bool:
    """Whether all stages have as many blocks, or the first and the last one fewer: these have the embedding and the
    head, and stages in a round wait for the longest of them."""
    return stages <= layers and not (layers % stages and (layers + 2) % stages)


def chunks(layers: int, pp: int) -> tuple[int, ...]:
    """Numbers of chunks, above 1, that leave whole numbers of blocks on each of so many ranks."""
    return tuple(v for v in range(2, layers // pp + 1) if even(layers, v * pp))
