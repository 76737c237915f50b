"""What a reader chose in the view `pipeline`, and what follows from it, made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from scaleout.draw.pipeline_lanes import Lane
from scaleout.memory import pipeline as memory
from scaleout.spec import pipeline as spec
from scaleout.timing.pipeline import Costs, Timeline, timeline
from scaleout.views.pipeline import yours

YOURS = "yours"
MOST = 256  # micro-batches


@dataclass(frozen=True)
class Setting:
    """Seconds are slots: one is what a rank takes for the forward of a micro-batch through its whole share of the model.

    hop: slots of a message; head: slots that the head adds to the last stage's forward; backward: as long as so many
    forwards, half of it the input gradient.
    """

    schedule: str
    asked: int  # micro-batches
    ranks: int
    hop: float = 0.0
    wanted: int = 2  # chunks
    head: float = 0.0
    backward: float = 2.0
    order: str = ""  # of the reader's own

    @property
    def label(self) -> str:
        return "Yours" if self.schedule == YOURS else spec.SCHEDULES[self.schedule].label

    @property
    def splits(self) -> bool:
        return self.schedule == YOURS or spec.SCHEDULES[self.schedule].splits

    @property
    def chunks(self) -> int:
        """v, as near to what the reader wants as the schedule can be."""
        if self.schedule == YOURS:
            return 1
        least, most = spec.SCHEDULES[self.schedule].chunks
        return max(least, min(self.wanted, most or self.wanted))

    @property
    def micro_batches(self) -> int:
        """m, the nearest to what was asked that the schedule can have."""
        return _nearest(self.schedule, self.ranks, self.asked)

    @property
    def orders(self) -> spec.Orders:
        if self.schedule == YOURS:
            return yours.orders(self.order)
        return spec.orders(self.schedule, self.ranks, self.micro_batches, self.chunks)

    @property
    def costs(self) -> Costs:
        return _costs(self.ranks * self.chunks, self.chunks, self.head, self.backward, self.hop)

    @property
    def timeline(self) -> Timeline:
        return _timeline(self)

    @property
    def slots(self) -> float:
        return self.timeline.seconds

    @property
    def stuck(self) -> str:
        """What a schedule of the reader's own waits for in vain; "" where it comes to its end."""
        return ""

    def lane(self, rank: int) -> Lane:
        """What a rank does when."""
        return _lane(self, rank)

    @property
    def forward(self) -> float:
        """Slots of rank 0's forwards of one micro-batch."""
        return self._of_rank_0(self.costs.forward)

    @property
    def piece(self) -> float:
        """Slots that rank 0 computes for a micro-batch."""
        return self.forward + self._of_rank_0(self.costs.input) + self._of_rank_0(self.costs.weight)

    def _of_rank_0(self, by_stage: tuple[float, ...]) -> float:
        if self.schedule == YOURS:
            return by_stage[0]
        return sum(by_stage[stage] for stage in spec.stages_of(self.schedule, 0, self.ranks, self.chunks))

    @property
    def critical(self):
        return getattr(self.timeline, "critical", ())

    @property
    def work_slots(self) -> float:
        """Slots that all ranks compute together."""
        return self.micro_batches * sum(map(sum, (self.costs.forward, self.costs.input, self.costs.weight)))

    @property
    def bubble(self) -> float:
        """Share of all ranks' time in which they wait; all of it where the step never ends."""
        return 1.0 if self.stuck else 1 - self.work_slots / (self.ranks * self.slots)

    @property
    def hops(self) -> int:
        """Messages of a micro-batch between ranks, there and back."""
        if self.schedule == YOURS:
            return 2 * (self.ranks - 1)
        on = [spec.rank_of(self.schedule, stage, self.ranks) for stage in range(self.ranks * self.chunks)]
        return 2 * sum(a != b for a, b in pairwise(on))

    @property
    def peaks(self) -> tuple[float, ...]:
        """The most that each rank holds, in micro-batches of its whole share."""
        return _peaks(self)

    @property
    def gpipe(self) -> Setting:
        """The same work in GPipe's order."""
        return replace(self, schedule="gpipe", asked=self.micro_batches, order="", wanted=1)

    @property
    def plain(self) -> bool:
        """Whether the textbook's formulas hold: even stages, hops that cost nothing."""
        return self.hop == self.head == 0


@dataclass(frozen=True)
class Look:
    """What of the picture is in colour, and how much of the step has gone by."""

    lit: int
    path: bool
    part: float


@lru_cache(maxsize=64)
def _costs(stages: int, chunks: int, head: float, backward: float, hop: float) -> Costs:
    forward = (1 / chunks,) * (stages - 1) + (1 / chunks + head,)
    half = tuple(backward / 2 * slots for slots in forward)
    return Costs(forward, half, half, hop)


@lru_cache(maxsize=64)
def _peaks(setting: Setting) -> tuple[float, ...]:
    if setting.schedule == YOURS:
        return tuple(max(memory.held(order)) for order in setting.orders)
    most = memory.in_flight(setting.schedule, setting.ranks, setting.micro_batches, setting.chunks)
    return tuple(one / setting.chunks for one in most)


@lru_cache(maxsize=64)
def _timeline(setting: Setting) -> Timeline:
    return timeline(setting.orders, setting.costs)


@lru_cache(maxsize=64)
def _lane(setting: Setting, rank: int) -> Lane:
    runs = setting.timeline.runs[rank]
    actions = zip(*(run.action for run in runs), strict=True) if runs else ((), (), ())
    return Lane(rank, *actions, [run.start for run in runs], [run.end for run in runs])


@lru_cache(maxsize=256)
def _nearest(schedule: str, ranks: int, asked: int) -> int:
    if schedule == YOURS:
        return yours.MANY
    fits = (m for m in range(1, asked + 2 * ranks + 1) if spec.allowed(schedule, ranks, m))
    return min(fits, key=lambda m: (abs(m - asked), -m))
