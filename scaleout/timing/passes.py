"""Bytes that a layer's kernels move beside its matrix multiplications and attention, and launches of such kernels.

A pass reads or writes one tensor once. What a program has as one kernel reads its inputs and writes its output; what it
has as several operations writes and reads each step between. `Program.moves` scales all of it. Counted in the sources
of torch 2.13 and transformers 5.24 (models/llama, gemma2, deepseek_v3, gpt_oss, qwen3_moe; integrations/moe.py).
"""

from __future__ import annotations

from scaleout.collectives.tensor import Block
from scaleout.spec.adapters import adapted, nf4_bytes, stored_in_4_bits
from scaleout.spec.blocks import Kind
from scaleout.spec.job import Job
from scaleout.spec.variant import NORMS
from scaleout.timing import kernels

Pair = tuple[float, float]  # (forward, backward)

# How often a block's half reads or writes its stream: a norm and a residual sum; under dropout a mask of a byte too. An
# RMS norm in operations of its own casts, squares, takes the mean and scales: so many passes of 16 bits more.
STREAM, STREAM_DROPPED, RMS_NORM = (5, 6), (0.5, 2.5), (10, 14)
NORM = (2, 3)  # of the stream's, those of its norm: of norms beside it too
# The same of queries and keys that rotary positions turn, in one kernel and one operation at a time, in fp32.
ROTARY, ROTARY_UNFUSED = (2, 2), (9, 9)
# Latent attention puts the part of a head with positions beside the part without: one copy of queries and of keys,
# which a fused rotary kernel writes anyway.
BESIDE = (2, 2)
# Of the MLP's inner tensors, whose activation is one kernel, or with a gate two: passes of one inner tensor.
GELU, GATED, GATED_UNFUSED = (2, 3), (3, 5), (5, 9)
# Of naive attention's scores: `kernels.SCORES`; under dropout; where tanh caps them in three operations (divide, tanh,
# multiply); where a learned score stands beside them: it is put there, and the largest is subtracted (gpt_oss).
SCORES = tuple(kernels.SCORES[direction] for direction in kernels.DIRECTIONS)
SCORES_DROPPED, SCORES_CAPPED, SCORES_SUNK = (2.5, 2.5), (6, 7), (5, 5)
# Of an fp32 logit: the cast and the three reductions; in one kernel 16 bits are read, and the gradient written. tanh
# caps them before, in three operations of 16 bits; a kernel that has the loss has that too.
LOGITS = {"eager": (5, 3), "fused": (0.5, 1), "chunked": (0.5, 1), "chunked-logits": (5, 3)}
LOGITS_CAPPED = {"eager": (3, 3.5), "fused": (0, 0), "chunked": (0, 0), "chunked-logits": (3, 3.5)}
# Of a router's probabilities in fp32: softmax, choice, their gradients.
ROUTED = (4, 4)
# Rows of the stream that go to experts and come back: (for each expert of a token, for each token), fused and in
# operations of their own. Forward: gathered, and summed by their weights. Backward: scattered, the gradient of these
# weights reads what the experts gave, and the gradients of a token's rows are summed.
PERMUTED = {True: ((3, 1), (4, 1)), False: ((7, 1), (12, 1))}
# Of a gradient that has two summands; of the output of a layer in 4 bits, which is copied before an adapter's is added
# (peft 0.21, tuners/lora/bnb.py).
ADDED, CLONED = 3, 2

# Kernels of a norm: transformers' RMS norm casts, squares, takes the mean, adds, takes the root, multiplies, casts and
# scales; of other norms, and fused, one.
NORM_KERNELS, FUSED_KERNELS = 8, 1
# Kernels of a forward that `Program.kernels` does not have: of experts (softmax, choice, their sum, sort, gathers,
# counts, offsets, the weights, the way back), fused a router, a permutation there and back; of tanh around scores; of
# what stands beside them; of an adapter; of weights in NF4, their own scales in 8 bits.
EXPERTS_KERNELS = {True: 4, False: 18}
CAPPED_KERNELS, SUNK_KERNELS, ADAPTER_KERNELS, NF4_KERNELS = 3, 3, 2, 2


def sizes(cut: Block) -> dict[str, int]:
    """Bytes of a block's activations on a rank, by name."""
    return {activation.name: activation.bytes for activation in cut.tensors}


def moved(job: Job, cut: Block, half: str, phase: int, kind: Kind) -> float:
    """Bytes that the kernels of a half read and write in forward (0) or backward (1), except matmuls and attention."""
    size, shape = sizes(cut), job.shape
    norms = NORMS[shape.features.norms] / 2
    passes: float = STREAM[phase] + (norms - 1) * NORM[phase] + STREAM_DROPPED[phase] * bool(job.recipe.dropout)
    passes += norms * RMS_NORM[phase] * _split_norm(job)
    total = passes * size["x"]
    if half == "attention":
        return total + _attention(job, size, phase)
    fused = job.program.fused
    inner = GELU if not shape.gated_mlp else GATED if fused else GATED_UNFUSED
    return total + inner[phase] * size["up"] + (_experts(job, phase) if kind.experts else 0.0)


def _split_norm(job: Job) -> bool:
    """Whether norms are several operations."""
    return job.shape.norm == "rmsnorm" and not job.program.fused


