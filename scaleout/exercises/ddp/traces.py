"""Exercises of `ddp` on five traces of real runs: find the cause in the figures of `records.trace.summary`."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from scaleout.exercises.engine import Choice, Option

# Letter -> file in labs/results/ddp: the order in which the chapter shows them.
TRACES = {
    "A": "trace-slow-link.json",
    "B": "trace-starved.json",
    "C": "trace-healthy.json",
    "D": "trace-straggler.json",
    "E": "trace-tiny-buckets.json",
}


@dataclass(frozen=True)
class Figures:
    """What a trace of two ranks says about one step: whole milliseconds, pairs by rank; `rate` in MB/s (10^6 bytes)."""

    step: int
    compute: tuple[int, int]
    communication: tuple[int, int]
    exposed: tuple[int, int]
    waited: tuple[int, int]
    data: tuple[int, int]
    collectives: int
    kilobytes_each: int
    rate: int


def figures(summary: dict) -> Figures:
    """The Figures of what `scaleout.records.trace.summary` gave, in the mean over its steps."""

    def pair(name: str) -> tuple[int, int]:
        return tuple(round(summary[name][rank] * 1e3) for rank in sorted(summary[name]))

    return Figures(
        round(mean(summary["step_seconds"]) * 1e3),
        pair("compute_seconds"),
        pair("communication_seconds"),
        pair("exposed_seconds"),
        pair("waited_seconds"),
        pair("data_seconds"),
        round(summary["collectives"]),
        round(summary["bytes_each"] / 1e3),
        round(summary["bytes_per_second"] / 1e6),
    )


# Read off the recorded runs of labs/ddp.py on two processes, gloo, 2 cores; a test reads them off again.
FIGURES = {
    "trace-healthy.json": Figures(70, (65, 62), (25, 29), (2, 5), (8, 14), (0, 0), 5, 1039, 197),
    "trace-straggler.json": Figures(90, (63, 86), (55, 16), (25, 1), (49, 0), (0, 0), 5, 1039, 239),
    "trace-tiny-buckets.json": Figures(113, (84, 80), (84, 84), (24, 29), (15, 15), (0, 0), 68, 76, 32),
    "trace-slow-link.json": Figures(166, (63, 64), (130, 131), (99, 99), (2, 3), (1, 0), 5, 1039, 40),
    "trace-starved.json": Figures(116, (72, 68), (13, 21), (1, 5), (2, 13), (41, 41), 5, 1039, 398),
}


def _and(pair: tuple[int, int]) -> str:
    return f"{pair[0]} and {pair[1]} ms"


_SLOW, _STARVED, _WELL, _STRAGGLER, _TINY = (FIGURES[file] for file in TRACES.values())

# What decides each run, in its figures, and where to look next.
_DECIDES = {
    "A": f"**A, the link.** Both ranks compute as usual ({_and(_SLOW.compute)}) and hardly wait for each other "
    f"({_and(_SLOW.waited)}). But once both ranks are there, a collective reaches {_SLOW.rate} MB/s instead of "
    f"{_WELL.rate}, so {_and(_SLOW.exposed)} are exposed. Send fewer bytes (accumulate, compress, larger batch), or "
    "find out why the fast link is not used.",
    "B": f"**B, the data.** Both ranks wait for {_and(_STARVED.data)} before their forward pass, without compute or "
    f"communication, in a step of {_STARVED.step} ms. The link is fast ({_STARVED.rate} MB/s). Use more workers, "
    "prefetching, or cheaper preprocessing.",
    "C": f"**C, nothing.** The ranks compute for {_and(_WELL.compute)} of {_WELL.step}. Of "
    f"{_and(_WELL.communication)} of communication only {_and(_WELL.exposed)} are exposed. Keep a trace like this to "
    "compare others with.",
    "D": f"**D, rank 1.** It computes for {_STRAGGLER.compute[1]} ms, and rank 0 for {_STRAGGLER.compute[0]}. Rank 0 "
    f"then waits {_STRAGGLER.waited[0]} ms inside its collectives, and rank 1 {_STRAGGLER.waited[1]}. The rank whose "
    "collectives look long is the healthy one. Ask what is different on the other rank: more load on its host, a hot "
    "GPU, longer sequences.",
    "E": f"**E, the buckets.** There are {_TINY.collectives} collectives of {_TINY.kilobytes_each} kB, where the "
    f"healthy run has {_WELL.collectives} of {_WELL.kilobytes_each:,}. The bytes are the same, but there are more "
    f"latencies, and on a CPU starting a collective takes compute time too: {_and(_TINY.compute)} instead of "
    f"{_and(_WELL.compute)}. Raise `bucket_cap_mb`, or leave it at its default, 25 MiB.",
}


def _option(name: str, causes: dict[str, str], reason: str, right: bool = False) -> Option:
    causes_by_run = {"A": "link", "B": "data", "C": "none", "D": "rank 1", "E": "buckets"} | causes
    return Option(name, ", ".join(f"{letter} {cause}" for letter, cause in causes_by_run.items()), reason, right)


FIVE_RUNS = Choice(
    key="traces",
    level=3,
    title="Five runs, five causes",
    prompt="The picture and the table show five runs of one job on two ranks. Match each run to its fault. *none*: the "
    "run is healthy. *rank 0*, *rank 1*: that rank computes more slowly. *buckets*: they are too small. *link*: it is "
    "slow. *data*: they come too late.",
    hints=(
        "Compare the two ranks first. Then ask what fills the part of a step in which they do not compute.",
        "A collective begins when a rank joins it and ends when all are done. A long one is slow, or it waits.",
        "These figures decide: compute per rank, waiting per rank, the gap before the forward pass, the number of "
        "collectives, the exposed part.",
    ),
    solution="\n\n".join(_DECIDES.values()),
    options=(
        _option(
            "straggler-1",
            {},
            "Right, all five. In D it is rank 1: rank 0 waits for it for "
            f"{_STRAGGLER.waited[0]} ms, in collectives that only look slow.",
            True,
        ),
        _option(
            "straggler-0",
            {"D": "rank 0"},
            f"Four are right. In D rank 0 spends {_STRAGGLER.waited[0]} ms in collectives before rank 1 joins: rank 0 "
            f"waits. It computes for {_STRAGGLER.compute[0]} ms, and rank 1 for {_STRAGGLER.compute[1]}. The slow "
            "rank is not the one that waits.",
        ),
        _option(
            "link-for-buckets",
            {"A": "buckets", "D": "rank 0", "E": "link"},
            f"Two are right. A has {_SLOW.collectives} collectives of {_SLOW.kilobytes_each:,} kB, few and large. E "
            f"has {_TINY.collectives} of {_TINY.kilobytes_each} kB; most of their time is the latency of starting "
            "them, which a faster link does not change. And which rank of D computes for longer?",
        ),
        _option(
            "waits-for-data",
            {"A": "data", "B": "link", "D": "rank 0"},
            f"Two are right. A waits {max(_SLOW.data)} ms at most before its forward pass, and B {_STARVED.data[0]} ms "
            f"before its forward pass on both ranks. Once both ranks are there, B reaches {_STARVED.rate} MB/s and A "
            f"{_SLOW.rate}. And which rank of D computes for longer?",
        ),
        _option(
            "sick-for-healthy",
            {"B": "none", "C": "data"},
            f"Three are right. A step of B takes {_STARVED.step} ms, and a step of C {_WELL.step}, the shortest of all "
            f"five. The extra time of B is before its forward pass: {_and(_STARVED.data)}.",
        ),
        _option(
            "long-collectives",
            {"A": "rank 1", "D": "link"},
            f"Three are right. In A the ranks compute for {_and(_SLOW.compute)} and wait {_and(_SLOW.waited)} for "
            f"each other, so no rank is slow. In D the collectives reach {_STRAGGLER.rate} MB/s once both ranks are "
            "there, more than in the healthy run. Rank 0 is in them for so long because it waits for rank 1.",
        ),
    ),
)

EXERCISES = (FIVE_RUNS,)
