"""Exercises of `ddp` on time: what the backward pass hides, what stays exposed, and how a job scales."""

from __future__ import annotations

from math import ceil

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.timing.ddp import Layer, ddp_step
from scaleout.timing.scaling import strong_efficiency

_TIME, _SHARE = ("s", "ms", "µs"), ("%", "share")
_MS = 1e-3
_FORWARD, _BACKWARD, _WIRE = 100, 200, 260  # milliseconds
# Many small layers, one bucket each: communication starts with the backward, as the prompt assumes.
_MAX_PASSES = 2000


def _step(wire: float, overlap: bool = True) -> float:
    """The step time where all communication takes `wire` milliseconds."""
    layers = [Layer("", _FORWARD * _MS / _MAX_PASSES, _BACKWARD * _MS / _MAX_PASSES, 1) for _ in range(_MAX_PASSES)]
    step = ddp_step(
        layers, lambda size: size * wire * _MS / _MAX_PASSES, cap_bytes=1, first_cap_bytes=1, overlap=overlap
    )
    return round(step.seconds, 3)  # less the one layer that computes before the first message


_PASS = (
    f"A model's forward pass takes **{_FORWARD} ms** and its backward pass **{_BACKWARD} ms**. The all-reduce of all "
    f"gradients takes **{_WIRE} ms**"
)
_STEP = _step(_WIRE)

_HALVED = _step(_WIRE / 2)

COMPRESSED = Number(
    key="compressed",
    level=2,
    title="Half the bytes",
    prompt=f"{_PASS}. It begins with the backward pass, overlaps with it, and does not slow it. Now a hook sends the "
    "gradients in **bf16** instead of fp32. Latency and conversion cost nothing. How long is a step now, without the "
    "optimizer?",
    hints=(
        "Half the bytes take half the time. Forward and communication cannot overlap: there are no gradients yet.",
        "Backward and communication overlap, so the longer of the two counts.",
    ),
    solution=f"In fp32, {_WIRE - _BACKWARD} ms of the all-reduce were exposed: {_FORWARD} + max({_BACKWARD}, {_WIRE}) "
    f"= {_STEP * 1e3:.0f} ms. In bf16 it takes {_WIRE // 2} ms, and the backward pass hides all of it: {_FORWARD} + "
    f"max({_BACKWARD}, {_WIRE // 2}) = **{_HALVED * 1e3:.0f} ms**. More compression would gain nothing. (A real step "
    "is a little longer, because the last bucket is never hidden.)",
    value=_HALVED,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip(
            "no-overlap",
            0.430,
            "That is all three, one after the other. The all-reduce overlaps with the backward pass.",
        ),
        Slip(
            "half-the-step",
            0.180,
            "Either you halved the whole step, or the compute as well. Here bf16 halves the communication only: "
            "forward and backward take as long as before.",
        ),
        Slip(
            "half-the-exposed",
            0.330,
            "Either you halved the exposed 60 ms, or you put the all-reduce after the backward pass and left out the "
            "forward pass. The whole all-reduce takes half as long, and it still overlaps with the backward pass.",
        ),
        Slip(
            "saved-in-full",
            0.230,
            "That is the step in fp32 minus all that the all-reduce saves, or forward and all-reduce alone. No step "
            "is shorter than its compute.",
        ),
        Slip("as-before", 0.360, "That is the step in fp32. Half the bytes take half the time."),
    ),
    right="The link is idle for part of the step now, and compute is the limit.",
)

STRONG = {1: 8.0, 2: 4.4, 4: 2.5, 8: 1.6}  # seconds per step for the same batch in total, by ranks
_STRONG = strong_efficiency(STRONG)[8]


def _table(times: dict[int, float]) -> str:
    return "\n".join(f"- {ranks} rank{'s' if ranks > 1 else ''}: {seconds:g} s" for ranks, seconds in times.items())