def _attention(job: Job, size: dict[str, int], phase: int) -> float:
    """Of queries and keys: rotary positions, and norms of their own or of the latent vectors that they come from."""
    features, fused = job.shape.features, job.program.fused
    turned, total = size["q"] + size["k"], 0.0
    norm = NORM[phase] + RMS_NORM[phase] * (not fused)
    if features.qk_norm != "none":
        total += norm * turned
    if features.latent:
        latent, width = features.latent, job.recipe.width("compute")
        total += norm * job.tokens * width * (latent.kv_rank + (latent.q_rank or 0))
        if not fused:
            total += BESIDE[phase] * turned
            turned = job.tokens * width * latent.rope * (job.shape.heads // job.layout.tp + 1)
    rotary = ROTARY if fused else ROTARY_UNFUSED
    return total + rotary[phase] * turned * (job.shape.positions == "rotary")


def _experts(job: Job, phase: int) -> float:
    """Of a router, and of the rows that go to experts and back."""
    experts = job.shape.features.experts
    assert experts is not None
    each, once = PERMUTED[job.program.fused][phase]
    row = job.shape.hidden * job.recipe.width("compute")
    return job.tokens * ((each * experts.active + once) * row + ROUTED[phase] * 4 * experts.count)


def adapters(job: Job, half: str, phase: int, kind: Kind) -> float:
    """Of low-rank adapters: their inputs and outputs; of weights in 4 bits, which are made 16 before each product."""
    recipe, width, tp = job.recipe, job.recipe.width("compute"), job.layout.tp
    if recipe.adapter == "none":
        return 0.0
    total = 0.0
    for matrix in adapted(job.shape, recipe, kind.experts, tp):
        if matrix.half == half:
            outputs, inputs = _adapter(job, phase)
            total += job.tokens * width * (outputs * matrix.columns + inputs * matrix.depth)
    for matrix in stored_in_4_bits(job.shape, recipe, kind.experts, tp):
        if matrix.half == half:
            total += (nf4_bytes(recipe) + width) * matrix.elements
            total += job.tokens * width * CLONED * matrix.columns * (phase == 0)
    return total


def _adapter(job: Job, phase: int) -> Pair:
    """Passes of an adapter's outputs and of its inputs, in the dtype of the matmuls: the output is scaled and added to
    the layer's; an input may be dropped; of an input's gradient two summands are added. Adapters in fp32 beside 16 bits
    have casts on each side, which autocast leaves out (peft 0.21, tuners/lora/layer.py)."""
    recipe = job.recipe
    wide = recipe.adapter_bytes / recipe.width("compute") if not recipe.autocast else 1
    cast = (1 + wide) * (wide > 1)
    dropped = (2 * wide + 0.5) * bool(recipe.adapter_dropout)
    if job.program.fused:
        return (1 + 2 * wide, dropped) if phase == 0 else (2 * wide, ADDED + dropped)
    if phase == 0:
        return 2 * wide + (1 + 2 * wide) + cast, cast + dropped
    return 2 * wide + 2 * cast, ADDED + cast + dropped


def scores(job: Job) -> Pair:
    """Passes of naive attention over its scores."""
    features, fused = job.shape.features, job.program.fused
    beside = (
        (job.recipe.dropout, SCORES_DROPPED),
        ("scores" in features.caps and not fused, SCORES_CAPPED),
        (features.sinks, SCORES_SUNK),
    )
    forward, backward = (SCORES[i] + sum(passes[i] for there, passes in beside if there) for i in (0, 1))
    return forward, backward


def logits(job: Job, phase: int) -> float:
    """Passes of the loss over an fp32 logit."""
    loss = job.recipe.loss
    return LOGITS[loss][phase] + LOGITS_CAPPED[loss][phase] * ("logits" in job.shape.features.caps)


def launches(job: Job, half: str, kind: Kind) -> float:
    """Kernels of a half's forward beside its matrix multiplications and attention: half of the program's, and those of
    what the model has beside Llama's blocks."""
    features, fused = job.shape.features, job.program.fused
    norm = NORM_KERNELS if _split_norm(job) else FUSED_KERNELS
    count = job.program.kernels // 2 + (NORMS[features.norms] / 2 - 1) * norm
    if half == "mlp":
        return count + EXPERTS_KERNELS[fused] * kind.experts
    count += 2 * norm * (features.qk_norm != "none")
    if features.latent:
        count += norm * (1 + bool(features.latent.q_rank)) + (0 if fused else 3)
    if job.recipe.attention == "naive":
        count += CAPPED_KERNELS * ("scores" in features.caps and not fused) + SUNK_KERNELS * features.sinks
    return count


def small_launches(job: Job, half: str, kind: Kind) -> int:
    """Kernels of adapters and of weights in 4 bits in a half's forward, beside multiplications: they stand among larger
    ones."""
    recipe, args = job.recipe, (job.shape, job.recipe, kind.experts, job.layout.tp)
    if recipe.adapter == "none":
        return 0
    wrapped, packed = (sum(m.half == half for m in of(*args)) for of in (adapted, stored_in_4_bits))
    casts = 2 * (recipe.adapter_bytes > recipe.width("compute") and not recipe.autocast)
    return wrapped * (ADAPTER_KERNELS + casts + bool(recipe.adapter_dropout)) + packed * (1 + NF4_KERNELS)
