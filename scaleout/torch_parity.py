"""Does the distributed run compute what one process computes? Losses and gradients, number by number.

The two are never equal to the last bit: N processes add the same terms in another order (a mean of N means, a
sum over ranks by the ring), matrix products of another size may use another kernel, and fp32 addition rounds.
What is left is a few units in the last place of fp32 (2^-23 = 1.2e-7), times a factor that grows with the
number of terms. A missing or doubled term shows as an error of the order of 1, far above the tolerance.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

TOLERANCE = 1e-5        # relative, fp32: about 80 units in the last place


def gradients(model):
    """{name: gradient}, copies, of a model or of the model inside a DistributedDataParallel."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p.grad.detach().clone() for name, p in inner.named_parameters() if p.grad is not None}


def relative_error(found, wanted):
    """Largest |found - wanted| of a tensor over its largest |wanted|, of the worst tensor in two dicts.

    A name that only one of the dicts has, or a value that is not finite, gives infinity.
    """
    if set(found) != set(wanted) or not wanted:
        return float("inf")
    worst = 0.0
    for name, right in wanted.items():
        off = (found[name].double() - right.double()).abs().max().item()
        scale = right.double().abs().max().item()
        error = off / scale if scale else (0.0 if off == 0 else float("inf"))
        worst = max(worst, error if error == error else float("inf"))
    return worst


def loss_and_gradients(model, tokens, targets, backward=torch.Tensor.backward):
    """(loss as float, gradients) of one batch; the model's gradients are empty before and after."""
    loss = model(tokens, targets)
    backward(loss)
    found = gradients(model)
    model.zero_grad(set_to_none=True)
    return loss.item(), found


def check(value, tolerance):
    """An entry of a Record's `checks`."""
    value = min(value, 1e300)                      # infinity is no JSON
    return {"value": value, "tolerance": tolerance, "passed": value <= tolerance}
