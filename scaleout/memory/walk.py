"""One training step as a sequence of allocations and frees, on one rank.

A peak is a maximum over moments, so the account has to walk through them. The walk follows torch's autograd
operation by operation: what an operation makes stands beside what it needs until it returns. Blocks are alike, so
only the last (activations at their fullest) and the first (gradients at their fullest) are walked; the blocks
between are added in one piece. Tests compare the walk with what torch allocates.
"""

from __future__ import annotations

from collections.abc import Callable

from scaleout.memory import optimizers
from scaleout.memory.activations import Sizes, block_kept, copies_kept
from scaleout.memory.backward import Backward
from scaleout.memory.forward import forward, passing_forward
from scaleout.memory.loss import head, kept_in_flight, logits, loss
from scaleout.memory.megatron import placeholders
from scaleout.memory.states import bucket_bytes
from scaleout.memory.tape import Tape
from scaleout.memory.traces import Steps, leave, play


def walk(z: Sizes, states: dict[str, int]) -> Tape:
    """The whole step, from bytes of the states on this rank. What is left at its end is the states and gradients."""
    if z.transformers:
        return transformers_walk(z, states)
    tape = Tape()
    backward = Backward(z, tape)
    for kind, size in resting(z, states).items():
        tape.hold(kind, size)
    waiting = kept_in_flight(z) if z.last else {}
    for kind, size in waiting.items():
        tape.hold(kind, size)
    tape.hold("gradients", placeholders(z))
    _forward(z, tape)
    if z.last:
        loss(z, tape)
        head(z, backward)
    else:
        tape.hold("temporaries", z.x)  # the gradient that the next stage sends
    _blocks(z, backward)
    embedding(z, backward) if z.first else tape.drop("temporaries", z.x)  # sent to the stage before
    # what is left belongs to micro-batches whose backward is still to come; the update waits for them
    tape.drop("activations", (z.in_flight - 1) * _micro_batch_kept(z))
    for kind, size in waiting.items():
        tape.drop(kind, size)
    tape.enter("optimizer")
    tape.passing("temporaries", *update(z, states))
    return tape


def transformers_walk(z: Sizes, states: dict[str, int]) -> Tape:
    """The whole step of transformers' modules. Of the layers of a kind between the first and the last, what they leave
    is added in one piece."""
    tape, steps = Tape(), Steps(z)
    keep, layers, offloaded = Backward(z, tape).keep, range(z.chunk_layers), Offloaded(z)
    for kind, size in resting(z, states).items():
        tape.hold(kind, size)
    waiting = (z.in_flight - 1) * steps.kept("activations")
    tape.hold("activations", z.batch_bytes, waiting)
    play(steps["begin"], tape)
    _layers(steps, "forward", layers, tape, keep, offloaded)
    play(steps["end"], tape)
    for i in layers:
        leave(steps.layer("cast", i), tape)
    tape.enter("loss")
    play(steps["loss"], tape, keep)
    tape.enter("block")
    _layers(steps, "backward", layers[::-1], tape, keep, offloaded)
    tape.enter("embedding")
    play(steps["finish"], tape, keep)
    tape.drop("activations", waiting)
    tape.enter("optimizer")
    tape.passing("temporaries", *update(z, states))
    return tape


class Offloaded:
    """Activations that wait in the host's memory, if they do. Copies run beside compute: up to five tensors are still
    on their way when a forward ends (torchtune, training/_activation_offloading.py, max_fwd_stash_size), taken for the
    inputs of five checkpointed blocks, or for all of one block; the next block's are back before it begins."""

    def __init__(self, z: Sizes) -> None:
        self.on = z.recipe.activation_offload
        self.stay = min(z.chunk_layers, 5 if z.recipe.checkpointing == "full" else 1)
        self.layers = z.chunk_layers

    @property
    def present(self) -> int:
        """Blocks whose activations are there when the backward of the last has run."""
        return (self.stay if self.on else self.layers) - 1

    def leave(self, tape: Tape, i: int, size: int) -> None:
        """Block i has run forward, and saved so many bytes."""
        if self.on and i < self.layers - self.stay:
            tape.drop("activations", size)

    def back(self, tape: Tape, i: int, size: int) -> None:
        """The backward of block i begins."""
        if self.on and i < self.layers - self.stay:
            tape.hold("activations", size)


