"""All layouts of a model on a cluster: which fit, how long their steps take, and why each but the best loses.

A `Job` is what is trained and on what. `plans` prices every way to cut it: degrees of tp, cp and pp, ZeRO, and what is
recomputed, each with the micro-batch and the chunks that suit it best; `cut` prices one of them. Seconds are those of
`timing.mesh` by the closed form of its pipeline (`mesh_plan`), bytes those of `memory.mesh_peaks`; `MeshTime` and
`Account` of one plan are for who asks (`Job.time`, `Job.accounts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from scaleout.spec import checks, mesh
from scaleout.spec.layout import Layout, within
from scaleout.spec.slices import check_tensor, divides
from scaleout.timing.mesh_plan import RECOMPUTE, Job, Plan, Pricer, Way

BATCHES = (1, 2, 4)  # sequences of a micro-batch
CHUNKS = (2, 3, 4, 5, 6, 7, 8)  # of a rank; and as many as give each stage one block
ALIKE = 0.01  # steps that differ by less are taken for as fast


@dataclass(frozen=True)
class Found:
    """plans: those that fit, the fastest first; over: those that do not, the smallest first. refused: how many cuts
    there cannot be, by the reason."""

    plans: tuple[Plan, ...]
    over: tuple[Plan, ...]
    refused: dict[str, int]

    @property
    def best(self) -> Plan | None:
        """The fastest that fits; of those that are as fast (ALIKE) the one cut along the fewest axes."""
        if not self.plans:
            return None
        near = [one for one in self.plans if one.seconds <= (1 + ALIKE) * self.plans[0].seconds]
        return min(near, key=lambda one: (one.axes, one.seconds))

    def reason(self, plan: Plan) -> str:
        """Why this one loses against the best: one reason, with its amount; "" for the best itself."""
        if not plan.fits:
            return f"does not fit by {max(plan.over / 1e9, 0.1):.{0 if plan.over >= 1e9 else 1}f} GB"
        best = self.best
        if plan is best:
            return ""
        if plan.seconds <= (1 + ALIKE) * best.seconds:
            return "as fast as the best, cut along more axes" if plan.axes > best.axes else "as fast as the best"
        return plan.loses_by(best)


def plans(job: Job) -> Found:
    """Every cut of the job's model on its cluster. A cut is degrees of tp, cp, pp and dp, a ZeRO stage, and what is
    recomputed: of its micro-batches and chunks the fastest that fit, or where none fit the smallest."""
    refused: Counter[str] = Counter()
    price = Pricer(job)
    fit, over = [], []
    for base in _cuts(job, refused):
        ways = [price.way(layout, batch) for layout, batch in _ways(job, base)]
        for checkpointing in RECOMPUTE:
            plan = _choose(price, ways, checkpointing)
            (fit if plan.fits else over).append(plan)
    fit.sort(key=lambda plan: (plan.seconds, plan.axes))
    over.sort(key=lambda plan: plan.bytes)
    return Found(tuple(fit), tuple(over), dict(refused))


def cut(job: Job, tp: int = 1, cp: int = 1, pp: int = 1, zero: int = 1, checkpointing: str = "none") -> Plan:
    """The plan of one cut, whose dp is what is left. ValueError, in one line with what would work, where it cannot be
    on these GPUs; one that does not fit them is a plan."""
    checks.one_of("checkpointing", checkpointing, RECOMPUTE)
    asked = Layout(tp=tp, cp=cp, pp=pp, zero=zero)
    asked = replace(asked, sequence_parallel=tp > 1)
    gpus, whole = job.cluster.ranks, tp * cp * pp
    check_tensor(job.shape, tp)
    within(asked, job.seq)
    mesh.blocks(job.shape.layers, pp)
    if gpus % whole:
        near = mesh.nearest(job.shape, asked, gpus)
        raise ValueError(f"tp {tp} x cp {cp} x pp {pp} does not divide {gpus:,} GPUs: the nearest that works is tp "
                         f"{near.tp}, cp {near.cp}, pp {near.pp}")  # fmt: skip
    dp = gpus // whole
    if job.sequences % dp or job.sequences < dp * pp:
        least = max(dp * pp, round(job.sequences / dp) * dp)
        stages, enough = (f" of {pp} stages", f", at least {dp * pp:,}") if pp > 1 else ("", "")
        raise ValueError(f"{dp:,} replicas{stages} take a multiple of {dp:,} sequences{enough}: use {least:,}, "
                         f"not {job.sequences:,}")  # fmt: skip
    base = replace(asked, dp=dp, micro_batches=job.sequences // dp)
    price = Pricer(job)
    return _choose(price, [price.way(*way) for way in _ways(job, base)], checkpointing)


def _choose(price: Pricer, ways: list[Way], checkpointing: str) -> Plan:
    """The fastest that fits; where none does the smallest, of several as small the fastest. ways: the smallest
    micro-batches first, for where these do not fit larger ones do not."""
    best, sized = None, []
    for _, some in groupby(ways, key=lambda way: way.batch):
        some = list(some)
        best = _fastest(price, some, checkpointing, best, sized)
        if best is None:
            break
    if best is not None:
        return best
    (size, rank), way = min(sized, key=lambda one: one[0][0])
    return price.plan(way, checkpointing, size, rank)


def _fastest(price: Pricer, ways: list[Way], checkpointing: str, best: Plan | None, sized: list) -> Plan | None:
    """Of these ways and the best so far. What takes longer without its replicas' messages than the best in all need not
    be priced. sized: where the bytes of what does not fit are kept."""
    for least, way in sorted(((price.least(way, checkpointing), way) for way in ways), key=lambda one: one[0]):
        if best is not None and least > best.seconds:
            break
        size, rank = peak = price.peak(way, checkpointing)
        if size > price.job.room:
            sized.append((peak, way))
            continue
        plan = price.plan(way, checkpointing, size, rank)
        best = plan if best is None or plan.seconds < best.seconds else best
    return best


def _cuts(job: Job, refused: Counter[str]) -> Iterator[Layout]:
    """Degrees and ZeRO stages that fill the cluster with the model."""
    gpus, node = job.cluster.ranks, job.cluster.gpus_per_node
    for tp in checks.divisors(min(gpus, 2 * node)):
        if gpus % tp:
            continue
        if not divides(job.shape, tp):
            refused[f"tp {tp} does not divide the model"] += 1
            continue
        for cp in checks.divisors(min(gpus // tp, job.most_cp)):
            if gpus % (tp * cp):
                continue
            if job.seq % (2 * cp * tp if cp > 1 else tp):
                refused[f"cp {cp} does not divide the sequence"] += 1
                continue
            for pp in checks.divisors(gpus // (tp * cp)):
                if pp > job.shape.layers:
                    refused["more stages than blocks"] += 1
                    continue
                yield from _replicated(job, tp, cp, pp, refused)


def _replicated(job: Job, tp: int, cp: int, pp: int, refused: Counter[str]) -> Iterator[Layout]:
    dp = job.cluster.ranks // (tp * cp * pp)
    if job.sequences % dp:
        refused["the sequences do not fall to the replicas"] += 1
        return
    if pp > 1 and job.sequences // dp < pp:
        refused["fewer sequences than stages"] += 1
        return
    for zero in (0,) if dp * cp == 1 else (1, 3) if pp == 1 else (1,):
        yield Layout(dp=dp, tp=tp, cp=cp, zero=zero, sequence_parallel=tp > 1, pp=pp,
                     micro_batches=job.sequences // dp)  # fmt: skip


def _ways(job: Job, base: Layout) -> Iterator[tuple[Layout, int]]:
    """With each micro-batch, and each number of chunks."""
    each = job.sequences // base.dp
    for batch in BATCHES:
        m = each // batch
        if each % batch or m < base.pp:
            continue
        yield replace(base, micro_batches=m), batch
        for v in chunks(job.shape.layers, base.pp) if base.pp > 1 and m % (m // base.pp) == 0 else ():
            yield replace(base, micro_batches=m, chunks=v, schedule="interleaved"), batch


def chunks(layers: int, pp: int) -> tuple[int, ...]:
    """Numbers of chunks, above 1, that make all stages of pp ranks alike: as many blocks on each, or one less on the
    first and on the last, which have the table and the head. Stages in a round wait for the longest of them."""
    tried = (v for v in sorted({*CHUNKS, layers // pp}) if 1 < v <= layers // pp)
    return tuple(v for v in tried if not layers % (v * pp) or not (layers + 2) % (v * pp))
