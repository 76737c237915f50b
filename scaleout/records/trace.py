"""Read a Chrome trace of a training run: who computed, who communicated, and what was not hidden.

A trace is what torch.profiler writes, of one rank or of several merged into one file (scaleout/measure/traces.py
merges them). Standard library only. All times are seconds from the first event of the file.
"""

import gc
import gzip
import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scaleout.records import chrome
from scaleout.records.chrome import PHASES
from scaleout.timing.intervals import common, exposed, length, subtract, union

GAP = 1e-4  # seconds: what lies between two operations of one thread for less is the framework's own work


class Span(NamedTuple):
    """One thing that took time. start, end: seconds. `size`: bytes of a collective's tensor, None where unknown."""

    rank: int
    lane: str  # a phase's name for phases, else "compute" or "communication"
    name: str
    start: float
    end: float
    size: int | None = None
    thread: object = 0

    @property
    def seconds(self):
        """How long it took."""
        return self.end - self.start


class Trace:
    """Spans of a run, by rank, and the events of the file they were read from (list of dict)."""

    def __init__(self, events):
        """events: the "traceEvents" of a Chrome trace whose process ids are ranks (see `from_json`)."""
        self.events = events
        timed = [chrome.today(e) for e in events if e.get("ph") == "X" and isinstance(e.get("pid"), int)]
        if not timed:
            raise ValueError('the trace holds no spans (events with "ph": "X"): profile at least one step')
        self.ranks = sorted({e["pid"] for e in timed})
        self._zero = min(e["ts"] for e in timed)
        self._spans = {rank: self._read([e for e in timed if e["pid"] == rank], rank) for rank in self.ranks}

    def _read(self, events, rank):
        """{lane: [Span]} of one rank. Where the trace has kernels, they are the compute; else the operations of
        the thread that runs the training loop."""
        kernels = any(e.get("cat") == "kernel" for e in events)
        threads = [e["tid"] for e in events if e["name"] in PHASES and e.get("cat") == "user_annotation"]
        main = threads[0] if threads else chrome.busiest(events)
        lanes = {lane: [] for lane in (*PHASES, "compute", "communication", chrome.ON_DEVICE)}
        for e in events:
            lane = chrome.lane(e, kernels, main)
            if lane:
                start = (e["ts"] - self._zero) / 1e6
                lanes[lane].append(
                    Span(
                        rank,
                        lane,
                        e["name"],
                        start,
                        start + e["dur"] / 1e6,
                        chrome.size(e) if lane == "communication" else None,
                        e["tid"],
                    )
                )
        return {lane: sorted(spans, key=lambda s: (s.start, s.end)) for lane, spans in lanes.items()}

    def spans(self, rank, lane):
        """The Spans of one lane of a rank, by their start. ValueError for a rank or lane that is not there."""
        if rank not in self._spans:
            raise ValueError(f"rank {rank} is not in this trace: it has {', '.join(map(str, self.ranks))}")
        if lane not in self._spans[rank]:
            raise ValueError(f"lane {lane!r} is unknown: use one of {', '.join(self._spans[rank])}")
        return self._spans[rank][lane]

    @property
    def lanes(self):
        """{rank: [lanes that hold something]}."""
        return {rank: [lane for lane, spans in by_lane.items() if spans] for rank, by_lane in self._spans.items()}

    def compute(self, rank):
        """Intervals [(start, end)] in which the rank computes; gaps shorter than GAP are closed."""
        busy = union([(s.start, s.end) for s in self.spans(rank, "compute")])
        return _close(busy, GAP)

    def collectives(self, rank):
        """Intervals [(start, end)], one a collective, by their start; they may overlap."""
        return [(s.start, s.end) for s in self.spans(rank, "communication")]

    def exposed(self, rank):
        """Seconds in which a collective runs and the rank computes nothing."""
        return exposed(self.compute(rank), self.collectives(rank))

    def steps(self, rank):
        """[(start, end)] of the steps; the whole trace where no step is marked."""
        marked = [(s.start, s.end) for s in self.spans(rank, "step")]
        if marked:
            return marked
        ends = [(s.start, s.end) for spans in self._spans[rank].values() for s in spans]
        if not ends:
            raise ValueError(f"the trace has neither operations nor kernels of rank {rank}: profile the CPU or the GPU")
        return [(min(a for a, _ in ends), max(b for _, b in ends))]

    def windows(self, rank):
        """[(start, end)], disjoint: when the steps ran. Kernels run after their launch, so where the trace has the
        steps as the device saw them, it is those."""
        on_device = union((s.start, s.end) for s in self.spans(rank, chrome.ON_DEVICE))
        return on_device or union(self.steps(rank))

    def arrivals(self):
        """[[Span of each rank]] of the collectives in steps that all ranks took part in: the k-th of one is the k-th
        of each.

        ValueError where the ranks ran different numbers of collectives.
        """
        collectives = []
        for rank in self.ranks:
            windows = self.windows(rank)
            collectives.append(
                [s for s in self.spans(rank, "communication") if any(start <= s.start < end for start, end in windows)]
            )
        if len({len(spans) for spans in collectives}) > 1:
            counts = ", ".join(f"rank {r}: {len(s)}" for r, s in zip(self.ranks, collectives, strict=True))
            raise ValueError(f"the ranks ran different numbers of collectives ({counts})")
        return [list(spans) for spans in zip(*collectives, strict=True)]


