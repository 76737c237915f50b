"""Exercises of `bottlenecks` on the parts of a step: what is fixed, and what one remedy gives."""

from __future__ import annotations

from scaleout.exercises.engine import Function, Mistake, Number, Slip

FIRST, DOUBLED = 5.2, 7.0  # seconds per step with 16 sequences, and with 32
FIXED = 2 * FIRST - DOUBLED
FIXED_SHARE = Number(
    key="fixed-share",
    level=1,
    minutes=2,
    short=True,
    title="Twice the batch, not twice the time",
    prompt=f"A training step takes **{FIRST} s** with 16 sequences per GPU and **{DOUBLED} s** with 32, all of one "
    "length. Assume that each sequence takes as long as any other, and that the rest of the step does not depend on "
    "the batch. What share of the first step does not depend on the batch, in percent?",
    hints=(
        "What did the 16 additional sequences add to the step?",
        "The first 16 sequences take as long as the second 16. Take their time off the first step.",
    ),
    solution=f"The second 16 sequences take {DOUBLED} s − {FIRST} s = {DOUBLED - FIRST:.1f} s, and so do the first 16. "
    f"{FIRST} s − {DOUBLED - FIRST:.1f} s = {FIXED:.1f} s remain, which is **{FIXED / FIRST:.1%}** of the first step. "
    "Before anybody buys a faster GPU or network for this job, somebody should find out what happens in these "
    f"{FIXED:.1f} seconds.",
    value=FIXED / FIRST,
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip(
            "grows",
            (DOUBLED - FIRST) / FIRST,
            "That is the share of the first step that grows with the batch.",
        ),
        Slip("second-step", FIXED / DOUBLED, "That is the fixed share of the second step, with 32 sequences."),
        Slip("ratio", FIRST / DOUBLED, "You divided one step time by the other. Separate each into two parts first."),
        Slip(
            "added",
            (DOUBLED - FIRST) / DOUBLED,
            "That is what the additional sequences take of the second step. The question is about the first.",
        ),
        Slip(
            "saved",
            FIXED / (2 * FIRST),
            "That is how much shorter one step of 32 sequences is than two steps of 16.",
        ),
    ),
    right="Two step times at two batch sizes show how much of a step does not depend on the batch, without a profiler.",
)

BAR, FASTER = 0.08, 5
WRONG_REMEDY = Number(
    key="wrong-remedy",
    level=1,
    minutes=2,
    title="A good network, and a short bar",
    prompt=f"In a training step, exposed communication takes **{BAR:.0%}** of the time, and arithmetic takes most of "
    f"the rest. The network is replaced by one that is **{FASTER} times** as fast. The communication that overlaps "
    "with computation stays hidden, and the exposed part becomes shorter in proportion. What share of the step time "
    "does the new network save?",
    hints=("How long is the exposed part afterwards?", "The rest of the step is as long as before."),
    solution=f"Of {BAR:.0%} one part in {FASTER} remains, {BAR / FASTER:.1%} of the old step. "
    f"**{BAR * (1 - 1 / FASTER):.1%}** are saved, and the job is {1 / (1 - BAR * (1 - 1 / FASTER)):.2f} times as fast. "
    f"Even a network without any delay saves no more than {BAR:.0%}. The height of a bar is an upper limit for every "
    "remedy of that bar.",
    value=BAR * (1 - 1 / FASTER),
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("whole-bar", BAR, "That is the whole bar. A faster network still takes some time."),
        Slip("remains", BAR / FASTER, "That is what remains exposed, and the question is what is saved."),
        Slip("of-the-bar", 1 - 1 / FASTER, "That is the share of the bar. How much is it of the step?"),
        Slip("multiplied", BAR * FASTER, "You multiplied the bar by the gain. A bar cannot save more than its height."),
        Slip(
            "less-one", BAR * (FASTER - 1), "You took the gain for time saved. A bar cannot save more than its height."
        ),
    ),
    right="The height of a bar is an upper limit for what its remedy can save.",
)

MATMULS, GAIN = 0.62, 1.7
NO_MATMULS = 1 - MATMULS
AMDAHL = Number(
    key="amdahl",
    level=2,
    minutes=3,
    title="Matmuls in FP8",
    prompt=f"Matmuls take **{MATMULS:.0%}** of a training step, and nothing overlaps with them. In FP8 they run "
    f"**{GAIN} times** as fast, and the rest of the step takes as long as before. How many times as fast is the step?",
    hints=(
        "Let the old step take 100 ms. How long is each of its two parts now?",
        "Divide the old step time by the new one.",
    ),
    solution=f"Of 100 ms the matmuls take {100 * MATMULS:.0f}, and in FP8 {100 * MATMULS:.0f} / {GAIN} = "
    f"{100 * MATMULS / GAIN:.1f} ms. The other {100 * NO_MATMULS:.0f} ms stay. The new step takes "
    f"{100 * (NO_MATMULS + MATMULS / GAIN):.1f} ms and is **{1 / (NO_MATMULS + MATMULS / GAIN):.2f} times** as fast. "
    f"With matmuls that take no time at all it would be {1 / NO_MATMULS:.1f} times as fast. This is Amdahl's law.",
    value=1 / (NO_MATMULS + MATMULS / GAIN),
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip("part-alone", GAIN, "That is the gain of the matmuls. The rest of the step does not become faster."),
        Slip("product", MATMULS * GAIN, "You multiplied the share by the gain. How long is each part afterwards?"),
        Slip(
            "linear",
            1 + MATMULS * (GAIN - 1),
            "You weighted the gain by the share of time. Gains of parts do not add in this way: add times.",
        ),
        Slip("inverse", NO_MATMULS + MATMULS / GAIN, "That is the new step time as a part of the old one."),
        Slip("limit", 1 / NO_MATMULS, "That would be so if the matmuls took no time at all."),
    ),
    right="The part that no remedy touches decides how much the remedy is worth.",
)

