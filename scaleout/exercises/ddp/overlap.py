"""Exercises of `ddp` on time: what the backward hides, what stays exposed, and how a job scales."""

from __future__ import annotations

from math import ceil

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.timing.ddp import Layer, ddp_step
from scaleout.timing.scaling import strong_efficiency, weak_efficiency

_TIME, _SHARE = ("s", "ms", "µs"), ("%", "share")
_MS = 1e-3
_FORWARD, _BACKWARD, _WIRE = 100, 200, 260  # milliseconds
# Many small layers, one bucket each: communication starts with the backward, as the prompt assumes.
_MAX_PASSES = 2000


def _step(wire: float, overlap: bool = True) -> float:
    """Seconds of a step whose messages take `wire` milliseconds together."""
    layers = [Layer("", _FORWARD * _MS / _MAX_PASSES, _BACKWARD * _MS / _MAX_PASSES, 1) for _ in range(_MAX_PASSES)]
    step = ddp_step(
        layers, lambda size: size * wire * _MS / _MAX_PASSES, cap_bytes=1, first_cap_bytes=1, overlap=overlap
    )
    return round(step.seconds, 3)  # less the one layer that computes before the first message


_PASS = (
    f"One pass of a model takes **{_FORWARD} ms** forward and **{_BACKWARD} ms** backward. The all-reduce of all its "
    f"gradients takes **{_WIRE} ms**"
)
_STEP = _step(_WIRE)

EXPOSED = Number(
    key="exposed",
    level=2,
    title="What the backward cannot hide",
    prompt=f"{_PASS}. DDP starts it as soon as the backward starts, and it does not slow the compute down. How long "
    "is the step, without the optimizer?",
    hints=(
        "Forward and communication cannot overlap: there are no gradients yet.",
        "Backward and communication run side by side, so the longer of the two counts.",
    ),
    solution=f"{_FORWARD} + max({_BACKWARD}, {_WIRE}) = **{_STEP * 1e3:.0f} ms**. Of the {_WIRE} ms, {_BACKWARD} are "
    f"hidden and {_WIRE - _BACKWARD} are *exposed*: nothing computes meanwhile. Real buckets fill late and the last "
    "one is never hidden, so a real step is a little longer.",
    value=_STEP,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip(
            "no-overlap",
            0.560,
            "You added all three. DDP communicates while the backward still computes: only what it does not hide "
            "counts.",
        ),
        Slip(
            "all-hidden",
            0.300,
            "That is the compute alone: all of the communication is hidden in it, or left out. Only the backward can "
            "hide any, and it is shorter than the all-reduce.",
        ),
        Slip(
            "hidden-by-forward",
            0.460,
            "That is backward and all-reduce one after the other: either the forward is left out, or it hides a part. "
            "It comes before there are gradients, and the backward runs beside the all-reduce.",
        ),
        Slip("communication-alone", 0.260, "That is the communication alone. What runs before it?"),
        Slip("exposed-alone", 0.060, "That is the exposed part alone. The step also has its forward and its backward."),
    ),
    right="60 ms are exposed: a faster link, fewer bytes or a longer backward would hide them.",
)

_HALVED = _step(_WIRE / 2)

COMPRESSED = Number(
    key="compressed",
    level=2,
    title="Half the bytes",
    prompt=f"{_PASS} and runs beside the backward. Now a hook sends the gradients as **bf16** instead of fp32. The "
    "message is so large that only its bytes count, and converting costs nothing. How long is the step now?",
    hints=("Half the bytes, half the time on the wire.", "Does the backward hide all of it now?"),
    solution=f"The communication takes {_WIRE // 2} ms, and the backward of {_BACKWARD} ms hides all of it: "
    f"{_FORWARD} + max({_BACKWARD}, {_WIRE // 2}) = **{_HALVED * 1e3:.0f} ms** instead of {_STEP * 1e3:.0f}. More "
    "compression would gain nothing: there is nothing left to hide.",
    value=_HALVED,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip("no-overlap", 0.430, "That is all three, one after the other. The all-reduce runs beside the backward."),
        Slip(
            "half-the-step",
            0.180,
            "That is half of the step as it was, or with half of the compute too. What bf16 halves here is the "
            "message: forward and backward take as long as before.",
        ),
        Slip(
            "half-the-exposed",
            0.330,
            "Either the exposed 60 ms are halved in it, or the message comes after the backward and the forward is "
            "left out. The whole time on the wire is halved, and the backward still runs beside it.",
        ),
        Slip(
            "saved-in-full",
            0.230,
            "That is the step as it was less all that the wire saves, or forward and message alone. No step is "
            "shorter than its compute.",
        ),
        Slip("as-before", 0.360, "That is the step in fp32. Half the bytes take half the time."),
    ),
    right="The link has time to spare now; the compute is the limit.",
)

