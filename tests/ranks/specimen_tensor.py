"""Many cases of tensor parallelism on the ranks of one group: against one process, and against the pure model."""

import torch

from scaleout.parallel import parity
from scaleout.parallel.tensor_ways import Way
from scaleout.spec.transformer import Shape

GPT = Shape(2, 24, 4, 64, max_seq=12)
LLAMA = Shape(2, 24, 4, 64, kv_heads=2, ff=56, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary",
              tied_head=False, max_seq=12)
SHAPES = {"gpt": GPT, "llama": LLAMA}
STEPS, RATE = 2, 0.1


def batch(step):
    tokens = torch.randint(64, (3, 13), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def trained(s, shape, via, sequence=False):
    """(way, losses, gradients of the last step, weights) after a few steps of momentum SGD."""
    way, losses = Way(s, shape, via, sequence, RATE, optimizer="momentum"), []
    for step in range(STEPS):
        losses.append(way.gradients(batch(step)))
        found = way.whole(gradients=True)
        way.update()
    return way, losses, found, way.whole()


def case(s, name, via, sequence):
    """Errors against one process, what was built, and the collectives of a step."""
    shape = SHAPES[name]
    wanted = trained(s, shape, "one")[1:]
    way, *found = trained(s, shape, via, sequence)
    out = {"loss": max(abs(f / w - 1) for f, w in zip(found[0], wanted[0], strict=True))}
    for what, f, w in zip(("gradients", "weights"), found[1:], wanted[1:], strict=True):
        out[what] = parity.worst(s, f, w)
    return out | {"built": way.built, "counts": way.counted(batch(9))}


def main(s):
    """{case: what it found}."""
    return {f"{name} {via}{' sequence' * sequence}": case(s, name, via, sequence) for name in SHAPES
            for via in ("hand", "torch") for sequence in (False, True)
            if via == "hand" or SHAPES[name].kv % s.world == 0}
