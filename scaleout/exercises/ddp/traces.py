"""Exercises of `ddp` on five traces of real runs: name the cause, by the figures of `records.trace.summary`."""

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
    """What a trace of two ranks says of one step: whole milliseconds, pairs by rank; `rate` in MB/s (10^6 bytes)."""

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
        round(mean(summary["step_seconds"]) * 1e3), pair("compute_seconds"), pair("communication_seconds"),
        pair("exposed_seconds"), pair("waited_seconds"), pair("data_seconds"), round(summary["collectives"]),
        round(summary["bytes_each"] / 1e3), round(summary["bytes_per_second"] / 1e6),
    )  # fmt: skip


# Read off the recorded runs of labs/ddp.py on two processes, gloo, 2 cores; a test reads them off again.
FIGURES = {
    "trace-healthy.json": Figures(70, (65, 62), (25, 29), (2, 5), (8, 14), (0, 0), 5, 1039, 197),
    "trace-straggler.json": Figures(90, (63, 86), (55, 16), (25, 1), (49, 0), (0, 0), 5, 1039, 239),
    "trace-tiny-buckets.json": Figures(113, (84, 80), (84, 84), (24, 29), (15, 15), (0, 0), 68, 76, 32),
    "trace-slow-link.json": Figures(166, (63, 64), (130, 131), (99, 99), (2, 3), (1, 0), 5, 1039, 40),
    "trace-starved.json": Figures(116, (72, 68), (13, 21), (1, 5), (2, 13), (41, 41), 5, 1039, 398),
}
_WELL = FIGURES["trace-healthy.json"]


def _and(pair: tuple[int, int]) -> str:
    return f"{pair[0]} and {pair[1]} ms"


def _table(one: Figures) -> str:
    rows = (("step", f"{one.step} ms"), ("compute, rank 0 and 1", _and(one.compute)),
            ("waiting for data, before the forward", _and(one.data)),
            ("communication", _and(one.communication)), ("of it exposed", _and(one.exposed)),
            ("of it waiting for the other rank", _and(one.waited)),
            ("collectives", f"{one.collectives} of {one.kilobytes_each:,} kB"),
            ("their rate, once both ranks are there", f"{one.rate} MB/s"))  # fmt: skip
    return "\n".join(f"- {name}: {words}" for name, words in rows)


def _not_healthy(one: Figures) -> str:
    return f"A healthy step of this model takes {_WELL.step} ms, and this one takes {one.step}. Something adds to it."


def _not_slow_rank(rank: int):
    def words(one: Figures) -> str:
        mine, other = one.compute[rank], one.compute[1 - rank]
        if mine < other - 5:
            return (f"Rank {rank} spends {one.waited[rank]} ms in collectives before the other one comes: it is the "
                    f"one that waits. It computes for {mine} ms, the other for {other}. The slow rank never waits.")
        return (f"A slow rank {rank} would compute longer than the other, which would wait for it. They compute for "
                f"{_and(one.compute)}, and wait {_and(one.waited)} for each other.")  # fmt: skip

    return words


def _not_tiny(one: Figures) -> str:
    return (f"There are {one.collectives} collectives of {one.kilobytes_each:,} kB in a step: few and large. Tiny "
            "buckets would show as a comb of dozens of short ones.")  # fmt: skip


def _not_slow_link(one: Figures) -> str:
    if one.collectives > 10:
        return (f"{one.rate} MB/s is little indeed, but look at the messages: {one.collectives} of "
                f"{one.kilobytes_each} kB. Most of the time goes into starting them, which a faster link does not "
                "change.")  # fmt: skip
    return (f"With both ranks there, the collectives move {one.rate} MB/s. A slow link would stick out of the backward "
            f"on both ranks alike: here {_and(one.exposed)} are exposed.")  # fmt: skip


def _not_starved(one: Figures) -> str:
    return (f"Before the forward the ranks wait {'at most 1 ms' if max(one.data) <= 1 else _and(one.data)} for their "
            "data. A starved run has a gap there, on every rank, with neither compute nor communication in "
            "it.")  # fmt: skip


