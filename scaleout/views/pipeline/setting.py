"""What a reader chose in the view `pipeline`, and what follows from it, made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import fsum

from scaleout.draw.pipeline_lanes import Lane, Sketched
from scaleout.spec import pipeline as spec
from scaleout.timing.pipeline import Costs, Summary, Timeline, seconds, step, summary, timeline
from scaleout.timing.pipeline_sketch import Sketch, sketch
from scaleout.timing.pipeline_waits import Wait
from scaleout.views import base
from scaleout.views.base import kept
from scaleout.views.pipeline import yours

YOURS = "yours"
MOMENTS = 24  # that a step is played in
MOST_MICRO_BATCHES = 256  # micro-batches
DRAWN = 8  # ranks at most
MOST_ACTIONS = 1500  # actions, about, whose critical path is no longer looked for
RANKS, BENT = 64, 32  # at most; of a schedule that bends back, whose filling alone is p x p actions
CHUNKS = 4  # a rank at most
FINE = 4096  # micro-batches on all ranks up to which there are more than two chunks: a redraw has to be quick


def reach(schedule: str) -> int:
    """The most ranks of a schedule that are drawn."""
    return BENT if schedule != YOURS and spec.SCHEDULES[schedule].v_shaped else RANKS


def shown(ranks: int) -> tuple[int, ...]:
    """The ranks that are drawn: all, or DRAWN of them from the first to the last."""
    count = min(ranks, DRAWN)
    return tuple(round(row * (ranks - 1) / (count - 1)) for row in range(count))


@dataclass(frozen=True)
class Setting(base.Setting, remembered=24):
    """Seconds are slots: one is what a rank takes for the forward of a micro-batch through its whole share of layers.

    hop: slots of a message; head: slots that the head adds to the last stage's forward; backward: as long as so many
    forwards, half of it the input gradient.
    """

    schedule: str
    requested: int  # micro-batches
    ranks: int
    hop: float = 0.0
    wanted: int = 2  # chunks
    head: float = 0.0
    backward: float = 2.0
    blocking: bool = False  # a rank does nothing while it sends
    order: str = ""  # of the reader's own
    priced: bool = False  # not drawn: its seconds are enough, and quicker

    @property
    def label(self) -> str:
        return "Your order" if self.schedule == YOURS else spec.SCHEDULES[self.schedule].label

    @property
    def splits(self) -> bool:
        return self.schedule == YOURS or spec.SCHEDULES[self.schedule].splits

    @cached_property
    def chunks(self) -> int:
        """v, as near to what the reader wants as the schedule can be."""
        if self.schedule == YOURS:
            return 1
        least, highest = spec.SCHEDULES[self.schedule].chunks
        return max(least, min(self.wanted, highest or self.finest))

    @cached_property
    def finest(self) -> int:
        """The most chunks that are drawn of so many ranks and micro-batches."""
        return CHUNKS if self.ranks * self.micro_batches <= FINE else 2

    @cached_property
    def micro_batches(self) -> int:
        """m, the nearest to what was asked that the schedule can have."""
        if self.schedule == YOURS:
            return yours.MICRO_BATCHES
        return spec.nearest(self.schedule, self.ranks, self.requested)

    @cached_property
    def costs(self) -> Costs:
        share = 1 / self.chunks
        forward = (share,) * (self.ranks * self.chunks - 1) + (share + self.head,)
        half = tuple(self.backward / 2 * slots for slots in forward)
        return Costs(forward, half, half, self.hop, self.blocking)

    @cached_property
    def timeline(self) -> Timeline:
        """ValueError where the reader's own never ends."""
        if self.schedule == YOURS:
            return _timeline(YOURS, self.ranks, self.micro_batches, 1, self.costs, self.order)
        return _timeline(self.schedule, self.ranks, self.micro_batches, self.chunks, self.costs)

    @cached_property
    def sketch(self) -> Sketch:
        """The ranks that are drawn, of a schedule that is known."""
        return _sketch(self.schedule, self.ranks, self.micro_batches, self.chunks, self.costs)

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """The ranks of the reader's own that wait for one another, in a ring; () where it comes to its end."""
        return yours.waits(self.order) if self.schedule == YOURS else ()

    @cached_property
    def summary(self) -> Summary:
        """Seconds, work and micro-batches in flight."""
        if self.waits:
            return yours.stuck(self.order, self.costs)
        if self.schedule == YOURS:
            return self.timeline
        if not self.priced:
            return self.sketch
        return summary(self.schedule, self.ranks, self.micro_batches, self.chunks, self.costs)

    @cached_property
    def slots(self) -> float:
        """Of the step; of one that never ends, what the busiest rank would compute."""
        if self.priced:
            return seconds(self.schedule, self.ranks, self.micro_batches, self.chunks, self.costs)
        return max(self.summary.work) if self.waits else self.summary.seconds

    @cached_property
    def bubble(self) -> float:
        """Share of all ranks' time in which they wait; all of it where the step never ends."""
        return 1.0 if self.waits else self.summary.bubble

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """The most that each rank holds, in micro-batches of its whole share."""
        return tuple(count / self.chunks for count in self.summary.in_flight)

    @cached_property
    def framed(self) -> bool:
        """Whether the critical path can be shown: there is one, and its actions can be told apart."""
        return not self.waits and 3 * self.ranks * self.micro_batches * self.chunks <= MOST_ACTIONS

    @kept
    def lane(self, rank: int) -> Lane:
        """What a rank does when."""
        if self.waits:
            return yours.queue(self.order, rank, self.costs)
        if self.schedule == YOURS:
            return Lane(rank, *self.timeline.lane(rank))
        return Sketched(rank, self.sketch)

    @cached_property
    def forward(self) -> float:
        """Slots of rank 0's forwards of one micro-batch."""
        return self._of_rank_0(self.costs.forward)

    @cached_property
    def piece(self) -> float:
        """Slots that rank 0 computes for a micro-batch."""
        return self.forward + self._of_rank_0(self.costs.input) + self._of_rank_0(self.costs.weight)

    def _of_rank_0(self, by_stage: tuple[float, ...]) -> float:
        if self.schedule == YOURS:
            return by_stage[0]
        return fsum(by_stage[stage] for stage in spec.stages_of(self.schedule, 0, self.ranks, self.chunks))

    @cached_property
    def hops(self) -> int:
        """Messages of a micro-batch between ranks, there and back."""
        if self.schedule == YOURS:
            return 2 * (self.ranks - 1)
        stage_ranks = spec.ranks_of(self.schedule, self.ranks, self.chunks)
        return 2 * sum(a != b for a, b in pairwise(stage_ranks))

    @cached_property
    def gpipe(self) -> Setting:
        """The same work in GPipe's order."""
        return self.other(schedule="gpipe", wanted=1)

    @cached_property
    def rivals(self) -> tuple[Setting, ...]:
        """The same work in GPipe's order, in 1F1B's, and in the zero-bubble order, which cuts the backward in two."""
        return tuple(self.other(schedule=schedule, wanted=1) for schedule in ("gpipe", "1f1b", "zb1"))

    @cached_property
    def goal(self) -> Setting:
        """The best of them: the shortest, and of several the one that holds least on rank 0."""
        return min(self.rivals, key=lambda rival: (round(rival.slots, 6), rival.peaks[0]))

    @cached_property
    def reached(self) -> bool:
        """Whether the reader's own is as good as the best of them."""
        return not self.waits and self.slots <= self.goal.slots + 1e-9 and self.peaks[0] <= self.goal.peaks[0]

    @cached_property
    def least(self) -> float:
        """Slots that no order is below: some rank waits for its first forward, and then has its work to do."""
        arrivals = accumulate((slots + self.hop for slots in self.costs.forward[:-1]), initial=0.0)
        return max(arrival + work for arrival, work in zip(arrivals, self.summary.work, strict=True))

    @classmethod
    def of(cls, params: dict) -> Setting:
        """The reader's own schedule has its own ranks and micro-batches, and no other has the reader's order."""
        chosen = params | {"requested": params["micro_batches"], "wanted": params["chunks"]}
        if params["schedule"] == YOURS:
            return super().of(chosen | {"requested": yours.MICRO_BATCHES, "ranks": yours.RANKS})
        return super().of(chosen | {"order": "", "ranks": min(params["ranks"], reach(params["schedule"]))})

    def other(self, **changes) -> Setting:
        """A setting to compare this one with: its seconds are enough."""
        return super().other(**{"requested": self.micro_batches, "order": "", "priced": True} | changes)

    @property
    def plain(self) -> bool:
        """Whether the textbook's formulas hold: even stages, hops that cost nothing."""
        return self.hop == self.head == 0


@dataclass(frozen=True)
class Look(base.Setting):
    """What of the picture is in colour, and how much of the step has gone by."""

    lit: int
    path: bool
    moment: int

    @property
    def part(self) -> float:
        return self.moment / MOMENTS


@lru_cache(maxsize=8)  # they are large; the same for all that a reader can ask for and not have
def _timeline(schedule: str, ranks: int, micro_batches: int, chunks: int, costs: Costs, order: str = "") -> Timeline:
    return (
        timeline(yours.orders(order), costs)
        if schedule == YOURS
        else step(schedule, ranks, micro_batches, chunks, costs)
    )


@lru_cache(maxsize=8)
def _sketch(schedule: str, ranks: int, micro_batches: int, chunks: int, costs: Costs) -> Sketch:
    return sketch(schedule, ranks, micro_batches, chunks, costs, shown(ranks))
