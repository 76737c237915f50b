"""Which resource is scarce in a run, told from counters that any training loop can keep. The rule abstains where no
resource stands out.
"""

from __future__ import annotations

from dataclasses import dataclass

ARITHMETIC, TRAFFIC, NETWORK, WAITING, INPUT, FIXED, CAPACITY, GAUGE = RESOURCES = (
    "arithmetic", "traffic", "network", "waiting", "input", "fixed", "capacity", "gauge",
)  # fmt: skip
NAMES = {
    ARITHMETIC: "arithmetic", TRAFFIC: "memory bandwidth", NETWORK: "network bandwidth",
    WAITING: "waiting for a slow rank", INPUT: "input", FIXED: "a fixed cost per step",
    CAPACITY: "memory capacity, so that activations are recomputed",
    GAUGE: "the gauge: the timer misses part of the step",
}  # fmt: skip
UNSEEN = 0.5  # of the wall-clock time: so much outside the step timer, and the timer is what is wrong
FULL, REPEATED = (
    0.9,
    1.1,
)  # of the memory limit, and times the model's FLOPs: then the run recomputes for want of memory
CLEAR = 1.5  # times the next largest: what is named must stand out


@dataclass(frozen=True)
class Counters:
    """What one step of a run takes: seconds and counts of one rank, or of the rank where they are largest.

    wall: from one step to the next; timer: what the job's own step timer shows. input: waiting for the batch. compute:
    forward and backward. wait: in the gradient all-reduce, until the last rank arrives; transfer: after that. update:
    optimizer and everything else inside the step. doubled: wall with twice as many sequences.
    flops, bytes: floating-point operations, and bytes that kernels read and write. model_flops: what the model needs
    without recomputation. flop_per_s, bytes_per_s: what this machine reaches in large matmuls and large copies.
    memory, limit: bytes at the peak, and what there is.
    """

    wall: float
    timer: float
    input: float
    compute: float
    wait: float
    transfer: float
    update: float
    doubled: float
    flops: float
    model_flops: float
    bytes: float
    flop_per_s: float
    bytes_per_s: float
    memory: float
    limit: float


@dataclass(frozen=True)
class Verdict:
    """resource: one of RESOURCES, None where none stands out. why: the counters that decided."""

    resource: str | None
    why: str


def seconds_by(counters: Counters) -> dict[str, float]:
    """Step time by resource. Compute is arithmetic or memory traffic, whichever takes longer at full rate: the
    roofline (Williams et al., 2009)."""
    at_full_rate = {ARITHMETIC: counters.flops / counters.flop_per_s, TRAFFIC: counters.bytes / counters.bytes_per_s}
    bound = max(at_full_rate, key=lambda name: at_full_rate[name])
    return {
        ARITHMETIC: counters.compute if bound == ARITHMETIC else 0.0,
        TRAFFIC: counters.compute if bound == TRAFFIC else 0.0,
        NETWORK: counters.transfer,
        WAITING: counters.wait,
        INPUT: counters.input,
        FIXED: counters.update,
    }


def verdict(counters: Counters) -> Verdict:
    """The scarce resource. First the gauge, then memory that is full, then the tallest bar, if it stands out."""
    c = counters
    if c.wall - c.timer > UNSEEN * c.wall:
        return Verdict(GAUGE, f"{c.wall * 1e3:.0f} ms per step by the clock, {c.timer * 1e3:.0f} by the timer")
    if c.memory >= FULL * c.limit and c.flops >= REPEATED * c.model_flops:
        repeated = f"{c.flops / c.model_flops:.2f} times the FLOPs that the model needs"
        return Verdict(CAPACITY, f"memory is {c.memory / c.limit:.0%} full, and the step makes {repeated}")
    bars = seconds_by(c)
    tallest, following = sorted(bars, key=lambda name: bars[name], reverse=True)[:2]
    shown = f"{bars[tallest] * 1e3:.0f} ms of {c.wall * 1e3:.0f}"
    shown += f"; next is {NAMES[following]} with {bars[following] * 1e3:.0f}"
    if bars[tallest] < CLEAR * bars[following]:
        return Verdict(None, f"no resource stands out: {NAMES[tallest]} takes {shown}")
    return Verdict(tallest, f"{NAMES[tallest]} takes {shown}")
