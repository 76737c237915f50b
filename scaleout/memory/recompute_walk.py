"""One training step under any policy of recomputation, allocation by allocation, as `walk` does for three of them."""

from __future__ import annotations

from scaleout.memory.activations import Sizes, block_kept, copies_kept
from scaleout.memory.backward import Backward
from scaleout.memory.forward import forward, passing_forward
from scaleout.memory.recompute import INPUT, Policy, dropped_bytes, kept, names
from scaleout.memory.tape import Tape
from scaleout.memory.walk import embedding, head, logits, loss, resting, update


def policy_walk(z: Sizes, states: dict[str, int], policy: Policy) -> Tape:
    """The whole step; every block is walked, for each can drop something else.

    A block that drops a part of its tiles holds all of them until its forward is over, an upper bound. Where it drops
    any, autocast casts its weights once more, and no copy of them waits for the backward.
    """
    tape = Tape()
    back = Backward(z, tape)
    for kind, size in resting(z, states).items():
        tape.hold(kind, size)
    waiting = (z.in_flight - 1) * kept(z, policy) + z.in_flight * (z.mask if z.first else 0)
    tape.hold("activations", z.batch_bytes, waiting)
    _forward(z, tape, policy)
    if z.last:
        loss(z, tape)
        head(z, back)
    else:
        tape.hold("temporaries", z.x)  # the gradient that the next stage sends
    _backward(z, back, policy)
    embedding(z, back) if z.first else tape.drop("temporaries", z.x)
    tape.drop("activations", waiting - (z.mask if z.first else 0))
    tape.at("optimizer")
    tape.passing("temporaries", *update(z, states))
    return tape


def _forward(z: Sizes, tape: Tape, policy: Policy) -> None:
    """All blocks, then the end of the forward: until there autocast has what it cast for a block that keeps nothing."""
    cached, everything = 0, names(z)
    for drop, less in zip(policy.drops, dropped_bytes(z, policy), strict=True):
        if drop >= everything:
            tape.hold("activations", z.x)
            passing_forward(z, tape)
            cached += z.copies(*z.matrices)
            tape.drop("activations", z.x if INPUT in drop else 0)
        else:
            forward(z, tape)
            tape.drop("activations", less)
            cached += copies_kept(z, "none") if drop else 0
    if z.last:
        logits(z, tape)
    tape.drop("weights", cached)


def _backward(z: Sizes, back: Backward, policy: Policy) -> None:
    """From the last block to the first; what a segment dropped is made again before its last block's backward."""
    tape, whole, dropped = back.tape, sum(block_kept(z, "none").values()), dropped_bytes(z, policy)
    tape.at("block")
    done = set()
    for i in reversed(range(len(dropped))):
        for j in policy.together(i) if i not in done else ():
            done.add(j)
            if policy.drops[j]:
                tape.drop("activations", whole - dropped[j])
                forward(z, tape)
        back.block()