def _layers(
    steps: Steps, phase: str, order: range, tape: Tape, keep: Callable[[int], None], offloaded: Offloaded
) -> None:
    """The layers in this order. Played are the first and the last of each kind; between them bytes grow or shrink by
    the same step, so that the fullest instant is in one of those."""
    inner = dict(enumerate(steps.layers[1:], 1))
    ends = {0, *{kind: i for i, kind in inner.items()}.values(), *{inner[i]: i for i in reversed(inner)}.values()}
    for i in order:
        part, saved = steps.layer(phase, i), steps.layer("forward", i).net.get("activations", 0)
        if phase == "backward":
            offloaded.back(tape, i, saved)
        play(part, tape, keep) if i in ends else leave(part, tape, keep)
        if phase == "forward":
            offloaded.leave(tape, i, saved)
        elif shared := steps.after(i):
            leave(shared, tape)


def resting(z: Sizes, states: dict[str, int]) -> dict[str, int]:
    """Bytes of the states between two steps: of the gradients those that are kept, or DDP's buckets."""
    gradients = states["gradients"] if z.keeps_gradients else bucket_bytes(z.shape, z.recipe, z.layout, z.stage)
    return states | {"gradients": gradients}


def _micro_batch_kept(z: Sizes) -> int:
    """Activations of one micro-batch: those of all blocks of a chunk, and the dropout mask of the embedding."""
    mask = z.mask if z.first else 0
    return mask + z.chunk_layers * sum(block_kept(z, z.recipe.checkpointing).values())


def _forward(z: Sizes, tape: Tape) -> None:
    """The forward up to the loss: the batch (two int64 a token), all that is saved, and the logits."""
    checkpointing = z.recipe.checkpointing
    block_bytes, copies = sum(block_kept(z, checkpointing).values()), copies_kept(z, checkpointing)
    # the last block is walked, for what it has in passing; of full checkpointing its input is there
    walked_bytes = block_bytes if checkpointing != "full" else 0
    tape.hold("activations", z.batch_bytes, z.in_flight * _micro_batch_kept(z) - walked_bytes)
    offloaded = Offloaded(z)
    for i in range(z.chunk_layers):
        offloaded.leave(tape, i, block_bytes)
    tape.hold("weights", copies * (z.chunk_layers - 1))
    if checkpointing == "full":
        cached = z.copies(*z.matrices)
        tape.hold("weights", cached * (z.chunk_layers - 1))  # until the forward ends: autocast_cache
        passing_forward(z, tape)
        tape.drop("weights", cached * z.chunk_layers)
    else:
        forward(z, tape, checkpointing)
    if z.last:
        logits(z, tape)


def _blocks(z: Sizes, backward: Backward) -> None:
    """The backward of the last block, of those between in one piece, and of the first."""
    tape, layers = backward.tape, z.chunk_layers
    tape.enter("block")
    gradients_before = tape.held["gradients"]
    backward.block()
    if layers == 1:
        return
    block_gradients = tape.held["gradients"] - gradients_before
    tape.drop("weights", (layers - 2) * copies_kept(z, z.recipe.checkpointing))
    # those of the first block stay, or come back
    tape.hold("activations", (1 - Offloaded(z).present) * sum(block_kept(z, z.recipe.checkpointing).values()))
    tape.hold("gradients", (layers - 2) * block_gradients)
    backward.block()


def embedding(z: Sizes, backward: Backward) -> None:
    """The position and token tables get dense gradients; a tied head's part is added to the latter."""
    tape, width = backward.tape, backward.width
    tape.enter("embedding")
    tape.pre_backward("tokens")
    if z.mask:
        tape.swap("temporaries", z.x, z.x)
        tape.drop("activations", z.mask)
    trains = z.recipe.adapter == "none"
    if z.shape.positions == "learned" and trains:
        summed = z.x // z.batch  # the positions that this rank has
        tape.hold("temporaries", summed)
        tape.hold("temporaries", z.shape.position_rows * z.shape.hidden * width)
        tape.drop("temporaries", summed)
        backward.keep_gradient(z.shape.position_rows * z.shape.hidden * width)
    table = z.vocab * z.shape.hidden * width if trains else 0
    token_gradients = z.x * (z.layout.tp if z.gathers else 1)
    if z.gathers:  # each rank has rows that tokens of all ranks point to
        tape.swap("temporaries", token_gradients, z.x)
    if z.layout.tp > 1:  # those of the tokens that are in its part of the table
        tape.swap("temporaries", token_gradients, token_gradients)
    tape.swap("temporaries", table, token_gradients)
    if z.shape.tied_head and z.last:
        # added: in place where the head's part is a tensor of its own, as a cast is
        tape.drop("temporaries", table) if z.auto else tape.swap("temporaries", table, table, table)
    backward.keep_gradient(table)


def update(z: Sizes, states: dict[str, int]) -> tuple[int, ...]:
    """Temporaries of the optimizer's step, in bytes, beside the states: fp32 gradients for the master copy, and its
    own."""
    widened = states["master"] if z.recipe.main_gradients == "none" else 0
    return widened, optimizers.temporaries(z.trained, z.recipe, states["optimizer"])
