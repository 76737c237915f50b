"""Stragglers: which rank slows a synchronous run down, why, and how long its steps would take without it.

A trace has one row per rank and step. Each rank writes its own rows, one JSON object per line (JSONL):

    {"rank": 3, "step": 7, "start": 1.2041, "end": 1.3907,
     "spans": [["input", 1.2041, 1.2102], ["forward", 1.2102, 1.2405], ["backward", 1.2405, 1.3011],
               ["all_reduce", 1.3011, 1.3725], ["update", 1.3725, 1.379], ["save", 1.379, 1.3907]],
     "values": {"loss": 5.412, "tokens": 512}}

Times are seconds on one clock for all ranks (`time.monotonic` on one machine), from the start of the run. A row starts
where the rank's previous row ended, so that no time is lost between two steps; what no span covers counts as "other".
Spans are in the order of time and do not overlap: a garbage collection in the middle of "forward" cuts it in two. The
names of PARTS are local work ("forward" and "backward" together are "compute"), those of COLLECTIVES are blocking
collectives, of which all ranks run the same number per step. "values" is optional: what the rank alone knows, before
any all-reduce. A stored trace is one JSON object, {"made": how it was made, "rows": [every row]}.

The rule for the culprit follows TraceML (github.com/traceopt-ai/traceml), the replay Lin et al., Understanding
Stragglers in Large Model Training Using What-if Analysis (OSDI 2025), the scores NVIDIA's resiliency extension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, median_low

INPUT, COMPUTE, UPDATE, SAVE, COLLECT, EVALUATE, OTHER = PARTS = (
    "input", "compute", "update", "save", "collect", "evaluate", "other",
)  # fmt: skip
PART_OF = {part: part for part in PARTS} | {"forward": COMPUTE, "backward": COMPUTE}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
TRANSFER = "transfer"  # what a collective takes after its last rank has arrived
CLEAR = 0.05  # of the victim's time: a smaller gap between ranks is noise
COVERED = 0.8  # of the gap: a cause is named only if it explains so much
ROUNDING = 1e-9  # seconds that a time may lie before the one that it follows
STORED = Path(__file__).with_name("trace.json")  # a run of labs/architecture.py --mixed
ALWAYS, GROWING, ONCE, SOME = "every step", "growing", "once", "some steps"


@dataclass(frozen=True)
class Row:
    """One step of one rank; `spans` are (name, start, end) in seconds."""

    rank: int
    step: int
    start: float
    end: float
    spans: tuple[tuple[str, float, float], ...]
    values: dict = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @cached_property
    def collectives(self) -> list[tuple[float, float]]:
        """(start, end) of each collective."""
        return [(start, end) for name, start, end in self.spans if name in COLLECTIVES]

    @cached_property
    def waited(self) -> float:
        """Seconds in collectives: what a profiler shows as all-reduce, whether it waits or transfers."""
        return math.fsum(end - start for start, end in self.collectives)

    @cached_property
    def segments(self) -> list[dict[str, float]]:
        """Seconds of local work by part before each collective, and after the last."""
        segments: list[dict[str, float]] = [{}]
        clock = self.start
        for name, start, end in (*self.spans, ("", self.end, self.end)):
            if start > clock:
                segments[-1][OTHER] = segments[-1].get(OTHER, 0.0) + start - clock
            if name in COLLECTIVES:
                segments.append({})
            elif name:
                part = PART_OF[name]
                segments[-1][part] = segments[-1].get(part, 0.0) + end - start
            clock = end
        return segments

    def local(self, part: str) -> float:
        """Seconds of one part of the local work."""
        return math.fsum(segment.get(part, 0.0) for segment in self.segments)


@dataclass(frozen=True)
class Trace:
    """steps[s][r]: the row of rank r in the s-th step; made: how the trace was made."""

    steps: tuple[tuple[Row, ...], ...]
    made: str = ""

    @property
    def ranks(self) -> int:
        return len(self.steps[0])

    @cached_property
    def step_seconds(self) -> list[float]:
        """From the end of one step, on its last rank, to the end of the next."""
        ends = [min(row.start for row in self.steps[0]), *(max(row.end for row in rows) for rows in self.steps)]
        return [end - start for start, end in pairwise(ends)]

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return math.fsum(self.step_seconds)

    def rows(self, rank: int) -> list[Row]:
        return [rows[rank] for rows in self.steps]

    def waited(self, rank: int) -> float:
        """Seconds of a rank in collectives."""
        return math.fsum(row.waited for row in self.rows(rank))

    def transfers(self, step: int) -> list[list[float]]:
        """[rank][collective]: seconds from the arrival of the last rank to the end on this rank."""
        by_rank = [row.collectives for row in self.steps[step]]
        last = [max(start for start, _ in same) for same in zip(*by_rank, strict=True)]
        return [[max(0.0, end - late) for (_, end), late in zip(one, last, strict=True)] for one in by_rank]


def read(rows: Iterable[str | dict], made: str = "") -> Trace:
    """A Trace from rows, JSON or parsed, in any order. ValueError, in one line, where a rank lacks a step or has two
    rows of it, where ranks ran different numbers of collectives, and where times or values are no numbers."""
    parsed = [json.loads(row) if isinstance(row, str) else row for row in rows]
    if not parsed:
        raise ValueError("the trace is empty: record at least one step on each rank")
    lacks = [name for row in parsed for name in ("rank", "step", "start", "end", "spans") if name not in row]
    if lacks:
        raise ValueError(f"a row has no {lacks[0]!r}: it needs rank, step, start, end and spans")
    found = {(row["step"], row["rank"]): Row(**row | {"spans": tuple(map(tuple, row["spans"]))}) for row in parsed}
    if len(found) < len(parsed):
        raise ValueError("a rank has two rows of one step: give each step its own number")
    unknown = {name for row in parsed for name, _, _ in row["spans"]} - {*PART_OF, *COLLECTIVES}
    if unknown:
        raise ValueError(f"a span is called {min(unknown)!r}: use one of {', '.join([*PART_OF, *COLLECTIVES])}")
    ranks = range(1 + max(rank for _, rank in found))
    steps = sorted({step for step, _ in found})
    for step in steps:
        missing = [rank for rank in ranks if (step, rank) not in found]
        if missing:
            raise ValueError(f"step {step} has no row of rank {missing[0]}: give all ranks the same steps")
        counts = {len(found[step, rank].collectives) for rank in ranks}
        if len(counts) > 1:
            raise ValueError(f"step {step} has {min(counts)} collectives on one rank and {max(counts)} on another")
        for rank in ranks:
            _check(found[step, rank])
    return Trace(tuple(tuple(found[step, rank] for rank in ranks) for step in steps), made)


def _check(row: Row) -> None:
    """ValueError, in one line, for times or values that are no numbers, and for times that run backwards."""
    where = f"rank {row.rank}, step {row.step}"
    times = [row.start, *(time for _, *ends in row.spans for time in ends), row.end]
    if not all(isinstance(time, int | float) and math.isfinite(time) for time in times):
        raise ValueError(f"{where}: a time is not a finite number")
    if any(after < before - ROUNDING for before, after in pairwise(times)):
        raise ValueError(f"{where}: times run backwards: spans follow one another, from the row's start to its end")
    words = [name for name, value in row.values.items() if not isinstance(value, int | float)]
    if words:
        raise ValueError(f"{where}: the value {words[0]!r} is no number")


@lru_cache(maxsize=1)
def stored() -> Trace:
    """The trace that comes with the book: eight ranks, twenty steps, several faults."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    return read(found["rows"], found["made"])


