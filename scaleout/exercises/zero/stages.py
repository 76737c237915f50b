"""Exercises of `zero` on the stages themselves: what stage 3 computes with, and which stage a job takes."""

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
    title="A quarter of a matrix",
    prompt="Four GPUs train at stage 3, each with its own samples. A matrix W lies in quarters on the four. In the "
    "forward GPU 2 comes to the layer of W. What does it multiply?",
    hints=(
        "What travels at stage 3: weights, or activations?",
        "ZeRO is data parallelism. Who works on whose samples?",
    ),
    solution="**All of W, with its own samples.** The quarters are gathered first and freed afterwards. Stage 3 splits "
    "where a weight *lies*, not who *computes* with it: each GPU does the work of the whole model on its samples, as "
    "under DDP. In tensor parallelism weights stay where they are, each GPU multiplies its quarter with the samples of "
    "all, and activations travel.\n\nThe two are taken for one another. *The key innovation of sharding is a form of "
    "horizontal MP*, says DeepSpeed's issue 673, and issue 3889 reports as a bug that the *model parallel size* is 1 "
    "at stage 3. One of ZeRO's authors corrects it: *the partitioning of parameter, gradient and optimizer state in "
    "data parallel training* (huggingface/blog, pull request 71). You can tell them apart on the wire: bytes that grow "
    "with the model, or with the tokens.",
    options=(
        Option(
            "whole-own",
            "All of W, with its own samples",
            "Right: W is gathered for the moment. What is split is where it lies between its uses.",
            True,
        ),
        Option(
            "quarter-own",
            "Its quarter of W, with its own samples",
            "Then nobody would multiply those samples with the other three quarters. GPU 2 gathers them.",
        ),
        Option(
            "quarter-all",
            "Its quarter of W, with the samples of all",
            "That is tensor parallelism: weights stay, activations travel. At stage 3 it is weights that travel.",
        ),
        Option(
            "whole-all",
            "All of W, with the samples of all four",
            "Then all four would do the same work. Each has its own samples, as in DDP.",
        ),
        Option(
            "sum",
            "Its quarter of W, and adds to the others'",
            "That is a matrix cut by rows, in tensor parallelism. At stage 3 only gradients are added up.",
        ),
    ),
)


USABLE = 73 * GB  # of an H100 (memory/allocator.py)


@dataclass(frozen=True)
class Job:
    """What is known of a job before its stage is chosen. Activations in bytes of a GPU."""

    parameters: int
    ranks: int
    passes: int
    activations: float

    def needs(self, stage: int) -> float:
        """Bytes of a GPU, what stage 3 gathers for the moment left out."""
        return total(stage, self.ranks, self.parameters) + self.activations

    def sends(self, stage: int) -> float:
        """Pieces that a GPU sends in a step."""
        return pieces(self.parameters, ADAMW, Layout(dp=self.ranks, zero=stage), passes=self.passes)


JOBS = {"A": Job(5 * GB, 64, 16, 45 * GB), "B": Job(19 * GB, 8, 1, 20 * GB), "C": Job(13 * GB, 8, 1, 20 * GB)}


_TABLE = columns(
    [
        ("", *JOBS),
        ("billion parameters", *(f"{job.parameters / 1e9:.0f}" for job in JOBS.values())),
        ("GPUs", *(job.ranks for job in JOBS.values())),
        ("passes in a step", *(job.passes for job in JOBS.values())),
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
    title="Three jobs, three stages",
    prompt="Three jobs train with AdamW, 2 + 2 + 12 bytes for each parameter. Of a GPU **73 GB** are usable, "
    "and its batch cannot be smaller. Each job adds its gradients up over the passes of a step. No stage holds more "
    "than it has to, and stage 3 frees each weight after its use.\n\n"
    f"```\n{_TABLE}\n```\n\nFor each: the stage that **fits and sends least** in a step.",
    hints=(
        "Write down for each job what a GPU holds at stages 1, 2 and 3.",
        "What does each stage send in a step of 16 passes?",
    ),
    solution=f"```\n{_NEEDS}\n```\n\n"
    "**A takes stage 1, B stage 3, C stage 2.** A fits from stage 1 on. With 16 passes stage 1 sends "
    f"{JOBS['A'].sends(1):.0f} pieces, stage 2 sends {JOBS['A'].sends(2):.0f} and stage 3 sends "
    f"{JOBS['A'].sends(3):.0f}: each stage more would free memory that nobody needs, and pay for it in every pass. "
    "C is too large with whole gradients. In one pass stage 2 sends 2 pieces like DDP, so there is nothing to weigh. B "
    "does not fit as long as weights are whole, and pays the third piece because it must.\n\nThat is the rule: **the "
    "first stage that fits.** Stage 1 always sends as little as DDP, stage 2 does in a single pass, stage 3 only "
    "where it keeps what it gathered. Do not take it because it frees most.",
    options=(
        Option("1-3-2", "A: stage 1, B: stage 3, C: stage 2", "Right: for each job the first stage that fits.", True),
        Option(
            "2-3-2",
            "A: stage 2, B: stage 3, C: stage 2",
            "Stage 2 costs nothing in a step of one pass. A has 16, and stage 2 reduces gradients in each.",
        ),
        Option(
            "3-3-3",
            "A: stage 3, B: stage 3, C: stage 3",
            "All three would fit. But stage 3 gathers the weights twice in every pass: A would send 48 pieces in "
            "place of 2.",
        ),
        Option(
            "1-2-1",
            "A: stage 1, B: stage 2, C: stage 1",
            "That is right for the states alone. Activations lie on the same card, whole at every stage.",
        ),
        Option(
            "1-3-3",
            "A: stage 1, B: stage 3, C: stage 3",
            "Look at C again: 2 bytes whole and 14 split over 8. It fits with whole weights, and sends one piece less.",
        ),
        Option(
            "2-3-1",
            "A: stage 2, B: stage 3, C: stage 1",
            "C is too large at stage 1, where gradients are whole: 4 × 13 GB and an eighth of 156, and its "
            "activations. And A has no need of stage 2.",
        ),
    ),
)

EXERCISES = (COMPUTES, WHICH_STAGE)