STRONG_SCALING = Number(
    key="strong-scaling",
    level=2,
    title="Strong scaling",
    prompt=f"A step on the **same total batch** takes\n\n{_table(STRONG)}\n\nWhat is the efficiency of strong "
    "scaling on 8 ranks?",
    hints=("The speed-up is the time on one rank over the time on 8.", "Efficiency compares it with the ideal, 8."),
    solution=f"Speed-up: 8.0 / 1.6 = 5. Efficiency: 5 / 8 = **{_STRONG:.1%}**. In strong scaling each rank's part of "
    "the batch shrinks, and so does the backward pass that hides the communication. The bytes stay the same.\n\nIn "
    "weak scaling the batch per rank stays the same, and the efficiency is the step time on one rank over that on 8.",
    value=_STRONG,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("speed-up", 5, "5 is the speed-up. The efficiency compares it with the ideal speed-up."),
        Slip(
            "time-ratio", 0.2, "That is the time on 8 ranks as a share of the time on one. What share would be ideal?"
        ),
        Slip(
            "inverted",
            1.6,
            "That is the step time over the ideal one. Efficiency is the other way round, and at most 100%.",
        ),
        Slip(
            "last-doubling",
            2.5 / (2 * 1.6),
            "That is the doubling from 4 to 8 ranks only. Efficiency is relative to one rank.",
        ),
        Slip("lost", 1 - _STRONG, "That is the share that is lost. The efficiency is the rest."),
        Slip("ideal", 1 / 8, "That is the ideal time as a share of the time on one rank. What was reached?"),
    ),
    right="Eight ranks do the work of five.",
)

_BATCH_STUB = '''\
from math import ceil


def smallest_batch(seconds_each, gradient_bytes, ranks, rate):
    """Fewest sequences per rank that hide the all-reduce.

    seconds_each: forward and backward of one sequence
    rate: bytes per second of each rank's link
    """
    return ...
'''

_BATCH_SOLUTION = """\
from math import ceil


def smallest_batch(seconds_each, gradient_bytes, ranks, rate):
    wire = 2 * (ranks - 1) / ranks * gradient_bytes / rate
    backward = 2 / 3 * seconds_each
    return max(1, ceil(wire / backward))
"""


def _needed(factor=lambda ranks: 2 * (ranks - 1) / ranks, share=2 / 3, rounded=ceil):
    """The function with another factor of the all-reduce, share of the backward, or rounding."""

    def batch(seconds_each: float, gradient_bytes: float, ranks: int, rate: float) -> int:
        return max(1, rounded(factor(ranks) * gradient_bytes / rate / (share * seconds_each)))

    return batch


