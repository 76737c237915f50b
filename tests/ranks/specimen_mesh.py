"""Many layouts on the ranks of one group: against one process, and against the pure models."""

from dataclasses import replace

import torch

from scaleout.lab.mesh import FAULTS
from scaleout.measure import mesh as measure_mesh
from scaleout.measure import mesh_faults
from scaleout.memory.mesh import rank_parameters
from scaleout.parallel import parity
from scaleout.parallel.mesh import Mesh
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape

GPT = Shape(4, 24, 4, 64, max_seq=12)
LLAMA = Shape(
    5,
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
BATCH, SEQ = 2, 12
STEPS, RATE = 2, 0.1


def batches(layout, step):
    """(tokens, targets) of all replicas, each (dp, m, b, s)."""
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (layout.dp, layout.m, BATCH, SEQ + 1), generator=chance)
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


def alone(shape, layout):
    """(losses, gradients of the first step, weights) of one process on all that the replicas have."""
    torch.manual_seed(0)
    model, losses, first = Transformer(shape), [], {}
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for step in range(STEPS):
        loss, found = parity.loss_and_gradients(model, *(part.flatten(0, 2) for part in batches(layout, step)))
        losses.append(loss)
        first = first or found
        for name, p in model.named_parameters():
            p.grad = found[name]
        optimizer.step()
        optimizer.zero_grad()
    return losses, first, {name: p.detach() for name, p in model.named_parameters()}


def case(s, shape, layout, order):
    """Errors against one process; what was built and sent beside its prediction."""
    made = Mesh(s, shape, layout, BATCH, SEQ, order)
    own = lambda step: [list(part[made.place["dp"]]) for part in batches(layout, step)]  # noqa: E731
    optimizer = torch.optim.SGD(made.parameters(), RATE, momentum=0.9)
    wanted, losses, gradients = alone(shape, layout), [], {}
    for step in range(STEPS):
        losses.append(made.gradients(*own(step)))
        gradients = gradients or made.whole(gradients=True)
        made.update(optimizer)
    weights = made.whole()
    assert {name for names in s.gathered([*weights]) for name in names} == set(wanted[2]), "all weights are somewhere"
    sizes = [p.numel() for p in made.model.parameters()]
    out = {"loss": max(abs(f / w - 1) for f, w in zip(losses, wanted[0], strict=True))}
    for what, f, w in (("gradients", gradients, wanted[1]), ("weights", weights, wanted[2])):
        out[what] = parity.worst(s, f, {name: w[name] for name in f})
    out["stored"] = s.gathered((made.stored, 4 * rank_parameters(shape, layout, made.place["pp"])))
    with measure_mesh.Spoken(made.grid) as seen:
        made.gradients(*own(9))
        made.update(optimizer)
    told = measure_mesh.messages(shape, BATCH, SEQ, layout, made.place["pp"], sizes)
    out["sent"] = s.gathered((seen.found, told))
    made.close()
    return out


class Options:
    """Of a run with a fault."""

    shape, seq, seed, order = GPT, SEQ, 0, "pp,dp,tp"

    def __init__(self, fault):
        self.fault = fault


def faults(s):
    """{fault: (losses beside one process's, worst gradient of step 1, what each check says)}."""
    text = torch.randint(256, (5000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    plain = Layout(dp=2, tp=2, pp=2, micro_batches=2)
    split = replace(plain, sequence_parallel=True, gather_again=False)
    return {
        fault: mesh_faults.trial(s, Options(fault), (split if fault == "norms" else plain, BATCH), text, 1)
        for fault in FAULTS
    }


def main(s, cases):
    """{case: what it found}. cases: {name: (shape's name, layout, order)}; with eight ranks the faults too."""
    torch.set_num_threads(1)
    found = {name: case(s, SHAPES[shape], layout, order) for name, (shape, layout, order) in cases.items()}
    return found | ({"faults": faults(s)} if s.world == 8 else {})
