"""Exercises of `pipeline` on what the count of slots leaves out: hops, a slower stage, an embedding on two ranks."""

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
    "**a hop takes a whole slot**, during which the ranks go on computing. A colleague measures 1F1B at "
    f"{_SLOW['1f1b']:.0f} slots and interleaved 1F1B with two chunks per rank at {_SLOW['interleaved']:.0f}, and "
    "concludes: *on slow networks you should interleave*. What do you say?",
    hints=(
        "With GPipe the micro-batches go forward one behind the other. How many hops make the step longer?",
        "With 1F1B a rank sends one micro-batch forward and waits for the gradient of another. With few in flight, "
        "what happens each time?",
    ),
    solution=f"GPipe pays for the hops forward once and for the hops back once: 3 × ({_M} + {_P - 1}) + 2 × {_P - 1} = "
    f"**{_SLOW['gpipe']:.0f} slots**. 1F1B has too few micro-batches in flight to hide the hops, and waits in every "
    f"round: {_FREE['1f1b']:.0f} slots become {_SLOW['1f1b']:.0f}. Interleaved 1F1B has more in flight, but each goes "
    f"around twice: {_FREE['interleaved']:.1f} slots become {_SLOW['interleaved']:.0f}. It beats 1F1B, which suffers "
    "most, and loses to GPipe. Before you call a schedule better, say which one you compare it with.",
    options=(
        Option(
            "gpipe",
            f"GPipe ends at {_SLOW['gpipe']:.0f}: it beats both of them here",
            "Right: it pays for the hops forward and back once each, whatever m is. On a slow network 1F1B is the "
            "wrong baseline, if there is memory for GPipe.",
            True,
        ),
        Option(
            "true",
            "True: two chunks halve what a hop costs",
            "A hop takes as long as before, and there are twice as many. What is halved is the computation that can "
            "hide a hop.",
        ),
        Option(
            "more",
            "True, and with four chunks it gains more",
            "Each further chunk sends every micro-batch around once more. If hops are free that gains; if a hop takes "
            "as long as a whole forward it loses.",
        ),
        Option(
            "equal",
            "The hops add the same to every schedule",
            f"They add {_SLOW['gpipe'] - _FREE['gpipe']:.0f} slots to GPipe and "
            f"{_SLOW['1f1b'] - _FREE['1f1b']:.0f} to 1F1B: it depends on how many micro-batches are in flight.",
        ),
        Option(
            "hidden",
            "Wrong: sends overlap with work, at no cost",
            "They do overlap. But the next rank cannot begin before the message has arrived, and with too few "
            "micro-batches in flight it has nothing else to do.",
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
    f"**{_TIMES} times** as long as each other stage, forward and backward. By how many percent is the step longer "
    "than with a last stage like the others?",
    hints=(
        "Which rank is never idle once it has begun?",
        "Follow the last rank: the wait for its first micro-batch, its own work, and the passage of its last gradient "
        "back to rank 0.",
    ),
    solution="Count in units of F + B of a normal stage. The first micro-batch comes forward through "
    f"{_STAGES - 1} normal stages and the last gradient goes back through them: {_STAGES - 1} units. In between the "
    f"last rank works on {_MICRO} micro-batches of {_TIMES} units: {_MICRO * _TIMES:.1f}. The sum is "
    f"{_MICRO * _TIMES + _STAGES - 1:.1f} instead of {_MICRO + _STAGES - 1}: **{_LONGER:.0%} longer**, though only "
    f"{_MEAN - 1:.1%} of work was added. All other ranks wait for the slow one in every micro-batch.\n\nThe fix: with "
    "10 blocks per stage the head counts as 6. Take 6 blocks from the last rank and spread them over the seven others: "
    f"then no rank has more than 11. Llama 3 8B is best cut into {', '.join(map(str, balanced_blocks(LLAMA)))} blocks "
    "on four H100s.",
    value=_LONGER,
    unit="%",
    unit_given=True,
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "whole-step",
            _TIMES - 1,
            "That makes the whole step 1.6 times as long. In the warm-up and cool-down the normal stages count too.",
        ),
        Slip(
            "mean",
            _MEAN - 1,
            "That is how much the work of all ranks grew. It would be right if they could share it; here they wait.",
        ),
        Slip(
            "once",
            (_TIMES - 1) / (_MICRO + _STAGES - 1),
            "That counts the slow stage once per step. It is slow in every micro-batch.",
        ),
        Slip(
            "ratio",
            _UNEVEN / _EVEN,
            "That is how many times as long the step is, as a percentage. By how many percent is it longer?",
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
            "That is the last rank's work alone: it still has to wait for its first micro-batch.",
        ),
    ),
    right="The slowest stage sets the pace. In a trace, look for the rank that is never idle.",
)

TIED_TABLE = Choice(
    key="tied-table",
    level=2,
    title="One matrix on two ranks",
    prompt="The output head uses the same matrix as the input embedding. In a pipeline the first rank has this matrix "
    "for the embedding, and the last rank has a copy for the head. What must the two ranks do so that training equals "
    "that on one process?",
    hints=(
        "Each of the two computes a part of the matrix's gradient. Which part does a single process have?",
        "Gradients accumulate over the micro-batches. How often must the ranks communicate, then?",
    ),
    solution="The gradient of the matrix is the sum of the embedding's part and the head's part. So the two ranks "
    "**all-reduce the gradient of the matrix once, after the last backward**. Then both optimizers see the same "
    "gradient, and the copies stay equal. The sum is not divided by two, because the parts are two uses of one matrix "
    "and not two estimates of the same gradient. Megatron-LM has a process group of the first and the last rank for "
    "this.",
    options=(
        Option(
            "add",
            "Add both gradients, once, after the last backward",
            "Right: then both have the gradient that a single process has, and take the same optimizer step.",
            True,
        ),
        Option(
            "mean",
            "Average both gradients, after the last backward",
            "These are not two estimates of the same gradient, as in data parallelism. They are two parts of one sum, "
            "and half of the sum is too little.",
        ),
        Option(
            "each",
            "Add both gradients, after every micro-batch",
            "Gradients accumulate over the micro-batches. If the ranks sum them after the first micro-batch, the "
            "second sum counts the first one twice, and so on. Sum once, at the end.",
        ),
        Option(
            "copy",
            "Copy the matrix to the last rank, after each step",
            "Then the copies are equal, but the head's part of the gradient is lost: the first rank's step used the "
            "embedding's part alone, which is zero for most tokens.",
        ),
        Option(
            "nothing",
            "Nothing: equal copies take the same steps",
            "The copies start equal, but each gets a different gradient: the embedding's or the head's. After the "
            "first step they differ.",
        ),
    ),
)

EXERCISES = (HOP, UNEVEN_STAGE, TIED_TABLE)