# Cause -> (label, what is said of it where it is wrong). The keys are the ends of the files' names, and a rank.
_CAUSES = {
    "healthy": ("Nothing: it is healthy", _not_healthy),
    "straggler-0": ("Rank 0 computes more slowly", _not_slow_rank(0)),
    "straggler-1": ("Rank 1 computes more slowly", _not_slow_rank(1)),
    "tiny-buckets": ("The buckets are too small", _not_tiny),
    "slow-link": ("The link is the slow part", _not_slow_link),
    "starved": ("The data come too late", _not_starved),
}


def _right(one: Figures) -> dict[str, str]:
    """What decides each cause, in the figures of its trace."""
    return {
        "healthy": f"Right: the ranks compute for {_and(one.compute)} of {one.step}, and of {_and(one.communication)} "
        f"of communication only {_and(one.exposed)} are exposed. No gap before the forward, no long wait.",
        "straggler-1": f"Right: rank 1 computes for {one.compute[1]} ms, rank 0 for {one.compute[0]}. Rank 0 then "
        f"waits {one.waited[0]} ms inside its collectives, rank 1 waits {one.waited[1]}. The rank whose collectives "
        "look long is the healthy one.",
        "tiny-buckets": f"Right: {one.collectives} collectives of {one.kilobytes_each} kB where the healthy run has "
        f"{_WELL.collectives} of {_WELL.kilobytes_each:,}. The bytes are the same. The starts are not, and on a CPU "
        f"they take compute time too: {_and(one.compute)} instead of {_and(_WELL.compute)}.",
        "slow-link": f"Right: both ranks compute as ever ({_and(one.compute)}) and hardly wait for each other "
        f"({_and(one.waited)}), but with both of them there a collective moves {one.rate} MB/s instead of "
        f"{_WELL.rate}. {_and(one.exposed)} are exposed.",
        "starved": f"Right: both ranks stand still for {_and(one.data)} before their forward, without compute and "
        f"without communication, in a step of {one.step} ms. The link is fast: {one.rate} MB/s with both ranks there.",
    }


# Where to look next, by cause: the rest of the solution.
_CURE = {
    "healthy": "Keep such a trace: it is what you hold the others against.",
    "straggler-1": "Ask what is different on that rank: another load on its host, a hot GPU, longer sequences.",
    "tiny-buckets": "Raise `bucket_cap_mb`, or take it out: 25 MiB is a good start.",
    "slow-link": "Send fewer bytes (accumulate, compress, larger batch), or find out why the fast link is not used.",
    "starved": "More workers, prefetching, cheaper preprocessing: the GPUs are not what needs tuning.",
}


def _exercise(letter: str, file: str) -> Choice:
    one, cause = FIGURES[file], file.removeprefix("trace-").removesuffix(".json")
    cause = "straggler-1" if cause == "straggler" else cause
    right = _right(one)[cause]
    options = [Option(name, label, right, True) if name == cause else Option(name, label, wrong(one))
               for name, (label, wrong) in _CAUSES.items()]  # fmt: skip
    return Choice(
        key=f"trace-{letter.lower()}", level=3, title=f"Trace {letter}: what slows it down?",
        prompt=f"Picture **{letter}** shows steps of a real DDP run on two ranks. All five pictures are the same "
        f"model, and one of the runs is healthy. In the mean over its steps:\n\n{_table(one)}\n\nWhat is wrong with "
        f"run {letter}?",
        hints=("Compare the two ranks first. Then ask what fills the time of a step that is not compute.",
               "A collective begins when a rank comes to it and ends when all are done: a long one is slow, or "
               "waiting.",
               "Figures that decide: compute by rank, waiting by rank, the gap before the forward, the number of "
               "collectives, the exposed part."),
        solution=f"**{_CAUSES[cause][0]}.** "
        f"{right.removeprefix('Right: ')[:1].upper()}{right.removeprefix('Right: ')[1:]}\n\n{_CURE[cause]}",
        options=tuple(options),
    )  # fmt: skip


EXERCISES = tuple(_exercise(letter, file) for letter, file in TRACES.items())
