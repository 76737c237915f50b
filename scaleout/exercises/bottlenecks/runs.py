"""The exercises of `bottlenecks` on the goal itself: five described runs, and the verdict as a function."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option
from scaleout.timing import verdict as rule
from scaleout.timing.verdict import ARITHMETIC, CAPACITY, GAUGE, NETWORK, RESOURCES, TRAFFIC, WAITING, Counters

RIGHT = {"A": "input", "B": "fixed", "C": "network", "D": "arithmetic", "E": "waiting"}


def _option(name: str, scarce: tuple[str, ...], reason: str, right: bool = False) -> Option:
    return Option(name, ", ".join(f"{run} {word}" for run, word in zip(RIGHT, scarce, strict=True)), reason, right)


FIVE_RUNS = Choice(
    key="five-runs",
    level=3,
    minutes=6,
    title="Five jobs at the morning meeting",
    prompt="Five jobs, each described by the person who runs it:\n\n"
    "- **A.** *Twice the batch takes twice as long. The GPUs' utilization falls to zero at the beginning of each step. "
    "On GPUs that are twice as fast the throughput is the same.*\n"
    "- **B.** *Twice the batch takes 8% longer. In the profile all communication overlaps with the backward. The "
    "GPUs run no kernels for 0.9 s after the backward, and memory is half empty, because we moved the optimizer.*\n"
    "- **C.** *Twice the batch takes 10% longer. The all-reduce takes 600 ms on every rank, and 520 of them are after "
    "the end of the backward. All ranks enter it within 3 ms.*\n"
    "- **D.** *Twice the batch takes 1.96 times as long. NCCL's kernels run for a third of the step, nearly all during "
    "the backward. Memory is 97% full, nothing is recomputed, and utilization (MFU) is 51%.*\n"
    "- **E.** *The all-reduce takes 310 ms on seven ranks, and 15 ms on the eighth. A test of the network between the "
    "nodes reaches its full bandwidth.*\n\n"
    "Which resource is each job short of? *Fixed*: a fixed cost per step. *Waiting*: for a slow rank. *Memory*: "
    "memory capacity.",
    hints=(
        "Sort by what twice the batch does: which costs grow with it, and which do not?",
        "Both a fixed cost and the communication of gradients stay the same with twice the batch. What tells them "
        "apart?",
        "An all-reduce takes long on a rank that waits in it. How long does it take on the rank that arrives last?",
    ),
    solution="**A is short of input.** Time that grows with the batch, no kernels at the beginning of a step, and no "
    "gain from faster GPUs. More loader workers.\n\n"
    "**B has a fixed cost per step.** Communication is hidden and GPUs have nothing to do after the backward: the "
    "optimizer was moved to the CPU, and its update takes as long for every batch. Memory is free, so move it back, "
    "or make the batch larger.\n\n"
    "**C is short of network bandwidth.** All ranks are there, and 520 ms are exposed. The bytes of gradients do not "
    "depend on the batch, so a larger batch is a good first lever, with more overlap.\n\n"
    "**D is short of arithmetic,** the healthy case: time follows the batch, communication is hidden, and half of the "
    "peak is reached. Full memory costs nothing here. Lower precision, or more GPUs.\n\n"
    "**E waits for its eighth rank.** It is the one whose all-reduce is short. The network was tested and is fine.",
    options=(
        _option(
            "as-evidence",
            tuple(RIGHT.values()),
            "Right, all five: each with one observation that the other four do not have.",
            True,
        ),
        _option(
            "b-c-and-e",
            ("input", "network", "fixed", "arithmetic", "network"),
            "Two are right. In B all communication is hidden, and in C 520 ms of it are exposed. And whose all-reduce "
            "is short in E?",
        ),
        _option(
            "all-network",
            ("input", "network", "network", "arithmetic", "network"),
            "Three are right. A job is short of the network only where communication is exposed after all ranks have "
            "arrived.",
        ),
        _option(
            "memory-and-network",
            ("input", "network", "network", "memory", "network"),
            "Two are right. Full memory in D costs no time, since nothing is recomputed for it. And is the "
            "communication of B exposed?",
        ),
        _option(
            "faster-gpus",
            ("arithmetic", "fixed", "network", "memory", "network"),
            "Two are right. Faster GPUs do not help A. Full memory costs no time by itself. And one rank of E is not "
            "like the others.",
        ),
        _option(
            "swapped-b-c",
            ("input", "network", "fixed", "memory", "waiting"),
            "Two are right. In B all communication is hidden, and in C 520 ms of it are exposed. And what does the "
            "full memory of D cost?",
        ),
    ),
)

_STUB = '''\
ARITHMETIC, BANDWIDTH, NETWORK, WAITING = 0, 1, 2, 3
INPUT, FIXED, CAPACITY, GAUGE, NONE = 4, 5, 6, 7, -1

def scarce(c):
    """The scarce resource by its number.

    c: dict with the seconds "wall", "timer", "input", "compute",
       "wait", "transfer", "update" of a step; its "flops",
       "model_flops" and "bytes"; the machine's "flop_per_s" and
       "bytes_per_s"; bytes of "memory" in use and their "limit"
    """
    return ...
'''
_SOLUTION = """\
ARITHMETIC, BANDWIDTH, NETWORK, WAITING = 0, 1, 2, 3
INPUT, FIXED, CAPACITY, GAUGE, NONE = 4, 5, 6, 7, -1

