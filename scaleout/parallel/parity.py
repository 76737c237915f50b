"""Does the distributed run compute what one process computes? Losses and gradients, number by number.

The two are never equal to the last bit: N processes add the same terms in another order (a mean of N means, a
sum over ranks by the ring), matmuls of another size may use another kernel, and fp32 addition rounds.
What is left is a few units in the last place of fp32 (2^-23 = 1.2e-7), times a factor that grows with the
number of terms. A missing or doubled term shows as an error of the order of 1, far above the tolerance.
The tolerance has been tried on CPUs only; other kernels and NCCL add in other orders still.
"""

import math

TOLERANCE = 1e-5  # relative, fp32: about 80 units in the last place
FLOOR = 1e-3  # of the largest entry of all gradients: the least scale of a tensor
TINY = 1e-300  # where all of `wanted` is zero, any difference is too much


def gradients(model):
    """{name: gradient}, copies, of the model's parameters that have one."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(tensors, wanted):
    """Largest |found - wanted| of a tensor over its largest |wanted|, of the worst tensor in two dicts (float).

    A tensor's scale is at least FLOOR of the largest entry of all: the gradient of a key's bias is zero but for
    rounding (softmax does not see it), and rounding over rounding says nothing. A name that only one of the dicts
    has, or a value that is not finite, gives infinity.
    """
    if set(tensors) != set(wanted) or not wanted:
        return math.inf
    largest = {name: right.abs().max().item() for name, right in wanted.items()}
    floor = FLOOR * max(largest.values())
    errors = [
        (tensors[name].double() - right.double()).abs().max().item() / max(largest[name], floor, TINY)
        for name, right in wanted.items()
    ]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def loss_and_gradients(model, tokens, targets, replicas=None):
    """(loss as float, gradients) of one batch; the model's gradients are empty before and after.

    replicas: a parallel.replicas.Replicas of the model, which then does forward and backward.
    """
    loss = (replicas or model)(tokens, targets)
    (replicas.backward if replicas else type(loss).backward)(loss)
    grads = gradients(model)
    model.zero_grad(set_to_none=True)
    return loss.item(), grads


def trained(way, steps, *args):
    """{"losses": of the steps, "gradients": of the first, "weights": after the last} of a `step.Way`; args: of its
    `gradients`, behind the step's batches.

    Gradients are those of the first step, while every way has the same weights to the last bit: later ones are of
    weights that rounding has driven apart, and differ by how steep the loss is there.
    """
    losses, first = [], {}
    for step in steps:
        losses.append(way.gradients(step, *args))
        first = first or way.whole(gradients=True)
        way.update()
    return {"losses": losses, "gradients": first, "weights": way.whole()}


def errors(s, result, wanted, shared=False):
    """{kind: largest relative error} of a list of losses and of dicts of tensors, as `trained` gives them, against
    those of one process. shared: each rank's losses are those of all ranks, and its tensors may be some of them."""
    compared = {}
    for kind, values in result.items():
        if isinstance(values, dict):
            compared[kind] = (worst_of_parts if shared else worst)(s, values, wanted[kind])
        elif shared:
            compared[kind] = s.largest(worst_loss(values, wanted[kind]))
        else:
            compared[kind] = worst_loss([s.mean(loss) for loss in values], wanted[kind])
    return compared


def worst_loss(losses, wanted):
    """Largest relative error of the losses of some steps (float)."""
    return max(abs(loss / target - 1) for loss, target in zip(losses, wanted, strict=True))


def worst(s, tensors, wanted):
    """`relative_error` on the rank where it is largest, infinity as a number that JSON has. s: lab.session.Session."""
    return s.largest(min(relative_error(tensors, wanted), 1e300))


def worst_of_parts(s, tensors, wanted):
    """`worst` of ranks that each have some of the tensors; infinity if one of them is on no rank."""
    names = {name for rank in s.gathered([*tensors]) for name in rank}
    return worst(s, tensors, {name: wanted[name] for name in tensors}) if names == set(wanted) else math.inf


def check(value, tolerance=TOLERANCE):
    """An entry of a Record's `checks`."""
    value = min(value, 1e300)  # infinity is no JSON
    return {"value": value, "tolerance": tolerance, "passed": value <= tolerance}
