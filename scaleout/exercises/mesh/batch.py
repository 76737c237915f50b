"""Exercises of `mesh` on the batch: sequences per step, and what happens to a pipeline as replicas are added."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

_STUB = '''\
def sequences(world, tp, pp, cp, ep, m, batch):
    """Sequences that one step of the whole job trains on.

    world: number of ranks; tp, pp, cp, ep: degrees of tensor,
        pipeline, context and expert parallelism
    m: micro-batches per step, each of `batch` sequences
    """
    return ...
'''

_SOLUTION = """\
def sequences(world, tp, pp, cp, ep, m, batch):
    dp = world // (tp * pp * cp)       # experts borrow ranks of these
    return dp * m * batch
"""


def _sequences(world, tp, pp, cp, ep, m, batch):
    return world // (tp * pp * cp) * m * batch


SEQUENCES = Function(
    key="sequences-a-step",
    level=1,
    minutes=5,
    title="Which ranks read other sequences",
    prompt="A launcher gets the number of ranks, the degrees of tensor, pipeline, context and expert parallelism, and "
    "`m` micro-batches of `batch` sequences per step. Data parallelism gets whatever is left. Write "
    "`sequences(world, tp, pp, cp, ep, m, batch)`: on how many sequences does **one step of the whole job** train?\n\n"
    "For 64 ranks with tp 2, pp 4, cp 2, ep 8 and 16 micro-batches of 1 sequence it is 64.",
    hints=(
        "Along which axes do ranks read the *same* sequences? Only the other axes multiply the batch.",
        "Expert parallelism adds no GPUs: the experts are spread over ranks that other axes have already placed.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Ranks along tp work on the same tokens. Ranks along pp work on the same micro-batches, one after the other. Ranks "
    "along cp work on parts of the **same** sequences. So only dp multiplies the batch. A user who set context "
    "parallelism to 8 on 8 GPUs trains on 1 sequence instead of 8, and asked: *the visualized samples on each GPU "
    "were identical, meaning only 1 sample was processed per iteration. Is this understanding correct?* It is "
    "(nvidia-cosmos/cosmos-predict2, issue 92).\n\n"
    "**Experts are not a factor of the world size.** *Why can't `ep` be its own dimension?* a user asked of torchtitan "
    "(pytorch/torchtitan, issue 1977). The answer is a second view of the same ranks: *EP is not a factor because it "
    "does not add GPUs* (pull request 4831). If you divide by ep as well, your mesh is too small.",
    function="sequences",
    stub=_STUB,
    reference=_sequences,
    cases=(
        (64, 2, 4, 2, 8, 16, 1),
        (8, 2, 2, 1, 1, 4, 2),
        (8, 1, 1, 8, 1, 1, 1),
        (48, 2, 3, 2, 4, 7, 2),
        (128, 8, 1, 1, 8, 3, 4),
        (512, 8, 8, 2, 4, 16, 1),
        (6, 3, 1, 1, 1, 5, 1),
        (24, 1, 6, 2, 2, 12, 3),
        (1, 1, 1, 1, 1, 9, 2),
        (96, 4, 2, 3, 4, 5, 2),
    ),
    mistakes=(
        Mistake(
            "experts-divide",
            lambda world, tp, pp, cp, ep, m, batch: world / (tp * pp * cp * ep) * m * batch,
            "You divided by ep as well. Experts use ranks that dp, cp and tp already have, so they add none.",
        ),
        Mistake(
            "experts-divide-whole",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp * cp * ep) * m * batch,
            "You divided by ep as well, and rounded down. Experts use ranks that dp, cp and tp already have.",
        ),
        Mistake(
            "context-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp) * m * batch,
            "You let cp multiply the batch. Its ranks work on parts of the same sequences.",
        ),
        Mistake(
            "every-rank",
            lambda world, tp, pp, cp, ep, m, batch: world * m * batch,
            "You gave each rank its own sequences. Only ranks along dp read different ones.",
        ),
        Mistake(
            "tensor-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (pp * cp) * m * batch,
            "You let tp multiply the batch. Its ranks work on the same tokens, each with its part of the weights.",
        ),
        Mistake(
            "pipeline-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * cp) * m * batch,
            "You let pp multiply the batch. Every micro-batch passes through all stages.",
        ),
        Mistake(
            "one-micro-batch",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp * cp) * batch,
            "That is one micro-batch per replica. A step has m of them.",
        ),
    ),
    right="dp × m × batch, where dp is what tp, pp and cp leave over.",
)

TP, PP, SEQUENCES_A_STEP, SMALL, LARGE = 8, 6, 128, 96, 384


def micro_batches(gpus: int) -> int:
    """Of one sequence, in a step of the whole batch."""
    return SEQUENCES_A_STEP // (gpus // (TP * PP))


def _bubble(m: float, p: int = PP) -> float:
    return (p - 1) / (m + p - 1)


_M = micro_batches(LARGE)
_MICRO_BATCHES = micro_batches(SMALL)
BUBBLE = Number(
    key="bubble-as-dp-grows",
    level=2,
    minutes=5,
    title="Four times the GPUs, the same batch",
    prompt=f"A model trains on **{SMALL}** GPUs with tp {TP}, pp {PP}, and dp on what is left. A step has "
    f"{SEQUENCES_A_STEP} sequences, in micro-batches of one sequence, in 1F1B. You get **{LARGE}** GPUs, and give all "
    "of the new ones to dp. The batch stays the same, to keep the loss the same. What share of a step is bubble now, "
    "if forward and backward take equally long on all stages?",
    hints=(
        "How many replicas are there now, and how many sequences does each get?",
        "(p − 1) / (m + p − 1), with the m of one replica.",
    ),
    solution=f"dp is {LARGE} / {TP * PP} = {LARGE // (TP * PP)}, so each replica has m = {_M} micro-batches "
    f"instead of {_MICRO_BATCHES}. {PP - 1} / ({_M} + {PP - 1}) = **{_bubble(_M):.1%}**; before it was "
    f"{_bubble(_MICRO_BATCHES):.1%}.\n\n**At a fixed batch, more replicas mean more bubble.** A "
    f"step of 1F1B takes m + p − 1 rounds: {_MICRO_BATCHES + PP - 1} before, {_M + PP - 1} now. So four times the GPUs "
    f"are {(_MICRO_BATCHES + PP - 1) / (_M + PP - 1):.2f} times as fast, before any communication is counted. The axes "
    "of a mesh are not independent, because dp × m × micro-batch is the batch. What helps: chunks (v divides the "
    "bubble), fewer stages where memory allows it, or a larger batch.",
    value=_bubble(_M),
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "as-before",
            _bubble(_MICRO_BATCHES),
            f"That is with {_MICRO_BATCHES} micro-batches, as on {SMALL} GPUs. Each replica has fewer now.",
        ),
        Slip(
            "of-the-ideal",
            (PP - 1) / _M,
            "You divided by the time without a bubble. As a share of the whole step it is less.",
        ),
        Slip("all-sequences", _bubble(SEQUENCES_A_STEP), "You gave all sequences to one pipeline. dp shares them out."),
        Slip(
            "tensor-forgotten",
            _bubble(SEQUENCES_A_STEP * PP / LARGE),
            "You counted all ranks except those of pp as replicas. tp takes its share of them too.",
        ),
        Slip("p-rounds", PP / (_M + PP - 1), "Count again how many stages the last stage waits for."),
        Slip(
            "four-times",
            4 * _bubble(_MICRO_BATCHES),
            "You multiplied the share by four. m is a quarter now, but m stands in a sum.",
        ),
    ),
    right="dp × m × micro-batch is the batch: more replicas get fewer micro-batches each.",
)

ZERO = Choice(
    key="zero-beside-pp",
    level=2,
    minutes=4,
    title="A pipeline of 32 micro-batches, and ZeRO",
    prompt="A job runs with pp 4 × dp 8, 1F1B and 32 micro-batches per step. Each GPU is a few GB short. A stage has 8 "
    "GB of fp32 gradients, 4 GB of weights and 24 GB of optimizer states. Which ZeRO stage do you use along dp?",
    hints=(
        "When is the gradient of a pipeline stage complete: after one backward, or after the last one?",
        "With ZeRO-3 the ranks of a stage would gather the same weights for each micro-batch, in forward and backward.",
    ),
    solution="**Stage 1.** It frees 7/8 of 24 GB, which is 21 of 36, and sends as much per step as DDP does: one "
    "reduce-scatter and one all-gather after the last backward.\n\n"
    "With stage 2 a rank keeps only its own shard of the gradients. But gradients accumulate over micro-batches. "
    "Either each of the 32 backwards ends in a reduce-scatter of all gradients, 32 times the bytes, to free 7 GB; or "
    "the whole sum stays in memory until the last backward, and that is stage 1. Stage 3 gathers the weights twice for "
    "every micro-batch: 64 gathers for 3.5 GB. A pipeline wants *many small* micro-batches, and ZeRO from stage 2 on "
    "wants *few large* ones.\n\n"
    "DeepSpeed's pipeline asserts it: *no fundamental reason why pipeline parallelism and the later stages of zero "
    "couldn't be combined, but they take opposing paths* (issue 4164). Where memory is short it is done all the same: "
    "Llama 3's training sharded gradients too, and kept gathered weights from the forward to the backward (arXiv "
    "2407.21783, section 3.3.2).",
    options=(
        Option(
            "stage-1",
            "Stage 1: only the optimizer states",
            "Right: it frees most of the memory, and sends nothing more often than once per step.",
            True,
        ),
        Option(
            "stage-2",
            "Stage 2: the gradients too, for free",
            "With one micro-batch it is free. With 32, each backward would end in a reduce-scatter, or else the "
            "whole sum stays in memory.",
        ),
        Option(
            "stage-3",
            "Stage 3: everything, to free the most",
            "It frees 3.5 GB more than stage 2. For that it gathers the stage's weights 64 times per step.",
        ),
        Option(
            "none",
            "None: pp has split the model already",
            "pp splits it into 4. The 8 replicas of each stage still store the same states eight times.",
        ),
        Option(
            "along-pp",
            "Stage 1, but along pp and not along dp",
            "Ranks along pp have different weights, so there is no copy to shard.",
        ),
    ),
)

EXERCISES = (SEQUENCES, BUBBLE, ZERO)
