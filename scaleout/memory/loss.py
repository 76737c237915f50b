"""The end of a model: its last norm, the head and the loss, as allocations and frees, for each way to make the loss.

"eager" is torch.nn.functional.cross_entropy: it widens the logits to fp32, keeps their log-softmax, and its backward
makes two more tensors of that size. "fused" is one kernel that reads the logits and writes their gradient, both in the
dtype that the head made them in, with one number a token between (flash-attn's CrossEntropyLoss). "chunked" has the
head in it, and the logits of a few tokens at a time: it makes the gradients of the hidden states and of the head's
weights in the forward, and keeps these instead (torch.nn.functional.linear_cross_entropy with options, after Hsu et
al. 2024, Liger Kernel, arXiv 2410.10989). "chunked-logits" makes the logits by eighths of the tokens, and keeps all of
them as the head made them; a compiled cross-entropy widens an eighth at a time in its kernels (torchtune's
CEWithChunkedOutputLoss, modules/loss/ce_chunked_output_loss.py). Tensor parallelism cuts the vocabulary, and each of
them with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaleout.memory.activations import Sizes, block_kept, norm_kept
from scaleout.memory.backward import Backward
from scaleout.memory.tape import Tape
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

CHUNKS = 8  # torchtune's num_output_chunks


def logits_kept(z: Sizes) -> int:
    """What the loss keeps of a micro-batch that is as large as the logits."""
    return {"eager": z.vocab32, "fused": z.logits, "chunked": 0, "chunked-logits": z.logits}[z.recipe.loss]


def early_gradients(z: Sizes) -> tuple[int, int]:
    """The gradients of the hidden states and of the head's weights, where the forward makes them; else 0."""
    if z.recipe.loss != "chunked":
        return 0, 0
    return z.read, 0 if z.frozen else z.shape.hidden * z.vocab * z.e


def kept_in_flight(z: Sizes) -> dict[str, int]:
    """Bytes by kind that the last stage keeps at its fullest of micro-batches other than the one whose loss is made."""
    inputs, outputs = (n - 1 for n in z.ends_in_flight)
    return {
        "activations": inputs * (norm_kept(z) + _head_input(z)),
        "logits": outputs * logits_kept(z),
        "temporaries": outputs * sum(early_gradients(z)),
    }


