"""Exercises of `pipeline` on what the count of slots leaves out: hops, a stage that is slower, a table on two ranks."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.pipeline.steps import slow_last, step
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.job import balanced_blocks

_P, _M = 6, 18
_FREE = {name: step(name, _P, _M, v).seconds for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))}
_SLOW = {name: step(name, _P, _M, v, hop=1.0).seconds for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))}

HOP = Choice(
    key="hop",
    level=3,
    title="A hop that costs",
    minutes=6,
    prompt=f"{_P} ranks, {_M} micro-batches; a rank's forward takes one slot, its backward two. On a slow network "
    "**a hop takes a whole slot**, beside which the ranks go on computing. Somebody measures 1F1B at "
    f"{_SLOW['1f1b']:.0f} slots, and interleaved 1F1B with two chunks per rank at {_SLOW['interleaved']:.0f}, and "
    "concludes: *on slow networks you should interleave*. What would you say?",
    hints=(
        "Under GPipe all micro-batches go down one behind the other. How many hops make the step longer?",
        "Under 1F1B a rank sends one down and waits for one to come up. With few in flight, what happens "
        "in every round?",
    ),
    solution=f"GPipe pays for the way down once and for the way up once: 3 × ({_M} + {_P - 1}) + 2 × {_P - 1} = "
    f"**{_SLOW['gpipe']:.0f} slots**. 1F1B has only as many micro-batches in flight as there are ranks below, too few "
    f"to bridge the hops, and waits in every round: {_FREE['1f1b']:.0f} slots become {_SLOW['1f1b']:.0f}. Interleaved "
    f"it has more in flight, but each goes round twice: {_FREE['interleaved']:.1f} become {_SLOW['interleaved']:.0f}. "
    "It beats 1F1B, which suffers most, and loses to GPipe. *Better* is half a sentence until you say than what.",
    options=(
        Option(
            "gpipe",
            f"GPipe ends at {_SLOW['gpipe']:.0f}: it beats both of them here",
            "Right: the way down and the way up once each, whatever m. 1F1B is the wrong thing to compare with on a "
            "slow network, if there is memory for GPipe.",
            True,
        ),
        Option(
            "true",
            "True: two chunks halve what a hop costs",
            "A hop takes as long as before, and there are twice as many. What is halved is the piece of work beside "
            "which it has to hide.",
        ),
        Option(
            "more",
            "True, and with four chunks it gains more",
            "Each chunk more sends each micro-batch round once more. Without hops that gains; with a hop as long as "
            "a whole forward it loses.",
        ),
        Option(
            "equal",
            "The hops add the same to every order",
            f"They add {_SLOW['gpipe'] - _FREE['gpipe']:.0f} slots to GPipe and "
            f"{_SLOW['1f1b'] - _FREE['1f1b']:.0f} to 1F1B: it depends on how many micro-batches are on their way.",
        ),
        Option(
            "hidden",
            "Wrong: sends run beside the work, at no cost",
            "They do run beside it. But the rank below cannot begin before the message is there, and with too few "
            "in flight it has nothing else to do.",
        ),
    ),
)

_STAGES, _MICRO, _TIMES = 8, 32, 1.6
_EVEN, _UNEVEN = slow_last(_STAGES, _MICRO, 1.0).seconds, slow_last(_STAGES, _MICRO, _TIMES).seconds
_MEAN = (_STAGES - 1 + _TIMES) / _STAGES
_LONGER = _UNEVEN / _EVEN - 1
LLAMA = Job(PRESETS["llama-3-8b"], 8192, DEVICES["h100-sxm"], cluster(1, 4), layout=Layout(pp=4, micro_batches=16))

UNEVEN_STAGE = Number(
    key="uneven-stage",
    level=2,
    title="One stage is slower",
    minutes=5,
    prompt=f"**{_STAGES} ranks**, 1F1B, **{_MICRO} micro-batches**. The last stage has the output head and takes "
    f"**{_TIMES} times** as long as each of the others, forward and backward. By how many per cent is the step longer "
    "than if the last stage were like the others?",
    hints=(
        "Which rank never waits, once it has begun?",
        "Count along the last rank: until its first micro-batch comes, its own work, and the way up of its last "
        "gradient.",
    ),
    solution="In pieces, F + B each: the first micro-batch comes down and the last gradient goes up past "
    f"{_STAGES - 1} faster stages, {_STAGES - 1} pieces. Between these the last rank works through {_MICRO} "
    f"micro-batches of {_TIMES}: {_MICRO * _TIMES:.1f}. Together {_MICRO * _TIMES + _STAGES - 1:.1f} instead of "
    f"{_MICRO + _STAGES - 1}: **{_LONGER:.0%} longer**, though only {_MEAN - 1:.1%} of work was added. All others wait "
    f"for the slow one in every micro-batch.\n\nThe fix: with 10 blocks per stage the head weighs as much as 6. "
    "Give the last rank 6 blocks fewer and spread those over the seven others: then no rank has more than 11 to do. "
    f"Llama 3 8B is best cut into {', '.join(map(str, balanced_blocks(LLAMA)))} blocks on four H100.",
    value=_LONGER,
    unit="%",
    unit_given=True,
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "whole-step",
            _TIMES - 1,
            "That makes the whole step 1.6 times as long. On the way down and up the other stages are as fast as ever.",
        ),
        Slip(
            "mean",
            _MEAN - 1,
            "That is by how much the work of all ranks grew. It would be so if they could share it; here they wait.",
        ),
        Slip(
            "once",
            (_TIMES - 1) / (_MICRO + _STAGES - 1),
            "That pays for the slow stage once in a step. It is slow in every micro-batch.",
        ),
        Slip(
            "ratio",
            _UNEVEN / _EVEN,
            "That is how many times as long the step is, as a percentage. By how many per cent is it longer?",
        ),
        Slip(
            "against-shared",
            _UNEVEN / _EVEN / _MEAN - 1,
            "That compares with a step in which all ranks share the head's work. Compare with one that has no head.",
        ),
        Slip(
            "against-new",
            1 - _EVEN / _UNEVEN,
            "That is by how much the even step is shorter than the uneven one. The question goes the other way.",
        ),
        Slip(
            "work-only",
            (_MICRO * _TIMES - _MICRO - _STAGES + 1) / (_MICRO + _STAGES - 1),
            "That leaves out the way down and up: the last rank has to wait for its first micro-batch here too.",
        ),
    ),
    right="The slowest stage sets the pace. Look for the rank that never waits.",
)

TIED_TABLE = Choice(
    key="tied-table",
    level=2,
    title="One table, two ranks",
    prompt="The output head uses the table of the input embedding again. In a pipeline the first rank has the table "
    "for the embedding and the last rank a copy of it for the head. What have these two to do so that training is "
    "that of one process?",
    hints=(
        "Each of the two works out a part of the table's gradient. Which part does one process have?",
        "And how often, if gradients add up over the micro-batches?",
    ),
    solution="The gradient of the table is the sum of what the embedding and the head give. So the two ranks "
    "**all-reduce the table's gradient, once, when the last backward is through**. Then both optimizers see the same "
    "gradient, and the copies stay equal. The sum is not divided by two: it is one table with two uses, not two "
    "estimates of one thing. Megatron-LM keeps a process group of the first and the last rank for this.",
    options=(
        Option(
            "add",
            "Add both gradients, once, after the last backward",
            "Right: then both have the gradient that one process has, and take the same step.",
            True,
        ),
        Option(
            "mean",
            "Average both gradients, after the last backward",
            "The two are no estimates of the same gradient, as in data parallelism. They are two parts of one sum: "
            "half of it is too little.",
        ),
        Option(
            "each",
            "Add both gradients, after every micro-batch",
            "Gradients add up over the micro-batches. Add the ranks' together after the first, and both hold the "
            "sum; after the second that sum is added to itself, and so on. Once, at the end.",
        ),
        Option(
            "copy",
            "Copy the table to the last rank, after each step",
            "Then the copies are equal, but the part of the head is lost: the first rank stepped with the "
            "embedding's gradient alone. For most tokens that is nothing.",
        ),
        Option(
            "nothing",
            "Nothing: equal copies take the same steps",
            "They begin equal, and each gets another gradient: the embedding's, or the head's. After the first step "
            "they are two tables.",
        ),
    ),
)

EXERCISES = (HOP, UNEVEN_STAGE, TIED_TABLE)
