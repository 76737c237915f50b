"""Many layouts on the ranks of one group: against one process, and against the pure models."""

import torch

from scaleout.measure import mesh as measure_mesh
from scaleout.memory.mesh import rank_parameters
from scaleout.parallel import parity
from scaleout.parallel.mesh import Mesh
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

GPT = Shape(4, 24, 4, 64, max_seq=12)
LLAMA = Shape(5, 24, 4, 64, kv_heads=2, ff=56, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary",
              tied_head=False, max_seq=12)
SHAPES = {"gpt": GPT, "llama": LLAMA}
BATCH, SEQ = 2, 12
STEPS, RATE = 2, 0.1


def batches(layout, step):
    """(tokens, targets) of all replicas, each (dp, m, b, s)."""
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (layout.dp, layout.m, BATCH, SEQ + 1), generator=chance)
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


def alone(shape, layout):
    """(losses, gradients of the last step, weights) of one process on all that the replicas have."""
    torch.manual_seed(0)
    model, losses = Transformer(shape), []
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for step in range(STEPS):
        loss, found = parity.loss_and_gradients(model, *(part.flatten(0, 2) for part in batches(layout, step)))
        losses.append(loss)
        for name, p in model.named_parameters():
            p.grad = found[name]
        optimizer.step()
        optimizer.zero_grad()
    return losses, found, {name: p.detach() for name, p in model.named_parameters()}


def case(s, shape, layout, order):
    """Errors against one process; what was built and sent beside its prediction."""
    made = Mesh(s, shape, layout, BATCH, SEQ, order)
    own = lambda step: [list(part[made.place["dp"]]) for part in batches(layout, step)]  # noqa: E731
    optimizer = torch.optim.SGD(made.parameters(), RATE, momentum=0.9)
    wanted, losses = alone(shape, layout), []
    for step in range(STEPS):
        losses.append(made.gradients(*own(step)))
        gradients = made.whole(gradients=True)
        made.update(optimizer)
    weights = made.whole()
    assert {name for names in s.gathered([*weights]) for name in names} == set(wanted[2]), "all weights are somewhere"
    sizes = [p.numel() for p in made.model.parameters()]
    out = {"loss": max(abs(f / w - 1) for f, w in zip(losses, wanted[0], strict=True))}
    for what, f, w in (("gradients", gradients, wanted[1]), ("weights", weights, wanted[2])):
        out[what] = parity.worst(s, f, {name: w[name] for name in f})
    out["stored"] = s.gathered((made.stored, 4 * rank_parameters(shape, layout, made.place["pp"])))
    out["sent"] = s.gathered((measure_mesh.spoken(made, own(9)), measure_mesh.messages(
        shape, BATCH, SEQ, layout, made.place["pp"], sizes)))
    made.close()
    return out


def main(s, cases):
    """{case: what it found}. cases: {name: (shape's name, layout, order)}."""
    torch.set_num_threads(1)
    return {name: case(s, SHAPES[shape], layout, order) for name, (shape, layout, order) in cases.items()}