# Strong scaling: seconds per step for the same batch in total, by ranks. Weak: for the same batch on each rank.
STRONG = {1: 8.0, 2: 4.4, 4: 2.5, 8: 1.6}
WEAK = {1: 1.0, 8: 1.1, 64: 1.25}
_STRONG, _WEAK = strong_efficiency(STRONG)[8], weak_efficiency(WEAK)[64]


def _table(times: dict[int, float]) -> str:
    return "\n".join(f"- {ranks} rank{'s' if ranks > 1 else ''}: {seconds:g} s" for ranks, seconds in times.items())


STRONG_SCALING = Number(
    key="strong-scaling",
    level=2,
    title="Strong scaling",
    prompt=f"A step on the **same batch in total** takes\n\n{_table(STRONG)}\n\nWhat is the efficiency of strong "
    "scaling on 8 ranks?",
    hints=("The speed-up is the time on one rank over the time on 8.", "Efficiency compares it with the ideal, 8."),
    solution=f"Speed-up: 8.0 / 1.6 = 5. Efficiency: 5 / 8 = **{_STRONG:.1%}**. In strong scaling each rank's share of "
    "the batch shrinks, and with it the backward that hides the communication, while the bytes stay the same.",
    value=_STRONG,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("speed-up", 5, "5 is the speed-up. An efficiency compares it with the ideal one."),
        Slip("time-ratio", 0.2, "That is the time on 8 ranks as a part of the time on one. What part would be ideal?"),
        Slip("inverted", 1.6, "That is the step against the ideal one, upside down: an efficiency is at most 100%."),
        Slip(
            "last-doubling",
            2.5 / (2 * 1.6),
            "That is the last doubling alone, from 4 to 8 ranks. Efficiency is relative to one rank.",
        ),
        Slip("lost", 1 - _STRONG, "That is the part that is lost. The efficiency is the rest."),
        Slip("ideal", 1 / 8, "That is the ideal time as a part of one rank's. What was reached?"),
    ),
    right="Five ranks' worth of work from eight.",
)

WEAK_SCALING = Number(
    key="weak-scaling",
    level=2,
    title="Weak scaling",
    prompt=f"Another job keeps the **batch on each rank** the same, so its total batch grows with the ranks. A step "
    f"takes\n\n{_table(WEAK)}\n\nWhat is the efficiency of weak scaling on 64 ranks?",
    hints=("Ideally the step takes as long on 64 ranks as on one.", "So no number of ranks appears in the formula."),
    solution=f"1.0 / 1.25 = **{_WEAK:.0%}**: 64 ranks do the work of {64 * _WEAK:.0f}. Weak scaling is kinder than "
    "strong: the compute of each rank stays long enough to hide the communication. Say which of the two a scaling "
    "curve shows.",
    value=_WEAK,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip(
            "strong",
            _WEAK / 64,
            "Either you divided by the ranks too, which is strong scaling (here 64 ranks do 64 times the work), or "
            "that is the ratio 1.25 with a % behind it.",
        ),
        Slip(
            "speed-up",
            64 * _WEAK,
            "51.2 is how many ranks' worth of work is done. The efficiency is a part of what would be ideal.",
        ),
        Slip("inverted", 1.25, "That is upside down: an efficiency is at most 100%."),
        Slip("lost", 0.25, "That is how much longer the step takes than on one rank. Which part of it is ideal?"),
        Slip("lost-share", 1 - _WEAK, "That is the part that is lost. The efficiency is the rest."),
        Slip("last-row", 1.1 / 1.25, "That compares with 8 ranks. The reference is one rank, without communication."),
    ),
    right="The communication costs a fifth of the machine.",
)