def logits(z: Sizes, tape: Tape) -> None:
    """The end of the forward: the last norm, the head and what the loss makes in its forward."""
    cache, copy, method = autocast_cache(z), _head_copy(z), z.recipe.loss
    tape.hold("weights", copy, cache)
    tape.pre_forward("norm")
    tape.hold("activations", norm_kept(z), z.read_kept if method == "chunked" else _head_input(z))
    tape.post_forward("norm")
    tape.pre_forward("head")
    passing = z.gathered if z.regathers or z.auto else 0
    tape.hold("activations", passing)
    narrow = z.logits if z.e == 2 else 0
    if method == "chunked":
        tape.hold("temporaries", *early_gradients(z))
        tape.passing("logits", (z.vocab32 + narrow) * z.loss_chunk // z.tokens)
    else:
        tape.hold("logits", z.logits)
    tape.drop("activations", passing)
    tape.post_forward("head")
    if method == "eager":
        # as computed, in fp32, and their log-softmax, which a compiled loss makes again
        softmax = 0 if z.recipe.compiled else z.vocab32
        tape.hold("logits", z.vocab32 if narrow else 0, softmax)
        tape.drop("logits", narrow, softmax)
    elif method == "chunked":
        tape.drop("activations", z.read_kept)
        tape.drop("weights", copy)
    tape.drop("weights", cache)


def _head_input(z: Sizes) -> int:
    """Kept for the gradient of the head's weights, if these are trained and their gradient is made in the backward."""
    return 0 if z.frozen or z.recipe.loss == "chunked" else z.read_kept


def _head_copy(z: Sizes) -> int:
    return 2 * z.shape.hidden * z.vocab if z.copied else 0


def autocast_cache(z: Sizes) -> int:
    """16-bit copies that autocast holds until the forward ends and nothing else does: the biases', and under full
    checkpointing, which keeps no weights, the weights' too."""
    if not z.copied:
        return 0
    biases = 2 * sum(b for name, (_, b) in z.matrices.items() if z.shape.has_bias(name))
    weights = z.copies(*z.matrices) if z.recipe.checkpointing == "full" else 0
    return (biases + weights) * z.chunk_layers


def loss(z: Sizes, tape: Tape) -> None:
    """Cross-entropy's backward.

    "eager": the log-softmax, the gradient of the chosen entries, and from both the logits' gradient; over a vocabulary
    that is cut, the probabilities, of which a copy becomes the gradient (parallel/tensor.py). "chunked": torch fills
    with zeros, once, gradients that nobody asks for.
    """
    tape.enter("loss")
    if z.recipe.loss == "chunked":
        tape.passing("temporaries", *early_gradients(z))
    elif z.recipe.loss == "fused":
        tape.swap("logits", z.logits, z.logits)
    elif z.recipe.loss == "chunked-logits":  # the gradient of an eighth takes the place of its logits
        tape.passing("logits", z.logits // CHUNKS)
    else:
        sizes = (z.vocab32, z.vocab32) if z.layout.tp == 1 and not z.recipe.compiled else (z.vocab32,)
        tape.hold("logits", *sizes)
        tape.drop("logits", *sizes)
        if z.e == 2:
            tape.swap("logits", z.logits, z.vocab32)


def head(z: Sizes, backward: Backward) -> None:
    """The backward of the head and of the last norm."""
    backward.tape.enter("head")
    later = backward.add_later if z.shape.tied_head else backward.keep_gradient
    backward.tape.pre_backward("head")
    backward.gather()
    if z.recipe.loss == "chunked":
        _widened(z, backward, later)
    elif z.recipe.loss == "chunked-logits":
        _by_chunks(z, backward, later)
    else:
        backward.matrix(
            z.shape.hidden * z.vocab, 0, z.read, True, ("logits", z.logits), _head_input(z), _head_copy(z), later
        )
    backward.scatter()
    backward.tape.post_backward("head")
    backward.norm("norm", residual=False)


def _widened(z: Sizes, backward: Backward, keep: Callable[[int], None]) -> None:
    """Gradients that are there since the forward, in the dtypes of what they are of."""
    hidden, weights = early_gradients(z)
    if z.auto:
        backward.tape.swap("temporaries", 0 if z.regathers else 2 * hidden, 0 if z.regathers else hidden)
        backward.tape.swap("temporaries", 2 * weights, weights)
    keep(2 * weights if z.auto else weights)


def _by_chunks(z: Sizes, backward: Backward, keep: Callable[[int], None]) -> None:
    """The head's backward by eighths: each makes a gradient of all hidden states, zero but for its own, and one of the
    weights, which are added to those of the eighths before."""
    tape = backward.tape
    weights = 0 if z.frozen else z.shape.hidden * z.vocab * z.e
    tape.hold("temporaries", z.read, weights)
    tape.drop("logits", z.logits // CHUNKS)
    tape.passing("temporaries", z.read, weights)
    tape.drop("logits", z.logits - z.logits // CHUNKS)
    tape.drop("activations", _head_input(z))
    tape.drop("weights", _head_copy(z))
    if z.auto:
        tape.swap("temporaries", 2 * weights, weights)
        tape.swap("temporaries", 0 if z.regathers else 2 * z.read, 0 if z.regathers else z.read)
    keep(2 * weights if z.auto else weights)


def stage_kept(shape: Shape, batch: int, seq: int, layers: Sequence[int], recipe: Recipe) -> list[dict[str, int]]:
    """Bytes that each stage keeps of a micro-batch of batch x seq tokens, `layers` blocks in each: "weights" until the
    weights' gradients are there, "input" only until the input's is.

    The blocks' come from `block_kept`; the last stage has the norm, the head and what the loss keeps too, the first
    the numbers of the positions (int64). The batch itself stays anyway.
    """
    z = Sizes(shape, batch, seq, recipe, Layout())
    block = sum(block_kept(z, recipe.checkpointing).values())
    stages = [{"weights": n * block, "input": 0} for n in layers]
    stages[0]["weights"] += 8 * seq if shape.positions == "learned" else 0
    stages[-1]["weights"] += norm_kept(z) + _head_input(z)
    stages[-1]["input"] = logits_kept(z) + sum(early_gradients(z))
    return stages