def scarce(c):
    if c["wall"] - c["timer"] > 0.5 * c["wall"]:
        return GAUGE
    full = c["memory"] >= 0.9 * c["limit"]
    if full and c["flops"] >= 1.1 * c["model_flops"]:
        return CAPACITY
    arithmetic = c["flops"] / c["flop_per_s"]
    bandwidth = c["bytes"] / c["bytes_per_s"]
    bound = ARITHMETIC if arithmetic >= bandwidth else BANDWIDTH
    bars = {bound: c["compute"], NETWORK: c["transfer"],
            WAITING: c["wait"], INPUT: c["input"],
            FIXED: c["update"]}
    first, second = sorted(bars, key=lambda name: -bars[name])[:2]
    return first if bars[first] >= 1.5 * bars[second] else NONE
"""


_CAPACITY, _GAUGE = RESOURCES.index(CAPACITY), RESOURCES.index(GAUGE)


def _number(resource: str | None) -> int:
    return -1 if resource is None else RESOURCES.index(resource)


def _counters(c: dict) -> Counters:
    return Counters(**c, doubled=c["wall"])


def scarce(c: dict) -> int:
    """The package's verdict, as a number of RESOURCES, and -1 where it names none."""
    return _number(rule.verdict(_counters(c)).resource)


def _tallest(
    c: dict, bars: dict | None = None, stands_out=lambda first, second, c: first >= rule.CLEAR * second
) -> int:
    """The tallest bar alone, without a look at the gauge and the memory."""
    bars = bars or rule.seconds_by(_counters(c))
    first, second = sorted(bars, key=lambda name: bars[name], reverse=True)[:2]
    return _number(first) if stands_out(bars[first], bars[second], c) else -1


def _after_checks(c: dict, **changes) -> int:
    """The verdict with another rule for the bars."""
    resource = scarce(c)
    return resource if resource in (_GAUGE, _CAPACITY) else _tallest(c, **changes)


def _arithmetic_alone(c: dict) -> int:
    return _after_checks(c, bars=rule.seconds_by(_counters(c)) | {ARITHMETIC: c["compute"], TRAFFIC: 0.0})


def _one_network(c: dict) -> int:
    return _after_checks(c, bars=rule.seconds_by(_counters(c)) | {NETWORK: c["transfer"] + c["wait"], WAITING: 0.0})


_EVEN = {
    "wall": 0.5, "timer": 0.5, "input": 0.1, "compute": 0.11, "wait": 0.09, "transfer": 0.12, "update": 0.08,
    "flops": 8e12, "model_flops": 8e12, "bytes": 2e10, "flop_per_s": 1e14, "bytes_per_s": 1e12,
    "memory": 40e9, "limit": 80e9,
}  # fmt: skip


def _case(**changes) -> tuple[dict]:
    c = _EVEN | changes
    phases = sum(c[name] for name in ("input", "compute", "wait", "transfer", "update"))
    unseen = c.pop("unseen", 0.0)
    return (c | {"wall": round(phases + unseen, 6), "timer": round(phases, 6)},)


