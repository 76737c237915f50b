"""Exercises of `mesh` on the batch: a step's sequences, and what becomes of a pipeline as replicas are added."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

_STUB = '''\
def sequences(world, tp, pp, cp, ep, m, batch):
    """Sequences of a step, of all ranks together.

    world: ranks in all; tp, pp, cp, ep: degrees of tensor,
        pipeline, context and expert parallelism
    m: micro-batches of a step, each of `batch` sequences
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
    title="Who reads another sequence",
    prompt="A launcher is given the ranks of a job, the degrees of tensor, pipeline, context and expert parallelism, "
    "and that a step has `m` micro-batches of `batch` sequences; data parallelism gets what is left. Write "
    "`sequences(world, tp, pp, cp, ep, m, batch)`: how many sequences **one step of the whole job** trains on.\n\n"
    "For 64 ranks with tp 2, pp 4, cp 2, ep 8, 16 micro-batches and 1 sequence in each it is 64.",
    hints=(
        "Which axes' ranks read the *same* sequences? Only the others multiply the batch.",
        "Expert parallelism adds no GPU: experts are spread over ranks that have other coordinates already.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Ranks along tp work on the same tokens, those along pp on the same micro-batches one after the other, those "
    "along cp on parts of the **same** sequences. So only dp multiplies the batch. Somebody who sets context "
    "parallelism to 8 on 8 GPUs trains on 1 sequence in place of 8, and asks: *the visualized samples on each GPU were "
    "identical, meaning only 1 sample was processed per iteration. Is this understanding correct?* It is "
    "(nvidia-cosmos/cosmos-predict2, issue 92).\n\n"
    "**Experts are no factor of the world.** *Why can't `ep` be its own dimension?* is asked of torchtitan "
    "(pytorch/torchtitan, issue 1977). Its answer is a second view of the same ranks: *EP is not a factor because it "
    "does not add GPUs* (pull request 4831). Who divides by ep as well ends with a mesh that is too small.",
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
            "You divided by ep as well. Experts lie on ranks that dp, cp and tp have already: they add none.",
        ),
        Mistake(
            "experts-divide-whole",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp * cp * ep) * m * batch,
            "You divided by ep as well, and rounded down. Experts lie on ranks that dp, cp and tp have already.",
        ),
        Mistake(
            "context-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp) * m * batch,
            "You let cp multiply the batch. Its ranks have parts of the same sequences.",
        ),
        Mistake(
            "every-rank",
            lambda world, tp, pp, cp, ep, m, batch: world * m * batch,
            "You gave each rank its own sequences. Only ranks along dp read different ones.",
        ),
        Mistake(
            "tensor-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (pp * cp) * m * batch,
            "You let tp multiply the batch. Its ranks work on the same tokens, each with a part of the weights.",
        ),
        Mistake(
            "pipeline-multiplies",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * cp) * m * batch,
            "You let pp multiply the batch. A micro-batch passes through all stages.",
        ),
        Mistake(
            "one-micro-batch",
            lambda world, tp, pp, cp, ep, m, batch: world // (tp * pp * cp) * batch,
            "That is one micro-batch of each replica. A step has m of them.",
        ),
    ),
    right="dp × m × batch, and dp is what tp, pp and cp leave.",
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
    prompt=f"A model trains on **{SMALL}** GPUs with tp {TP}, pp {PP}, and what is left for dp: a step has "
    f"{SEQUENCES_A_STEP} sequences, in micro-batches of one sequence, in 1F1B. You get **{LARGE}** GPUs and give "
    "them all to dp. The batch stays as it is, for the sake of the loss. Which share of a step is bubble now, if "
    "forward and backward take the same on all stages?",
    hints=(
        "How many replicas are there now, and how many of the sequences does each get?",
        "(p − 1) / (m + p − 1), with the m of one replica.",
    ),
    solution=f"dp is {LARGE} / {TP * PP} = {LARGE // (TP * PP)}, so that a replica has m = {_M} micro-batches, "
    f"no longer {_MICRO_BATCHES}. {PP - 1} / ({_M} + {PP - 1}) = **{_bubble(_M):.1%}**; before it was "
    f"{_bubble(_MICRO_BATCHES):.1%}.\n\n**Adding replicas of a pipeline empties it**, as long as the batch stays. A "
    f"step of 1F1B takes m + p − 1 rounds: {_MICRO_BATCHES + PP - 1} before, {_M + PP - 1} now. Four times the GPUs "
    f"are {(_MICRO_BATCHES + PP - 1) / (_M + PP - 1):.2f} times as fast, and no message has been counted yet. The axes "
    "of a mesh are not independent: dp × m × micro-batch is the batch. What helps is chunks (v divides the bubble), "
    "fewer stages where memory allows it, or a larger batch.",
    value=_bubble(_M),
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "as-before",
            _bubble(_MICRO_BATCHES),
            f"That is with {_MICRO_BATCHES} micro-batches, as on {SMALL} GPUs. A replica has fewer now.",
        ),
        Slip("of-the-ideal", (PP - 1) / _M, "That is bubble by the time without one. Of the whole step it is less."),
        Slip("all-sequences", _bubble(SEQUENCES_A_STEP), "You gave all sequences to one pipeline. dp shares them out."),
        Slip(
            "tensor-forgotten",
            _bubble(SEQUENCES_A_STEP * PP / LARGE),
            "You took all ranks but those of pp for replicas. tp takes its part of them.",
        ),
        Slip("p-rounds", PP / (_M + PP - 1), "Count again whom the last stage waits for."),
        Slip(
            "four-times",
            4 * _bubble(_MICRO_BATCHES),
            "You took the share four times. m became a quarter, and m stands in a sum.",
        ),
    ),
    right="dp × m × micro-batch is the batch: more replicas, fewer micro-batches.",
)

