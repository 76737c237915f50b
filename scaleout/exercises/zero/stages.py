"""Exercises of `zero` on the stages themselves: what stage 3 computes with, and which stage a job needs."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.collectives.zero import pieces
from scaleout.exercises.engine import Choice, Option
from scaleout.exercises.zero.sizes import ADAMW, total
from scaleout.spec.devices import GB
from scaleout.spec.layout import Layout
from scaleout.words.tables import columns

COMPUTES = Choice(
    key="who-computes",
    level=1,
    minutes=2,
    short=True,
    title="A quarter of a matrix",
    prompt="Four GPUs train at stage 3, each on its own samples. Each GPU stores a quarter of a weight matrix W. In "
    "the forward, GPU 2 reaches the layer of W. What does it multiply?",
    hints=(
        "What is communicated at stage 3: weights or activations?",
        "ZeRO is data parallelism. Which GPU works on which samples?",
    ),
    solution="**All of W, with its own samples.** The quarters are gathered before the layer computes, and freed "
    "afterwards. Stage 3 shards where a weight is *stored*, not who *computes* with it: each GPU runs the whole model "
    "on its samples, as under DDP. In tensor parallelism the weights stay where they are, each GPU multiplies its "
    "quarter with everybody's samples, and activations are communicated.\n\nThe two are often confused. DeepSpeed's "
    "issue 673 says: *The key innovation of sharding is a form of horizontal MP* (model parallelism). One of ZeRO's "
    "authors corrects this: *the partitioning of parameter, gradient and optimizer state in data parallel training* "
    "(huggingface/blog, pull request 71). You can tell them apart by their communication: ZeRO's bytes grow with the "
    "model, and tensor parallelism's with the tokens.",
    options=(
        Option(
            "whole-own",
            "All of W, with its own samples",
            "Right: W is gathered for that moment. Only its storage between two uses is sharded.",
            True,
        ),
        Option(
            "quarter-own",
            "Its quarter of W, with its own samples",
            "Then nobody would multiply these samples with the other three quarters. GPU 2 gathers them first.",
        ),
        Option(
            "quarter-all",
            "Its quarter of W, with the samples of all",
            "That is tensor parallelism: the weights stay and activations are communicated. Stage 3 communicates "
            "weights.",
        ),
        Option(
            "whole-all",
            "All of W, with the samples of all four",
            "Then all four GPUs would do the same work. Each has its own samples, as in DDP.",
        ),
        Option(
            "sum",
            "Its quarter of W, then sums with the others",
            "That is a matrix split by rows, in tensor parallelism. At stage 3 only gradients are summed.",
        ),
    ),
)


USABLE = 73 * GB  # of an H100 (memory/allocator.py)


@dataclass(frozen=True)
class Job:
    """What is known of a job before its stage is chosen. Activations in bytes per GPU."""

    parameters: int
    ranks: int
    passes: int
    activations: float

    def needs(self, stage: int) -> float:
        """Bytes per GPU, without what stage 3 gathers for a moment."""
        return total(stage, self.ranks, self.parameters) + self.activations

    def sends(self, stage: int) -> float:
        """The communication volume of a step, in units of N."""
        return pieces(self.parameters, ADAMW, Layout(dp=self.ranks, zero=stage), passes=self.passes)


JOBS = {"A": Job(5 * GB, 64, 16, 45 * GB), "B": Job(19 * GB, 8, 1, 20 * GB), "C": Job(13 * GB, 8, 1, 20 * GB)}


_TABLE = columns(
    [
        ("", *JOBS),
        ("billion parameters", *(f"{job.parameters / 1e9:.0f}" for job in JOBS.values())),
        ("GPUs", *(job.ranks for job in JOBS.values())),
        ("micro-batches", *(job.passes for job in JOBS.values())),
        ("activations, GB", *(f"{job.activations / GB:.0f}" for job in JOBS.values())),
    ],
    18,
    7,
)
_NEEDS = columns(
    [("GB per GPU", *JOBS)]
    + [
        (f"stage {stage}" if stage else "DDP", *(f"{job.needs(stage) / GB:.1f}" for job in JOBS.values()))
        for stage in range(4)
    ],
    18,
    7,
)

WHICH_STAGE = Choice(
    key="which-stage",
    level=3,
    minutes=6,
    short=True,
    title="Three jobs, three stages",
    prompt="Three jobs train with AdamW, with 2 + 2 + 12 bytes per parameter. A GPU has **73 GB** of usable memory, "
    "and the activations cannot be smaller. Gradients are accumulated over the micro-batches of a step. No stage "
    "stores more than it must, and stage 3 frees each weight after its use.\n\n"
    f"```\n{_TABLE}\n```\n\nFor each job: which stage **fits and communicates least** per step?",
    hints=(
        "For each job, compute what a GPU stores at stages 1, 2 and 3.",
        "What is the communication volume of each stage with 16 micro-batches?",
    ),
    solution=f"```\n{_NEEDS}\n```\n\n"
    "**A: stage 1, B: stage 3, C: stage 2.** A fits from stage 1 on. With 16 micro-batches the volume is "
    f"{JOBS['A'].sends(1):.0f}N at stage 1, {JOBS['A'].sends(2):.0f}N at stage 2 and {JOBS['A'].sends(3):.0f}N at "
    "stage 3, so a higher stage would free memory that the job does not need, and pay for it in every micro-batch. C "
    "does not fit with whole gradients. With one micro-batch, stage 2 has a volume of 2N like DDP, so it costs nothing "
    "extra. B does not fit as long as the weights are whole, and has to pay 3N.\n\nThe rule is: **the first stage that "
    "fits.** Stage 1 always communicates as little as DDP, stage 2 does with one micro-batch per step, and stage 3 "
    "only if it keeps the weights that it gathered.",
    options=(
        Option("1-3-2", "A: stage 1, B: stage 3, C: stage 2", "Right: for each job the first stage that fits.", True),
        Option(
            "2-3-2",
            "A: stage 2, B: stage 3, C: stage 2",
            "Stage 2 costs nothing extra with one micro-batch. A has 16, and stage 2 reduces gradients in each.",
        ),
        Option(
            "3-3-3",
            "A: stage 3, B: stage 3, C: stage 3",
            "All three would fit. But stage 3 gathers the weights twice in every micro-batch: A would have a volume of "
            "48N instead of 2N.",
        ),
        Option(
            "1-2-1",
            "A: stage 1, B: stage 2, C: stage 1",
            "That would be right for the states alone. Activations need memory on the same GPU, at every stage.",
        ),
        Option(
            "1-3-3",
            "A: stage 1, B: stage 3, C: stage 3",
            "Look at C again: 2 bytes are whole and 14 are split over 8 GPUs. It fits with whole weights, and then it "
            "communicates less.",
        ),
        Option(
            "2-3-1",
            "A: stage 2, B: stage 3, C: stage 1",
            "C does not fit at stage 1, where gradients are whole: 4 × 13 GB, an eighth of 156 GB, and its "
            "activations. And A does not need stage 2.",
        ),
    ),
)

EXERCISES = (COMPUTES, WHICH_STAGE)