SMALLEST_BATCH = Function(
    key="smallest-batch",
    level=3,
    title="The smallest batch that hides it",
    prompt="Write `smallest_batch(seconds_each, gradient_bytes, ranks, rate)`: the smallest **whole** number of "
    "sequences per rank for which the backward pass takes at least as long as the ring all-reduce. It is at least "
    "1.\n\n"
    "- `seconds_each`: forward and backward of one sequence. Time is proportional to the batch, and the backward "
    "pass takes **twice** as long as the forward pass.\n"
    "- `rate`: bytes per second of each rank's link. Ignore latency.",
    hints=(
        "First compute the time of the all-reduce: 2(W−1)/W × bytes / rate.",
        "Two thirds of `seconds_each` are the backward pass. The forward pass hides nothing.",
        "Round up: `math.ceil`.",
    ),
    solution="```python\n"
    f"{_BATCH_SOLUTION}```\n\n"
    f"A 1B model in fp32 (4 GB of gradients) on 16 ranks, 50 ms per sequence: {_needed()(0.05, 4e9, 16, 50e9)} "
    "sequences "
    f"over 400 Gbit/s, {_needed()(0.05, 4e9, 16, 1.25e9)} over 10 Gbit/s. If a slow link needs a larger batch than "
    "you want, accumulate or compress.",
    function="smallest_batch",
    stub=_BATCH_STUB,
    reference=_needed(),
    # Times that fit exactly have a short binary fraction, so that no order of the terms rounds them up.
    cases=(
        (0.05, 4e9, 16, 50e9),
        (0.052, 4e9, 16, 1.25e9),
        (0.3, 4e8, 8, 10e9),
        (0.011, 26e9, 64, 50e9),
        (0.75, 1e9, 2, 2.5e8),
        (0.1, 4e9, 1, 1e9),
        (0.19, 7e9, 3, 1.5e9),
        (0.021, 3e9, 7, 12.5e9),
        (1.5, 3e9, 8, 2.5e8),
        (0.375, 5e9, 4, 2e9),
        (0.03, 7e9, 1, 2e9),
        (2.0, 1e6, 1, 50e9),
    ),
    mistakes=(
        Mistake(
            "forward-hides",
            _needed(share=1),
            "You let the forward pass hide communication too. It has no gradients yet: only the backward pass can.",
        ),
        Mistake(
            "half-the-time",
            _needed(share=1 / 2),
            "You used half of the time for the backward pass. It takes twice as long as the forward pass.",
        ),
        Mistake(
            "forward-only",
            _needed(share=1 / 3),
            "That third is the forward pass. The backward pass hides the all-reduce.",
        ),
        Mistake(
            "message-once",
            _needed(factor=lambda ranks: 1 if ranks > 1 else 0),
            "Your function sends the gradients once. In a ring each rank sends more than that. (If you used //: it "
            "rounds down, and may make your factor smaller.)",
        ),
        Mistake(
            "forgot-all-gather",
            _needed(factor=lambda ranks: (ranks - 1) / ranks),
            "That is the reduce-scatter only, half of an all-reduce.",
        ),
        Mistake(
            "through-one-rank",
            _needed(factor=lambda ranks: 2 * (ranks - 1)),
            "That is an all-reduce through one rank, which receives and sends all gradients of every other rank. In a "
            "ring a rank sends chunks only.",
        ),
        Mistake(
            "factor-two",
            _needed(factor=lambda ranks: 2),
            "Your ranks send all chunks in each half of the ring. Each rank leaves one out, and a single rank sends "
            "nothing.",
        ),
        Mistake(
            "none-for-one",
            lambda *case: 0 if case[2] == 1 else _needed()(*case),
            "For one rank you return 0. It has nothing to hide, but the result is at least 1.",
        ),
        Mistake(
            "rounded-down",
            _needed(rounded=int),
            "You rounded down. With that batch the backward pass is too short: round up.",
        ),
        Mistake("rounded", _needed(rounded=round), "You rounded to the nearest number, sometimes down. Round up."),
    ),
    right="The batch per rank, the bytes and the link decide whether DDP scales.",
)

SLOWER = Choice(
    key="slower-than-one",
    level=2,
    title="Two processes, slower than one",
    prompt="On a laptop with **2 cores**, one process takes 70 ms per step. The same batch with DDP on **2** processes "
    "takes 95 ms. The code is correct, and the losses agree. What is the main reason?",
    hints=("How many cores did the one process use?", "What do the two processes do that the one process did not?"),
    solution="**The one process already used both cores**, because torch runs a matmul on all of them. Two processes "
    "get one core each, so there is no more compute than before. The all-reduce, copies into buckets and waiting for "
    "each other come on top, on the same cores. Compare one process with *one thread* to two processes with one thread "
    "each, and say so.\n\nOn GPUs each rank has its own hardware, and only the communication remains.",
    options=(
        Option(
            "same-cores",
            "The one process already used both of the cores",
            "Right: DDP added communication and no compute. More processes help only where each has hardware of "
            "its own.",
            True,
        ),
        Option(
            "gloo",
            "gloo is slow, and NCCL would be twice as fast here",
            "NCCL does not run on CPUs. And even with free communication you would be back at 70 ms, because no "
            "compute was added.",
        ),
        Option(
            "python",
            "Python's global lock lets only one process run at once",
            "That lock works within one process. Two processes run at the same time, on one core each.",
        ),
        Option(
            "batch",
            "Each of the two ranks trains on the whole batch",
            "Then a step would take 140 ms or more, and the losses would not agree with those of a split batch. Look "
            "at what the cores did before.",
        ),
        Option(
            "buckets",
            "The buckets are too large for such a small model",
            "A small model has one or two buckets. Other sizes change a few milliseconds; they add no core.",
        ),
    ),
)

EXERCISES = (COMPRESSED, STRONG_SCALING, SMALLEST_BATCH, SLOWER)
