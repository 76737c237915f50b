"""Exercises of `architecture` on failures: a misprint, the time between failures, effective time, and a time-out."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip

# Llama 3 (arXiv 2407.21783), table 5: unexpected interruptions in 54 days on 16,384 H100, by cause. tests/published.
GPU_ROWS = {
    "Faulty GPU": 148, "GPU HBM3 memory": 72, "GPU SRAM memory": 19, "GPU system processor": 17,
    "Silent data corruption": 6, "GPU thermal interface": 6,
}  # fmt: skip
ALL, WITH_PLANNED, PRINTED = 419, 466, 0.587
_ROWS = "\n".join(f"{name:26}{count:5}" for name, count in GPU_ROWS.items())
GPUS = sum(GPU_ROWS.values())
MISPRINT = Number(
    key="misprint",
    level=1,
    minutes=3,
    title="A table that copies inherit",
    prompt="Table 5 of the Llama 3 paper counts the unexpected interruptions of 54 days on 16,384 GPUs. These rows are "
    f"about GPUs:\n\n```\n{_ROWS}\n\nall {ALL} interruptions, of all causes\n```\n\nThe paper prints 30.1% beside the "
    f"first row, and its text says that **{PRINTED:.1%}** of the interruptions are due to GPU issues. (Together with "
    f"the planned ones there were {WITH_PLANNED} interruptions.) What share of the unexpected interruptions do these "
    "rows make up, in percent?",
    hints=("Do not start from the printed shares: recompute them.", "Add the six counts."),
    solution=f"{' + '.join(map(str, GPU_ROWS.values()))} = {GPUS}, and {GPUS} / {ALL} = **{GPUS / ALL:.1%}**. The "
    f"first row is {GPU_ROWS['Faulty GPU'] / ALL:.1%}, where the table prints 30.1%. The text's {PRINTED:.1%} is the "
    "sum of the printed column, with the misprint in it, and many copies on the web have it. The counts are the data; "
    "shares are derived from them.",
    value=GPUS / ALL,
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip("printed", PRINTED, "That is what the paper says. Compute it from the counts."),
        Slip("first-row", GPU_ROWS["Faulty GPU"] / ALL, "That is the first row alone, with its correct share."),
        Slip("planned", GPUS / WITH_PLANNED, "You divided by all interruptions, the planned ones included."),
        Slip("gpu-and-memory", (148 + 72) / ALL, "Those are the first two rows. Four more are about GPUs."),
        Slip("others", 1 - GPUS / ALL, "That is the share of all other causes."),
    ),
    right="Recompute a share whenever its counts are printed beside it.",
)

RATE, PER_NODE, LARGE = 6.5, 8, 16_384  # failures per 1,000 node-days (Meta, RSC-1); GPUs per node; GPUs of the job
MTTF = 24 / (LARGE / PER_NODE * RATE / 1000)  # hours
PROJECTED = Number(
    key="projected",
    level=1,
    minutes=3,
    title="Two hours between failures",
    prompt=f"Meta reports **{RATE} failures per 1,000 node-days** for one of its research clusters, whose nodes have "
    f"{PER_NODE} GPUs. Assume that each node fails at this rate, independently of the others. How long does a job on "
    f"**{LARGE:,} GPUs** run between two failures, on average?",
    hints=("How many nodes are that?", "Rates add: how many failures per day does the whole job have?"),
    solution=f"{LARGE:,} GPUs are {LARGE // PER_NODE:,} nodes, which have {LARGE // PER_NODE:,} × {RATE} / 1000 = "
    f"{LARGE / PER_NODE * RATE / 1000:.1f} failures per day. 24 h / {LARGE / PER_NODE * RATE / 1000:.1f} = "
    f"**{MTTF:.1f} hours**. This is the figure that the paper *projects* for such a job, by this arithmetic. It is "
    "often quoted as if it had been measured. What the paper measured is 7.9 hours for jobs of 1,024 GPUs, which by "
    "the same arithmetic would be 29: large jobs of its users failed more often than the rate says.",
    value=3600 * MTTF,
    unit="h",
    units=("h", "min"),
    dimension="seconds",
    slips=(
        Slip("per-gpu", 3600 * MTTF / PER_NODE, "You took the rate as one of GPUs. It is a rate of nodes."),
        Slip("scaled", 3600 * 7.9 / 16, "You scaled the measured 7.9 hours of 1,024 GPUs. Use the rate of nodes."),
        Slip("a-node", 3600 * 24 * 1000 / RATE, "That is the time between two failures of one node."),
        Slip("twice", 3600 * MTTF * PER_NODE, "You divided by the GPUs of a node twice."),
        Slip("per-hundred", 3600 * MTTF / 10, "The rate is given for 1,000 node-days, not for 100."),
    ),
    right="A projection is worth as much as its assumption, here that nodes fail independently and at one rate.",
)

NODES, EVERY, WRITE, RESTART = 256, 40, 3, 20  # of the job; minutes
DAILY = NODES * RATE / 1000


def ratio(lost: float, write: float = WRITE) -> float:
    """The effective time ratio, if a failure costs `lost` minutes and a save `write`."""
    return (1 - DAILY * lost / 1440) / (1 + write / EVERY)


EFFECTIVE = Number(
    key="effective-ratio",
    level=2,
    minutes=5,
    title="What is left of a day",
    prompt=f"A job on **{NODES} nodes** has {RATE} failures per 1,000 node-days. It saves a checkpoint after every "
    f"**{EVERY} minutes** of training, and training stops for **{WRITE} minutes** meanwhile. After a failure it takes "
    f"**{RESTART} minutes** until training goes on. What share of the wall clock is useful training? Use the "
    "first-order formula.",
    hints=(
        "How many failures per day are that, and how many minutes does each cost?",
        "A failure costs the restart, and on average half of the work between two checkpoints.",
    ),
    solution=f"{NODES} × {RATE} / 1000 = {DAILY:.2f} failures per day, each costing {RESTART} + {EVERY // 2} minutes: "
    f"{DAILY * (RESTART + EVERY / 2):.0f} of 1,440 minutes, {DAILY * (RESTART + EVERY / 2) / 1440:.1%}. Of the other "
    f"{1 - DAILY * (RESTART + EVERY / 2) / 1440:.1%}, {EVERY} of {EVERY + WRITE} minutes are training: "
    f"{1 - DAILY * (RESTART + EVERY / 2) / 1440:.3f} / {1 + WRITE / EVERY:.3f} = **{ratio(RESTART + EVERY / 2):.1%}**. "
    "Saves cost more here than failures and restarts together. That says what to look at first: whether training "
    "has to stop while a checkpoint is written.",
    value=ratio(RESTART + EVERY / 2),
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "whole-interval", ratio(RESTART + EVERY), "You lost a whole interval with each failure. Half, on average."
        ),
        Slip("no-saves", ratio(RESTART + EVERY / 2, 0), "Training also stops while a checkpoint is written."),
        Slip("no-failures", ratio(0), "That is so without failures: saves alone."),
        Slip(
            "of-gpus",
            (1 - 8 * DAILY * (RESTART + EVERY / 2) / 1440) / (1 + WRITE / EVERY),
            "You took the rate as one of GPUs. It is one of nodes.",
        ),
        Slip("lost-alone", ratio(EVERY / 2), "You left the restart out."),
    ),
    right="This ratio says nothing about the speed of the steps: MFU and stragglers are counted separately.",
)

TIMEOUT = Choice(
    key="longer-timeout",
    level=2,
    minutes=3,
    title="A generous setting",
    prompt="A job of 512 ranks stops once a day with *Watchdog caught collective operation timeout: ALLREDUCE ran for "
    "600000 milliseconds*. On one rank the data loader had stopped on a storage error. A colleague sets the time-out "
    "to one hour. What changes?",
    hints=("What are the other 511 ranks doing during these ten minutes?", "Does the rank ever reach the all-reduce?"),
    solution="**Each hang costs an hour in place of ten minutes.** The rank with the storage error never arrives, so "
    "the collective never ends, however long the others wait. The all-reduce that timed out is the *cascade*; the "
    "storage error is what *initiated* it. A longer time-out is right where a rank does arrive, late: a first step "
    "that compiles, or a save by rank 0 that takes 15 minutes. What helps here: a time-out on the loader itself, the "
    "flight recorder's dump, which names the rank that did not arrive, and a restart.",
    options=(
        Option(
            "an-hour",
            "Each hang costs an hour, and happens as often",
            "Right. The rank never arrives, so waiting longer only costs more.",
            True,
        ),
        Option(
            "cured",
            "The hang is cured, because storage is back by then",
            "The loader has stopped. Nothing in a longer time-out of NCCL starts it again.",
        ),
        Option(
            "slower",
            "Steps become slower, because NCCL checks less often",
            "The time-out has no effect on collectives that finish in time.",
        ),
        Option(
            "silent",
            "The job goes on with the gradients of 511 ranks",
            "An all-reduce has no result until every rank has taken part.",
        ),
    ),
)

EXERCISES = (MISPRINT, PROJECTED, EFFECTIVE, TIMEOUT)
