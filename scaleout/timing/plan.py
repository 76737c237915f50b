"""One layout of a job as a search finds it: whether it fits, how long its step takes, and why it is not the best."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaleout.memory import job as memory
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.timing.job import PARTS, step, utilization
from scaleout.timing.quick import RECOMPUTE

# What a part that a plan has more of than the best is called, with the part of its step that it is.
WORDS = {
    "compute": "compute", "recompute": "recomputation", "launches": "kernel launches",
    "exposed tensor": "exposed tp communication", "exposed context": "exposed cp communication",
    "imbalance": "uneven stages", "bubble": "pipeline bubble", "hops": "pipeline sends",
    "exposed data": "exposed dp communication", "update": "optimizer step", "exposed host": "host copies",
    "host": "host", "stragglers": "stragglers",
}  # fmt: skip
MARGIN = 0.01  # of seconds and of bytes: by less, one layout is not better than another
NODE_AXES = {"exposed tensor": "tp", "exposed context": "cp"}  # axes whose groups belong in one node


@dataclass(frozen=True)
class Plan:
    """A job with its layout. bytes: the peak of its fullest rank; over: by how much that is more than usable memory;
    crossing: the axes whose groups lie on several nodes. exact: seconds and parts are those of `step(job)`, and not of
    a closed form. cannot: why its program's framework cannot run it, or ""."""

    job: Job
    bytes: int
    over: int
    crossing: tuple[str, ...]
    seconds: float
    parts: dict[str, float]
    exact: bool = False
    cannot: str = ""

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def checkpointing(self) -> str:
        return self.job.recipe.checkpointing

    @property
    def fits(self) -> bool:
        return self.over <= 0

    @property
    def axes(self) -> int:
        """Along how many axes the model itself is cut: of tp, cp and pp."""
        layout = self.layout
        return sum((layout.tp > 1, layout.cp > 1, layout.pp > 1))

    @property
    def simple(self) -> tuple:
        """What orders layouts that are equal, the simplest first: axes, recomputation, whether weights and gradients
        are sharded. ZeRO-1 does not count: every framework does it by a flag, and no layer of a model knows of it."""
        return self.axes, RECOMPUTE.index(self.checkpointing), self.layout.zero > 1

    def dominates(self, other: Plan) -> bool:
        """Not slower, not larger, and by MARGIN less of both, or twice that of one."""
        least = (1 - MARGIN) ** 2 * other.seconds * other.bytes
        return self.seconds <= other.seconds and self.bytes <= other.bytes and self.seconds * self.bytes <= least

    @property
    def mfu(self) -> float:
        return utilization(self.job, self.seconds, "forward", "backward")

    def lost(self, best: Plan) -> str:
        """The part (PARTS) of this plan's step that is the most longer than in the best one's."""
        return max(PARTS, key=lambda name: self.parts[name] - best.parts[name])

    def loses_by(self, best: Plan) -> str:
        """What this plan's step has most more of than the best one's, with its share of the step."""
        part = self.lost(best)
        share = f"{100 * self.parts[part] / self.seconds:.0f}%"
        crossing = f", {NODE_AXES[part]} across nodes" if NODE_AXES.get(part) in self.crossing else ""
        return f"{WORDS[part]} {share}{crossing}"


def exact(plan: Plan, usable: int | None = None) -> Plan:
    """The plan with the seconds of `timing.job`, and given usable memory with the bytes of `memory.job`."""
    timed = step(plan.job)
    plan = replace(plan, seconds=timed.seconds, parts=timed.parts, exact=True)
    if usable is None:
        return plan
    size = memory.fullest(plan.job).peak_bytes
    return replace(plan, bytes=size, over=size - usable)