FIND = Function(
    key="find-bottleneck",
    level=3,
    minutes=12,
    title="The verdict, as a function",
    prompt="Write `scarce(c)`, which reads the counters of a run and returns the number of the resource that it is "
    "short of. The first rule that applies decides:\n\n"
    "1. More than half of `wall` is outside `timer`: `GAUGE`.\n"
    "2. At least 90% of the memory limit is in use, **and** the step makes at least 1.1 times `model_flops`: "
    "`CAPACITY`.\n"
    "3. The tallest of five bars, where it is at least 1.5 times the next one: `transfer` is `NETWORK`, `wait` is "
    "`WAITING`, `input` is `INPUT`, `update` is `FIXED`. The bar `compute` is `ARITHMETIC` where the step's FLOPs take "
    "at least as long at full rate as its bytes do, else it is `BANDWIDTH`.\n"
    "4. Otherwise `NONE`.",
    hints=(
        "Rules 1 and 2 are two lines each, with a `return`.",
        "Put the five bars in a dict, sort its keys by their values, and take the first two.",
        'FLOPs at full rate take `c["flops"] / c["flop_per_s"]` seconds.',
    ),
    solution=f"```python\n{_SOLUTION}```\n\nThe order of the rules matters. A gauge that is wrong makes all other "
    "counters worthless. Full memory comes before the bars because it shows in another bar: a run that has to "
    "recompute looks as if it were short of arithmetic. `scaleout/timing/verdict.py` is the same rule, with words for "
    "its reason. The limits of 0.5, 0.9, 1.1 and 1.5 are choices. Lower ones name more, and are wrong more often.",
    function="scarce",
    stub=_STUB,
    reference=scarce,
    index=True,
    cases=(
        _case(),
        _case(transfer=0.4),
        _case(wait=0.3, transfer=0.11),
        _case(wait=0.16, transfer=0.1),
        _case(wait=0.09, transfer=0.09),
        _case(wait=0.14, transfer=0.13, input=0.12),
        _case(input=0.2),
        _case(update=0.149),
        _case(update=1.2),
        _case(compute=0.3),
        _case(compute=0.3, bytes=9e10),
        _case(compute=0.9, bytes=2e11),
        _case(compute=0.25, bytes=8.1e10),
        _case(compute=0.16, input=0.15, bytes=4e11),
        _case(unseen=0.6),
        _case(unseen=0.4, input=0.2),
        _case(unseen=2.0, compute=0.5, transfer=0.02),
        _case(unseen=1.3, wait=0.5),
        _case(compute=0.3, flops=1.1e13, memory=78e9),
        _case(compute=0.3, flops=1.1e13, memory=60e9),
        _case(compute=0.3, flops=8.4e12, memory=79e9),
        _case(input=0.5, flops=8e12, memory=79e9),
        _case(transfer=0.5, memory=76e9),
        _case(input=0.6, flops=1.06e13, memory=75e9),
        _case(update=0.4, flops=1.05e13, memory=70e9),
        _case(wait=0.4, flops=1.0e13, memory=50e9),
        _case(unseen=0.9, flops=1.1e13, memory=78e9),
        _case(flops=1.0e13, memory=79e9),
        _case(input=0.3, transfer=0.19),
        _case(update=0.16, wait=0.01, transfer=0.01),
    ),
    mistakes=(
        Mistake(
            "no-gauge",
            lambda c: scarce(c | {"timer": c["wall"]}),
            "You do not look at the timer. Where it misses most of the step, the other counters prove nothing.",
        ),
        Mistake(
            "full-alone",
            lambda c: _CAPACITY if scarce(c) != _GAUGE and c["memory"] >= rule.FULL * c["limit"] else scarce(c),
            "Full memory alone is no bottleneck. The run must also make more FLOPs than the model needs.",
        ),
        Mistake(
            "repeated-alone",
            lambda c: scarce(c | {"memory": c["limit"]}),
            "A run that recomputes although memory is free is not short of memory capacity.",
        ),
        Mistake(
            "always-names",
            lambda c: _after_checks(c, stands_out=lambda first, second, c: True),
            "You always name the tallest bar. It must be 1.5 times the next one.",
        ),
        Mistake(
            "half-of-the-step",
            lambda c: _after_checks(c, stands_out=lambda first, second, c: first > 0.5 * c["wall"]),
            "You compare the tallest bar with the step. It has to stand out from the next bar.",
        ),
        Mistake(
            "compute-is-arithmetic",
            _arithmetic_alone,
            "You take all compute for arithmetic. Which takes longer at full rate, the FLOPs or the bytes?",
        ),
        Mistake(
            "one-network",
            _one_network,
            "You added waiting to the network. A rank that waits for another one is not waiting for bytes.",
        ),
        Mistake("bars-alone", _tallest, "You look at the bars alone. The gauge and the memory come before them."),
    ),
    right="You have written what a monitoring tool should say, with the courage to say nothing.",
)

EXERCISES = (FIVE_RUNS, FIND)
