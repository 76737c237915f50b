"""A recorded run in the view `architecture`: which part of whose work is replaced by the median rank's, and how large a
cluster would run such steps for a day."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean

from scaleout.timing import reliability, stragglers
from scaleout.timing.stragglers import Row, Trace, Verdict, stored
from scaleout.views import base

NONE, EVERY, ALL = "none", "every", "all"
DAY = 86_400.0  # seconds


@lru_cache(maxsize=64)
def replayed(rank: str, part: str) -> Trace:
    """The trace with this part of this rank's work, or of every rank's, as long as on the median rank."""
    if rank == NONE:
        return stored()
    whose = None if rank == EVERY or part == stragglers.TRANSFER else int(rank)

    def replaced(r: int, _step: int, name: str) -> bool:
        everything = part == ALL and name != stragglers.TRANSFER
        return whose in (None, r) and (everything or name == part)

    return stragglers.what_if(stored(), replaced)


@dataclass(frozen=True)
class Setting(base.Setting):
    """Controls by name. rank: "none", a number, or "every"; part: ALL, one of `stragglers.PARTS`, or TRANSFER.
    failures: per 1,000 nodes and day; interval, restart: minutes; saving: seconds per checkpoint."""

    step: int
    rank: str
    part: str
    nodes: int
    failures: float
    interval: int
    restart: int
    saving: int

    @property
    def trace(self) -> Trace:
        return replayed(self.rank, self.part)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What each rank does in the chosen step."""
        return self.trace.steps[self.step]

    @property
    def length(self) -> float:
        """Seconds of the chosen step, from its first start to its last end: a rank that saves ends later."""
        return max(row.end for row in self.rows) - min(row.start for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        return _verdict(self.rank, self.part)

    @property
    def mean(self) -> float:
        """Seconds per step."""
        return fmean(self.trace.step_seconds)

    @property
    def gain(self) -> float:
        """Share of the recorded step time that the replacement saves."""
        return 1 - self.mean / fmean(stored().step_seconds)

    @property
    def mtbf(self) -> float:
        """Seconds between two failures of the cluster."""
        return DAY / (self.nodes * self.failures / 1000)

    @cached_property
    def day(self) -> dict[str, float]:
        """Shares of a day: the work of steps without stragglers, stragglers, saves, lost work, restarts."""
        found = reliability.effective_time(self.mtbf, 60.0 * self.interval, float(self.saving), 60.0 * self.restart)
        without = fmean(replayed(EVERY, ALL).step_seconds) / self.mean
        work = found.pop("work")
        return {"work": work * min(1.0, without), "stragglers": work * max(0.0, 1 - without), **found}

    @property
    def steps_per_day(self) -> float:
        """Steps that are kept."""
        return DAY * (self.day["work"] + self.day["stragglers"]) / self.mean


@lru_cache(maxsize=64)
def _verdict(rank: str, part: str) -> Verdict:
    return stragglers.culprit(replayed(rank, part))