ZERO = Choice(
    key="zero-beside-pp",
    level=2,
    minutes=4,
    title="A pipeline of 32 micro-batches, and ZeRO",
    prompt="pp 4 × dp 8, 1F1B, 32 micro-batches per step. A GPU lacks a few GB. Its stage's gradients take 8 GB "
    "of fp32, "
    "its weights 4 GB, its optimizer's states 24 GB. Which stage of ZeRO do you take, along dp?",
    hints=(
        "When is a gradient of a stage complete: after a backward, or after the last one?",
        "A stage's ranks would gather the same weights for each micro-batch, in the forward and in the backward.",
    ),
    solution="**Stage 1.** It frees 7/8 of 24 GB, which is 21 of 36, and sends once a step what DDP sends: one "
    "reduce-scatter and one all-gather after the last backward.\n\n"
    "Stage 2 means that a rank keeps only its own part of the gradients. But micro-batches add up in them: either each "
    "of 32 backwards ends in a reduce-scatter of all gradients, 32 times the bytes, to free 7 GB; or the whole sum "
    "stays until the last, and then it is stage 1. Stage 3 gathers the weights for every micro-batch, twice: 64 "
    "gathers for 3.5 GB. A pipeline wants *many small* micro-batches, ZeRO from 2 on wants *few large* ones.\n\n"
    "DeepSpeed's pipeline asserts it: *no fundamental reason why pipeline parallelism and the later stages of zero "
    "couldn't be combined, but they take opposing paths* (issue 4164). The question was asked as *Is pipeline-parallel "
    "in conflict with ZeRO-stage2?* (issue 823). Where memory is short all the same it is done: Llama 3's "
    "training split gradients too, and kept weights that it had gathered from the forward to the backward (arXiv "
    "2407.21783, section 3.3.2).",
    options=(
        Option(
            "stage-1",
            "Stage 1: the optimizer's states alone",
            "Right: most of the memory, and nothing is sent more often than once a step.",
            True,
        ),
        Option(
            "stage-2",
            "Stage 2: the gradients too, for nothing",
            "In one pass it costs nothing. In 32 of them each backward would end in a reduce-scatter, or the sum "
            "stays whole.",
        ),
        Option(
            "stage-3",
            "Stage 3: everything, it frees the most",
            "It does, by 3.5 GB more than stage 2. For that it gathers the stage's weights 64 times per step.",
        ),
        Option(
            "none",
            "None: pp has split the model already",
            "pp splits it in 4. The 8 replicas of a stage still hold the same states eight times.",
        ),
        Option(
            "along-pp",
            "Stage 1, along pp in place of dp",
            "Ranks along pp have different weights: there is nothing that one could own for another.",
        ),
    ),
)

EXERCISES = (SEQUENCES, BUBBLE, ZERO)
