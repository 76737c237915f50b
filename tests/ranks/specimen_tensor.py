"""Many cases of tensor parallelism on the ranks of one group: against one process, and against the pure model."""

from dataclasses import replace

import torch
import torch.distributed as dist

from scaleout.lab.tensor import SEQUENCE, backwards
from scaleout.measure import tensor as measure_tensor
from scaleout.measure import tensor_faults
from scaleout.parallel import parity
from scaleout.parallel.tensor import Group
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.tensor_ways import TensorWay
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

GPT = Shape(2, 24, 4, 64, max_seq=12)
LLAMA = Shape(
    2,
    24,
    4,
    64,
    kv_heads=2,
    ff=56,
    gated_mlp=True,
    bias=False,
    norm="rmsnorm",
    positions="rotary",
    tied_head=False,
    max_seq=12,
)
SHAPES = {"gpt": GPT, "llama": LLAMA}
BATCH, SEQ = 3, 12
STEPS, RATE = 2, 0.1


def batch(step):
    tokens = torch.randint(64, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def trained(way):
    """(losses, gradients of the last step, weights) after a few steps of momentum SGD."""
    losses = []
    for step in range(STEPS):
        losses.append(way.gradients(batch(step)))
        found = way.whole(gradients=True)
        way.update()
    return losses, found, way.whole()


def make(s, shape, via, sequence=False):
    return TensorWay(s, shape, via, sequence, RATE, optimizer="momentum")


def case(s, shape, via, sequence, wanted):
    """Errors against one process; what was built, sent and kept beside its prediction."""
    way = make(s, shape, via, sequence)
    found = trained(way)
    out = {"loss": max(abs(f / w - 1) for f, w in zip(found[0], wanted[0], strict=True))}
    for what, f, w in zip(("gradients", "weights"), found[1:], wanted[1:], strict=True):
        out[what] = parity.worst(s, f, w)
    counts = {phase: dict(each) for phase, each in way.counted(batch(9)).items()}
    return out | {
        "built": way.built,
        "apart": measure_tensor.spread(s, way),
        "counts": (counts, measure_tensor.predicted_counts(shape, BATCH, SEQ, s.world, via, sequence)),
        "kept": (
            measure_tensor.kept_bytes(way, batch(9)),
            measure_tensor.predicted_kept(shape, BATCH, SEQ, s.world, sequence),
        ),
    }


def faulty(s, shape, fault):
    """(error of step 1's loss, {part: error of its gradients}, how far copies are apart after two steps)."""
    one, sick = make(s, shape, "one"), make(s, shape, "hand")
    tensor_faults.break_(sick, fault)
    loss, wanted = sick.gradients(batch(0)), one.gradients(batch(0))
    wrong = tensor_faults.errors(s, sick.whole(gradients=True), one.whole(gradients=True))
    sick.update()
    return abs(loss / wanted - 1), wrong, measure_tensor.spread(s, sick)


def pairs(s):
    """Error of the gradients where the ranks are two groups of two, one key-value head in each."""
    shape, found = replace(LLAMA, kv_heads=1), []
    mine, _ = dist.new_subgroups(group_size=2)
    for cut in (False, True):
        torch.manual_seed(0)
        model = Transformer(shape)
        if cut:
            model = TensorTransformer(model, Group(mine), sequence=True)
        model(*batch(0)).backward()
        if cut:
            model.sum_copies()
        found.append(model.whole(gradients=True) if cut else parity.gradients(model))
    return parity.worst(s, found[1], found[0])


def main(s):
    """{case: what it found}, and under "faults" what each of them shows."""
    found = {}
    for name, shape in SHAPES.items():
        wanted = trained(make(s, shape, "one"))
        for via in ("hand", "torch") if shape.kv % s.world == 0 else ("hand",):
            for door in ("", SEQUENCE):
                found[f"{name} {via}{door}"] = case(s, shape, via, bool(door), wanted)
    found["faults"] = {"no-backward-reduce": faulty(s, GPT, "no-backward-reduce")} if s.world > 1 else {}
    if s.world > LLAMA.kv:
        found["faults"]["kv-copies"] = faulty(s, LLAMA, "kv-copies")
        found["pairs"] = {"error": pairs(s)}
    found["order"] = list(backwards(dict(make(s, GPT, "one").model.named_parameters())))
    return found
