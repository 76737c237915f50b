"""Exercises of `bottlenecks` on real counters: sealed runs of labs/bottlenecks.py on two processes, as its Record has
them. A test reads them from the Record again."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option

RECORD = "labs/results/bottlenecks/smoke-cpu-2.json"


@dataclass(frozen=True)
class Seen:
    """A run's counters, times in ms: step, compute, its FLOPs and its bytes at the machine's full rates; FLOPs by what
    the model needs; per cent of the memory limit."""

    step: int
    compute: float
    flops: float
    bytes: float
    repeated: float
    full: int


# Letter -> (number of the run in the Record, its counters).
RUNS = {
    "A": (6, Seen(322, 301.0, 232.7, 0.4, 1.00, 0)),
    "B": (8, Seen(25, 9.8, 1.1, 0.5, 1.19, 98)),
    "C": (1, Seen(256, 184.0, 0.9, 156.9, 1.00, 0)),
}


def _row(words: str, name: str, digits: int) -> str:
    return f"{words:26}" + "".join(f"{getattr(seen, name):8.{digits}f}" for _, seen in RUNS.values())


_TABLE = "\n".join(
    [
        f"{'':26}" + "".join(f"{letter:>8}" for letter in RUNS),
        _row("step, ms", "step", 0),
        _row("compute, ms", "compute", 1),
        _row("FLOPs at full rate, ms", "flops", 1),
        _row("bytes at full rate, ms", "bytes", 1),
        _row("FLOPs / model's FLOPs", "repeated", 2),
        _row("memory, % of the limit", "full", 0),
    ]
)


def _option(name: str, scarce: tuple[str, str, str], reason: str, right: bool = False) -> Option:
    return Option(name, ", ".join(f"{letter} {word}" for letter, word in zip(RUNS, scarce, strict=True)), reason, right)


SEALED = Choice(
    key="sealed-counters",
    level=2,
    minutes=4,
    title="Three sealed runs",
    prompt="Three runs of the lab, on two processes. In all three, *compute* (forward and backward) is the longest "
    "phase of the step. The two lines under it say how long the step's FLOPs would take at the rate of a large matmul "
    "on this machine, and how long its bytes would take at the rate of a large copy. All counters were measured:\n\n"
    f"```\n{_TABLE}\n```\n\n"
    "Which resource is each run short of? *Capacity*: memory is full, so that activations are recomputed. *Bandwidth*: "
    "the bandwidth of the memory.",
    hints=(
        "Look for a full memory first. What does a run do that cannot store its activations?",
        "Then compare the two times at full rate. Compute takes at least as long as the longer of them.",
    ),
    solution="**A is short of arithmetic:** its FLOPs need at least 233 of the 301 ms, and its bytes next to nothing. "
    "**B is short of memory capacity:** 98% of the limit is in use, and the step makes 1.19 times the FLOPs that the "
    "model needs, because activations are recomputed. Its compute phase is the tallest bar, but faster arithmetic is "
    "the wrong remedy: with more memory, or with states that are split, the additional FLOPs go away. **C is short of "
    "memory bandwidth:** reading and writing its bytes takes at least 157 of the 184 ms, and its FLOPs take one.",
    options=(
        _option(
            "capacity-in-b",
            ("arithmetic", "capacity", "bandwidth"),
            "Right: first the full memory and its repeated FLOPs, then the longer of two times at full rate.",
            True,
        ),
        _option(
            "compute",
            ("arithmetic", "arithmetic", "arithmetic"),
            "Compute is a phase, and three resources can make it long. Two of the three are short of another one.",
        ),
        _option(
            "no-capacity",
            ("arithmetic", "arithmetic", "bandwidth"),
            "Two are right. In B memory is nearly full, and the step makes more FLOPs than the model needs. Why?",
        ),
        _option(
            "swapped",
            ("bandwidth", "capacity", "arithmetic"),
            "One is right. Of the two times at full rate the longer one is the bound: which is it in A, and in C?",
        ),
        _option(
            "swapped-all",
            ("bandwidth", "arithmetic", "arithmetic"),
            "None is right. Which of the two times at full rate is the longer one? And whose memory is full?",
        ),
    ),
)

EXERCISES = (SEALED,)