_STUB = '''\
def fixed_and_per_token(tokens_a, seconds_a, tokens_b, seconds_b):
    """[fixed seconds per step, seconds per token]"""
    return ...
'''
_SOLUTION = """\
def fixed_and_per_token(tokens_a, seconds_a, tokens_b, seconds_b):
    per_token = (seconds_b - seconds_a) / (tokens_b - tokens_a)
    fixed = seconds_a - per_token * tokens_a
    if fixed < 0:
        return [0, seconds_a / tokens_a]
    return [fixed, per_token]
"""


def line(tokens_a: float, seconds_a: float, tokens_b: float, seconds_b: float) -> list:
    """Fixed seconds and seconds per token; where the line starts below zero, no fixed cost and the first run's rate."""
    fixed, per_token = _unclipped(tokens_a, seconds_a, tokens_b, seconds_b)
    return [0, seconds_a / tokens_a] if fixed < 0 else [fixed, per_token]


def _unclipped(tokens_a, seconds_a, tokens_b, seconds_b) -> list:
    per_token = (seconds_b - seconds_a) / (tokens_b - tokens_a)
    return [seconds_a - per_token * tokens_a, per_token]


def _clipped(tokens_a, seconds_a, tokens_b, seconds_b) -> list:
    fixed, per_token = _unclipped(tokens_a, seconds_a, tokens_b, seconds_b)
    return [max(fixed, 0), per_token]


def _as_if_doubled(tokens_a, seconds_a, tokens_b, seconds_b) -> list:
    fixed = 2 * seconds_a - seconds_b
    return [fixed, (seconds_a - fixed) / tokens_a]


def _inverted(tokens_a, seconds_a, tokens_b, seconds_b) -> list:
    fixed, per_token = line(tokens_a, seconds_a, tokens_b, seconds_b)
    return [fixed, 1 / per_token]


TWO_BATCHES = Function(
    key="two-batches",
    level=2,
    minutes=6,
    title="A line through two measurements",
    prompt="You measure the step time of a job twice, with two numbers of tokens per step. Write "
    "`fixed_and_per_token(tokens_a, seconds_a, tokens_b, seconds_b)`, which gives the seconds per step that do not "
    "depend on the number of tokens, and the seconds that each token adds.\n\n"
    "- Assume that the step time is a straight line in the number of tokens.\n"
    "- The two measurements may come in either order, and one need not have twice the tokens of the other.\n"
    "- Where the line would start below zero, because the larger batch is slower per token, there is no fixed cost to "
    "be found. Then return 0, and the seconds per token of measurement a.",
    hints=(
        "How many seconds do the additional tokens take, and how many tokens are they?",
        "Take the time of all tokens of one measurement off its step time.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nA line through two points always fits, so it proves nothing. Measure a "
    "third batch size before you believe it: where the third point is off the line, the step time is not a fixed cost "
    "plus a cost per token. Measure steps of the same run with warm caches, and take the median of several.",
    function="fixed_and_per_token",
    stub=_STUB,
    reference=line,
    lists=True,
    cases=(
        (1000, 3.0, 2000, 5.0),
        (2000, 5.0, 1000, 3.0),
        (1000, 3.0, 3000, 7.0),
        (4096, 0.9, 16384, 1.2),
        (16384, 1.2, 4096, 0.9),
        (500, 2.0, 1500, 2.1),
        (1000, 1.0, 2000, 2.0),
        (1000, 1.0, 2000, 2.5),
        (1000, 1.0, 4000, 6.0),
        (3000, 9.0, 1000, 2.0),
        (100, 0.7, 700, 1.9),
        (8192, 10.0, 8193, 10.001),
    ),
    mistakes=(
        Mistake(
            "rate-alone",
            lambda a, s, b, t: [0, s / a],
            "You divided the step time by its tokens. Then all of it depends on the tokens, and nothing is fixed.",
        ),
        Mistake(
            "as-if-doubled",
            _as_if_doubled,
            "That is right if the second measurement has twice the tokens of the first. It need not.",
        ),
        Mistake(
            "below-zero", _unclipped, "A fixed cost below zero does not exist. What does the prompt ask for there?"
        ),
        Mistake(
            "zero-alone",
            _clipped,
            "Where the line starts below zero you return 0 as the fixed cost, and still the slope of the line.",
        ),
        Mistake("inverted", _inverted, "Your second number is tokens per second. Seconds per token are asked for."),
        Mistake(
            "first-step",
            lambda a, s, b, t: [s, line(a, s, b, t)[1]],
            "You gave the whole first step as the fixed cost. Its own tokens take a part of it.",
        ),
    ),
    right="With these two numbers you can say what a batch of any size would take, and what it could never save.",
)

EXERCISES = (FIXED_SHARE, WRONG_REMEDY, AMDAHL, TWO_BATCHES)
