"""Two faults of tensor parallelism that a loss does not show at step 1, in a run of their own beside one process."""

from __future__ import annotations

from scaleout.lab import tensor as lab_tensor
from scaleout.measure.tensor import make, spread
from scaleout.parallel import parity
from scaleout.spec import checks

STEPS = 5
RATE = 0.01  # of SGD with momentum, so that weights move by what the gradients say


def refuse(s, o):
    """ValueError, in one line, where a fault would change nothing."""
    if o.sequence_parallel:
        raise ValueError("--fault is shown without sequence parallelism: leave out --sequence-parallel")
    if s.world == 1:
        raise ValueError("--fault is about several ranks: use torchrun --nproc-per-node 2")
    if o.fault == "kv-copies" and s.world <= o.shape.kv:
        fewer = next(n for n in checks.divisors(o.shape.heads) if n < s.world)
        raise ValueError(
            f"--fault kv-copies needs more processes than key-value heads, and here are {s.world} for "
            f"{o.shape.kv}: use --kv-heads {fewer}"
        )


def break_(way, fault):
    """Put a fault into a way by hand."""
    if fault == "no-backward-reduce":
        for door in way.model.entrances:
            door.remove()  # without f a rank's own part of x's gradient goes on
    else:
        way.model.sum_copies = lambda: None


def show(s, o, batch):
    """Train a few steps with the fault and without it in one process, and print what there is to see."""
    settings = {"optimizer": "momentum", "rate": RATE, "precision": "fp32"}
    reference, sick = make(s, o, "one", **settings), make(s, o, "hand", **settings)
    break_(sick, o.fault)
    losses, distances, wrong = [], [], {}
    for step in range(STEPS):
        wanted, loss = (way.gradients(batch(step)) for way in (reference, sick))
        losses.append((loss, wanted))
        if step == 0:
            wrong = errors(s, sick.whole(gradients=True), reference.whole(gradients=True))
        reference.update()
        sick.update()
        distances.append(spread(s, sick))
    s.say("\n" + lab_tensor.fault(losses, wrong, distances))


def errors(s, tensors, wanted):
    """{part of the model, from the loss back: largest relative error of its gradients}."""
    return {
        part: parity.worst(s, {name: tensors[name] for name in names}, {name: wanted[name] for name in names})
        for part, names in lab_tensor.backwards(wanted).items()
    }
