"""What optimizers store and allocate, beside torch's Muon and AdamW."""

import pytest
import torch

from scaleout.measure.ledger import Ledger
from scaleout.memory.optimizers import Trained, stored, temporaries
from scaleout.spec.recipe import Recipe

MATRICES = [(512, 1024), (1024, 512), (256, 256)]
TRAINED = Trained([], MATRICES, [])


def stepped(make, dtype) -> tuple[int, int]:
    """Bytes of an optimizer's tensors after its first step, and of what its second allocates beside them."""
    weights = [torch.nn.Parameter(torch.zeros(*size, dtype=dtype)) for size in MATRICES]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer = make(weights)
    optimizer.step()
    ledger = Ledger()
    ledger.enter("optimizer")
    held = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor) and v.dim()]
    for tensor in [*weights, *(weight.grad for weight in weights)]:
        ledger.claim(tensor, "weights")
    for tensor in held:
        ledger.claim(tensor, "optimizer")
    with ledger:
        optimizer.step()
    return sum(tensor.nbytes for tensor in held), ledger.moments["optimizer"]["temporaries"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_is_torchs(precision):
    recipe = Recipe(precision, "muon")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    held = stored(TRAINED, recipe)
    assert stepped(lambda weights: torch.optim.Muon(weights, lr=1e-3), dtype) == (
        held,
        temporaries(TRAINED, recipe, held),
    )


def test_adamw_in_one_kernel_allocates_nothing():
    held, extra = stepped(lambda weights: torch.optim.AdamW(weights, fused=True), torch.float32)
    recipe = Recipe("fp32", fused_update=True)
    # torch's states have a step counter of 4 bytes for each tensor as well, which has no dimension
    assert (held, extra) == (stored(TRAINED, recipe), 0) and temporaries(TRAINED, recipe, held) == 0
    assert temporaries(TRAINED, Recipe("fp32"), held) == held // 2