_BATCH_STUB = '''\
from math import ceil


def smallest_batch(seconds_each, gradient_bytes, ranks, rate):
    """Fewest sequences a rank that hide the all-reduce.

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
    prompt="The bytes of an all-reduce do not depend on the batch; the backward that hides them does. Write "
    "`smallest_batch(seconds_each, gradient_bytes, ranks, rate)`: the smallest **whole** number of sequences on each "
    "rank for which the backward takes at least as long as the ring all-reduce. It is at least 1.\n\n"
    "- `seconds_each`: forward and backward of one sequence. Time grows in proportion to the batch, and the "
    "backward takes **twice** as long as the forward.\n"
    "- `rate`: bytes per second of each rank's link. Latency does not count.",
    hints=(
        "First the seconds of the all-reduce: 2(W−1)/W × bytes / rate.",
        "Two thirds of `seconds_each` are backward. The forward hides nothing.",
        "Round up: `math.ceil`.",
    ),
    solution="```python\n"
    f"{_BATCH_SOLUTION}```\n\n"
    f"A 1B model in fp32 (4 GB of gradients) on 16 ranks, 50 ms per sequence: {_needed()(0.05, 4e9, 16, 50e9)} "
    "sequences "
    f"over 400 Gbit/s, {_needed()(0.05, 4e9, 16, 1.25e9)} over 10 Gbit/s. A slow link asks for batches that you may "
    "not want: then accumulate, or compress.",
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
            "You let the forward hide communication too. There are no gradients yet: only the backward hides it.",
        ),
        Mistake(
            "half-the-time",
            _needed(share=1 / 2),
            "You took the backward as half of the time. It takes twice as long as the forward.",
        ),
        Mistake("forward-only", _needed(share=1 / 3), "That third is the forward. It is the backward that hides."),
        Mistake(
            "message-once",
            _needed(factor=lambda ranks: 1 if ranks > 1 else 0),
            "The gradients are sent once in your function. In a ring each rank sends more than that. (// rounds "
            "down: does it make your factor smaller?)",
        ),
        Mistake(
            "forgot-all-gather",
            _needed(factor=lambda ranks: (ranks - 1) / ranks),
            "That is the reduce-scatter alone, half of an all-reduce.",
        ),
        Mistake(
            "through-one-rank",
            _needed(factor=lambda ranks: 2 * (ranks - 1)),
            "That is an all-reduce through one rank, all of the message to and from each other. In a ring a rank "
            "passes on chunks.",
        ),
        Mistake(
            "factor-two",
            _needed(factor=lambda ranks: 2),
            "Your ranks send all chunks in each half of the ring. Each leaves one out, and one rank has nothing to "
            "send.",
        ),
        Mistake(
            "none-for-one",
            lambda *case: 0 if case[2] == 1 else _needed()(*case),
            "For one rank you return 0. It has nothing to hide, and still it needs a sequence: at least 1.",
        ),
        Mistake(
            "rounded-down",
            _needed(rounded=int),
            "You rounded down: with that batch the backward is too short. Round up.",
        ),
        Mistake("rounded", _needed(rounded=round), "You rounded to the nearest number, sometimes down. Round up."),
    ),
    right="Batch on each rank, bytes and link: those three decide whether DDP scales.",
)

SLOWER = Choice(
    key="slower-than-one",
    level=2,
    title="Two processes, slower than one",
    prompt="On a laptop with **2 cores** you train a small model in one process: 70 ms per step. The same batch with "
    "DDP on **2** processes takes 95 ms. The code is right, the losses agree. What is the main reason?",
    hints=("How many cores did the one process use?", "What do the two processes do that the one did not?"),
    solution="**The one process already used both cores.** torch runs a matrix product on all of them. Two processes "
    "get one core each, so there is no more compute than before; and all-reduce, buckets and waiting for each other "
    "come on top, on the same cores. Compare one process with *one thread* with two of one thread each, and say so.\n\n"
    "On GPUs each rank brings its own hardware. What remains there is the communication.",
    options=(
        Option(
            "same-cores",
            "The one process already used both of the cores",
            "Right: DDP adds communication and no compute. More processes are more hardware only where each "
            "brings its own.",
            True,
        ),
        Option(
            "gloo",
            "gloo is slow: NCCL would be about twice as fast",
            "NCCL does not run on CPUs, and a perfect network would only get you back to the 70 ms: no compute was "
            "added.",
        ),
        Option(
            "python",
            "Python's global lock lets only one process run",
            "That lock is within one process. Two processes run at the same time, on one core each.",
        ),
        Option(
            "batch",
            "Each of the ranks trains on the whole batch",
            "Then the losses would not agree with half the batch on each, and the step would take 140 ms or more. "
            "Look at what the cores did before.",
        ),
        Option(
            "buckets",
            "The buckets are too large for the small model",
            "With a small model there is one bucket, or two. Other sizes move a few milliseconds; they add no core.",
        ),
    ),
)

EXERCISES = (EXPOSED, COMPRESSED, STRONG_SCALING, WEAK_SCALING, SMALLEST_BATCH, SLOWER)
