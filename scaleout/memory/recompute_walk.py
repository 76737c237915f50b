"""One training step under any policy of recomputation, allocation by allocation, as `walk` does for three of them."""

from __future__ import annotations

from scaleout.memory.activations import Sizes, block_kept, copies_kept
from scaleout.memory.backward import Backward
from scaleout.memory.forward import forward, passing_forward
from scaleout.memory.loss import head, kept_in_flight, logits, loss
from scaleout.memory.recompute import INPUT, Policy, dropped_bytes, kept, names
from scaleout.memory.tape import Tape
from scaleout.memory.walk import embedding, resting, update


def policy_walk(z: Sizes, states: dict[str, int], policy: Policy) -> Tape:
    """The whole step; every block is walked, for each can drop something else.

    A block that drops a part of its tiles holds all of them until its forward is over, an upper bound. Where it drops
    any, autocast casts its weights once more, and no copy of them waits for the backward.
    """
    tape = Tape()
    backward = Backward(z, tape)
    for kind, size in resting(z, states).items():
        tape.hold(kind, size)
    waiting = (z.in_flight - 1) * kept(z, policy) + z.in_flight * (z.mask if z.first else 0)
    tape.hold("activations", z.batch_bytes, waiting)
    ends = kept_in_flight(z) if z.last else {}
    for kind, size in ends.items():
        tape.hold(kind, size)
    blocks = Blocks(z, policy)
    for i in range(z.chunk_layers):
        blocks.forward(tape, i)
    if z.last:
        logits(z, tape)
    tape.drop("weights", blocks.cached)
    if z.last:
        loss(z, tape)
        head(z, backward)
    else:
        tape.hold("temporaries", z.x)  # the gradient that the next stage sends
    tape.enter("block")
    for i in reversed(range(z.chunk_layers)):
        blocks.rebuild(tape, i)
        backward.block()
    embedding(z, backward) if z.first else tape.drop("temporaries", z.x)
    tape.drop("activations", waiting - (z.mask if z.first else 0))
    for kind, size in ends.items():
        tape.drop(kind, size)
    tape.enter("optimizer")
    tape.passing("temporaries", *update(z, states))
    return tape


class Blocks:
    """The blocks of a policy on a tape, in the order of a step: every `forward`, then, from the last block, what its
    backward needs of `rebuild`."""

    def __init__(self, z: Sizes, policy: Policy) -> None:
        self.z, self.policy, self.dropped = z, policy, dropped_bytes(z, policy)
        self.whole, self.everything = sum(block_kept(z, "none").values()), names(z)
        self.cached = 0  # bytes of weights that autocast has cast for blocks that run again, until the forward ends
        self._done: set[int] = set()

    def forward(self, tape: Tape, i: int) -> None:
        """Block i, from before its input is kept; what it leaves is what it keeps."""
        z, drop = self.z, self.policy.drops[i]
        if drop >= self.everything:
            tape.hold("activations", z.x)
            passing_forward(z, tape)
            tape.drop("activations", z.x if INPUT in drop else 0)
            self.cached += z.copies(*z.matrices)
        else:
            forward(z, tape)
            tape.drop("activations", self.dropped[i])
            self.cached += copies_kept(z, "none") if drop else 0

    def rebuild(self, tape: Tape, i: int, name: str = "") -> None:
        """What block i and its segment dropped, before the backward of its last block. name: of a block on the tape,
        with a place for its number; a tape of sharded weights gathers it."""
        inside = tape.inside
        for j in self.policy.together(i) if i not in self._done else ():
            self._done.add(j)
            if self.policy.drops[j]:
                tape.drop("activations", self.whole - self.dropped[j])
                tape.inside = name.format(j)
                tape.pre_forward("")
                forward(self.z, tape)
                tape.post_forward("")
        tape.inside = inside