# --- reading a file ---------------------------------------------------------------------------------------


def load(path):
    """The Trace in a .json or .json.gz file. ValueError, one line, where it is missing or no Chrome trace."""
    path = Path(path)
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except FileNotFoundError:
        raise ValueError(f"{path.name}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path.name}: not a Chrome trace ({type(error).__name__}): "
            "give the .json or .json.gz that torch.profiler wrote"
        ) from None
    try:
        return from_json(data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def from_json(data):
    """The Trace of a parsed Chrome trace: {"traceEvents": [...]} or the list itself."""
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise ValueError('not a Chrome trace: it must hold a list of "traceEvents"')
    ranks = chrome.ranks(events)
    if not ranks:  # one rank, as torch.profiler writes it
        info = data.get("distributedInfo", {}) if isinstance(data, dict) else {}
        return Trace(chrome.one_rank(data, info.get("rank", 0)))
    return Trace([e | {"pid": ranks[e["pid"]]} for e in events if e.get("pid") in ranks])


def merge(ranks):
    """One Trace of several ranks: a list of `chrome.one_rank` results. Times start at 0."""
    events = [e for rank_events in ranks for e in rank_events]
    zero = min(e["ts"] for e in events if e["ph"] == "X")
    return Trace(
        [e if e["ph"] == "M" else e | {"ts": round(e["ts"] - zero, 3), "dur": round(e["dur"], 3)} for e in events]
    )


def to_json(trace):
    """The Trace as a Chrome trace (dict) that Perfetto opens: one process row a rank."""
    return {"displayTimeUnit": "ms", "traceEvents": trace.events}


@contextmanager
def uncollected():
    """No garbage collection inside: it would walk a trace's events again and again as they come, for most of the
    time that reading them takes, and none of them goes."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _close(intervals, gap):
    """Sorted disjoint intervals, joined where less than `gap` seconds lie between two."""
    joined = []
    for start, end in intervals:
        if joined and start - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


# --- what a trace says ------------------------------------------------------------------------------------


@uncollected()
def summary(trace):
    """The figures that decide a diagnosis (dict; seconds and bytes are of one step, a mean over the steps; what ran
    outside the marked steps does not count).

    "step_seconds": one number a step, the slowest rank's; "compute_seconds", "communication_seconds" (one or more
    collectives under way), "exposed_seconds" (the part that no compute covers), "waited_seconds" (inside collectives,
    before the last rank came to them), "data_seconds" (from the start of the step to its forward): {rank: seconds};
    "collectives": how many; "bytes": of their tensors together; "bytes_each": of one; "bytes_per_second": of the
    tensors, over the time from a collective's last arrival to its end. The last three are None where the trace does
    not say.
    """
    count = min(len(trace.steps(rank)) for rank in trace.ranks)
    calls = trace.arrivals()
    sizes = [spans[0].size for spans in calls]
    known = None if None in sizes or not sizes else sum(sizes)
    moving = sum(max(s.end for s in spans) - max(s.start for s in spans) for spans in calls)
    by_rank = {rank: _of_rank(trace, rank, calls, count) for rank in trace.ranks}
    return {
        "ranks": len(trace.ranks),
        "steps": count,
        "step_seconds": [max(trace.steps(r)[i][1] - trace.steps(r)[i][0] for r in trace.ranks) for i in range(count)],
        **{name: {rank: by_rank[rank][name] for rank in trace.ranks} for name in by_rank[trace.ranks[0]]},
        "collectives": len(calls) / count,
        "bytes": None if known is None else known / count,
        "bytes_each": None if known is None else known / len(calls),
        "bytes_per_second": known / moving if known and moving > 0 else None,
    }


def _of_rank(trace, rank, calls, count):
    """The figures of one rank, seconds per step."""
    index = trace.ranks.index(rank)
    waited = length((spans[index].start, min(spans[index].end, max(s.start for s in spans))) for spans in calls)
    forwards, windows = trace.spans(rank, "forward"), trace.windows(rank)
    compute, communication = (common(spans, windows) for spans in (trace.compute(rank), trace.collectives(rank)))
    data = sum(
        min((f.start for f in forwards if start <= f.start < end), default=start) - start
        for start, end in trace.steps(rank)
    )
    figures = {
        "compute_seconds": length(compute),
        "communication_seconds": length(communication),
        "exposed_seconds": exposed(compute, communication),
        "waited_seconds": waited,
        "data_seconds": data,
    }
    return {name: seconds / count for name, seconds in figures.items()}


def thin(trace):
    """The same Trace, small: phases, collectives, and compute joined into stretches that lie in one phase.

    Figures of `summary` stay as they are but for rounding to 0.1 microseconds. Perfetto opens it.
    """
    events = []
    for rank in trace.ranks:
        # Threads (or streams) that the collectives of the rank ran on, in the order of their first.
        threads = list(dict.fromkeys(s.thread for s in trace.spans(rank, "communication")))
        events += chrome.named(rank, {0: "training loop", **{1 + i: f"collectives {i}" for i in range(len(threads))}})
        phases = [s for lane in PHASES for s in trace.spans(rank, lane)]
        events += [chrome.event(s.rank, 0, s.lane, "user_annotation", s.start, s.end) for s in phases]
        events += [
            chrome.event(rank, 0, "step", "gpu_user_annotation", s.start, s.end)
            for s in trace.spans(rank, chrome.ON_DEVICE)
        ]
        inner = [s for s in phases if s.lane != "step"]
        events += [
            chrome.event(rank, 0, name, "cpu_op", *span) for name, span in _stretches(trace.compute(rank), inner)
        ]
        for s in trace.spans(rank, "communication"):
            size = {} if s.size is None else {"bytes": s.size}
            lane = 1 + threads.index(s.thread)
            events.append(chrome.event(rank, lane, _short(s.name), "user_annotation", s.start, s.end) | {"args": size})
    return Trace([e if e["ph"] == "M" else e | {"ts": e["ts"] + trace._zero} for e in events])


def _short(name):
    """gloo:all_reduce stays; a NCCL kernel's long name becomes gloo's form, so that a thinned trace reads alike."""
    match = re.search(r"nccl\w*?_(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv)", name)
    return f"gloo:{match[1]}" if match else name


def _stretches(busy, phases):
    """[(name, (start, end))]: each busy interval cut at the borders of the phases, named after them."""
    named = [(f"compute in {p.lane}", part) for p in phases for part in common(busy, [(p.start, p.end)])]
    remainder = subtract(busy, union([(p.start, p.end) for p in phases]))
    return sorted([*named, *(("compute", part) for part in remainder)], key=lambda item: item[1])