@dataclass(frozen=True)
class Verdict:
    """rank: the culprit, None if no rank stands out. part: of PARTS or TRANSFER, None if unknown. pattern: ALWAYS,
    GROWING, ONCE, SOME or "". score: the gap over the victim's time. why: the numbers that decided."""

    rank: int | None
    part: str | None
    pattern: str
    score: float
    why: str


def culprit(trace: Trace) -> Verdict:
    """The rank that waits least, with the part of its work that explains it; no rank where the gap is small."""
    waited = [trace.waited(rank) for rank in range(trace.ranks)]
    order = sorted(range(trace.ranks), key=lambda rank: waited[rank])
    suspect, victim = order[0], order[trace.ranks // 2]
    gap = waited[victim] - waited[suspect]
    score = gap / math.fsum(row.seconds for row in trace.rows(victim))
    shown = f"rank {suspect} is in collectives for {waited[suspect]:.2f} s, the median rank for {waited[victim]:.2f} s"
    if score < CLEAR:
        return Verdict(None, None, "", score, f"no rank stands out: {shown}")
    excess = {part: math.fsum(excesses(trace, suspect, part)) for part in PARTS}
    part = max(excess, key=lambda name: excess[name])
    if excess[part] < COVERED * gap:
        return Verdict(suspect, None, "", score, f"{shown}; no part of its work explains the gap")
    shown += f"; its {part} takes {excess[part]:.2f} s more than the median"
    return Verdict(suspect, part, pattern(excesses(trace, suspect, part)), score, shown)


def excesses(trace: Trace, rank: int, part: str) -> list[float]:
    """Seconds per step by which one part of a rank's work exceeds the median of all ranks; of an even number of ranks,
    the lower one in the middle: else a slow rank would raise what it is compared with, of two ranks by half."""
    return [rows[rank].local(part) - median_low(row.local(part) for row in rows) for rows in trace.steps]


def pattern(series: list[float]) -> str:
    """When an excess occurs: in one step, in at most a third of the steps, growing, or in every step."""
    total, third = math.fsum(series), max(1, len(series) // 3)
    largest = sorted(series, reverse=True)
    if len(series) > 1 and largest[0] >= COVERED * total:
        return ONCE
    if math.fsum(largest[:third]) >= COVERED * total:
        return GROWING if largest[:third] == series[: -third - 1 : -1] else SOME
    return GROWING if fmean(series[-third:]) >= 2 * fmean(series[:third]) else ALWAYS


def without(part: str, rank: int | None = None) -> Callable[[int, int, str], bool]:
    """What `what_if` replaces: a part of one rank's work, or of all ranks'."""
    return lambda r, step, name: name == part and rank in (None, r)


def not_finite(trace: Trace) -> tuple[list[int], int] | None:
    """(ranks, step index): which ranks have a value that is not finite, in the first step with one; None if there is
    none. Of several nobody can tell who began."""
    for step, rows in enumerate(trace.steps):
        ranks = [row.rank for row in rows if not all(map(math.isfinite, row.values.values()))]
        if ranks:
            return ranks, step
    return None


def what_if(trace: Trace, replaced: Callable[[int, int, str], bool]) -> Trace:
    """The trace if the chosen parts took as long as on the median rank: every rank does its work and waits in each
    collective for the last to arrive. replaced(rank, step index, part) chooses; for TRANSFER, the median is over all
    steps and ranks."""
    every = [one for step in range(len(trace.steps)) for one in trace.transfers(step)]
    typical = [median(values) for values in zip(*every, strict=True)]
    clocks = [row.start for row in trace.steps[0]]
    steps = []
    for step, rows in enumerate(trace.steps):
        starts, transfers = clocks, trace.transfers(step)
        spans: list[list[tuple[str, float, float]]] = [[] for _ in rows]
        for k in range(len(typical) + 1):
            for row in rows:
                for part, seconds in _work(rows, row, k, step, replaced):
                    clock = spans[row.rank][-1][2] if spans[row.rank] else starts[row.rank]
                    spans[row.rank].append((part, clock, clock + seconds))
            clocks = [own[-1][2] if own else start for own, start in zip(spans, starts, strict=True)]
            if k < len(typical):
                last = max(clocks)
                for rank, clock in enumerate(clocks):
                    after = typical[k] if replaced(rank, step, TRANSFER) else transfers[rank][k]
                    spans[rank].append((COLLECTIVES[0], clock, last + after))
        ends = [own[-1][2] for own in spans]
        steps.append(
            tuple(
                replace(row, start=starts[row.rank], end=ends[row.rank], spans=tuple(spans[row.rank])) for row in rows
            )
        )
        clocks = ends
    return Trace(tuple(steps), trace.made)


def _work(rows: tuple[Row, ...], row: Row, k: int, step: int, replaced: Callable) -> Iterator[tuple[str, float]]:
    """Parts of a row's work before the k-th collective, with the median of all ranks for what is replaced."""
    own = row.segments[k]
    for part in (*own, *(part for part in PARTS if part not in own)):
        chosen = replaced(row.rank, step, part)
        seconds = median(other.segments[k].get(part, 0.0) for other in rows) if chosen else own.get(part, 0.0)
        if seconds > 0:
            yield part, seconds


def relative(trace: Trace, parts: tuple[str, ...] = (COMPUTE,)) -> list[float]:
    """The fastest rank's seconds of these parts over each rank's: 1 is the fastest rank."""
    seconds = [math.fsum(row.local(part) for row in trace.rows(rank) for part in parts) for rank in range(trace.ranks)]
    return [min(seconds) / one for one in seconds]


def individual(trace: Trace, rank: int, parts: tuple[str, ...] = (COMPUTE,)) -> list[float]:
    """A rank's own fastest step so far over each of its steps: it falls when the rank becomes slower."""
    best, scores = math.inf, []
    for row in trace.rows(rank):
        seconds = math.fsum(row.local(part) for part in parts)
        best = min(best, seconds)
        scores.append(best / seconds)
    return scores
