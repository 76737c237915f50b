"""The exercise of `memory` that is done in the lab: weigh a real job on two processes."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist


def bytes_held(model, optimizer):
    """(mine, largest): bytes on this rank, and on the fullest.

    mine: {"weights": ..., "gradients": ..., "optimizer": ...}
    largest: the total of the rank that needs most
    """
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def bytes_held(model, optimizer):
    weights = list(model.parameters())
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    mine = {
        "weights": size(weights),
        "gradients": size(w.grad for w in weights if w.grad is not None),
        "optimizer": size(states),
    }
    largest = torch.tensor(sum(mine.values()))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return mine, largest.item()
"""

BYTES_HELD = Lab(
    key="bytes-held",
    level=3,
    minutes=15,
    title="Weigh a real job",
    prompt="Two ranks train the same model, but each has frozen a different part of it, and one has already freed some "
    "gradients. So they need different amounts of memory. Write `bytes_held(model, optimizer)`, which runs on both "
    "ranks after a step. It returns `(mine, largest)`: the bytes on this rank by kind, and the total of the rank that "
    "needs **most**, because that rank decides whether the job fits. The output head shares its weight with the "
    "embedding, and one layer is in bf16.\n\n"
    "Save your function as `bytes_held.py` in the folder of the book's repository, and run the command below.",
    hints=(
        "`t.numel() * t.element_size()` is the size of a tensor, whatever its format.",
        "`model.parameters()` gives a shared weight once; `state_dict()` gives it twice.",
        "The `grad` of a frozen weight is None, and it has no entry in `optimizer.state`. A freed gradient is None "
        "too.",
        "`dist.all_reduce(tensor, dist.ReduceOp.MAX)` gives every rank the largest value of all ranks.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Compare it with `16 × parameters`. Shared, frozen and bf16 weights are where that rule is wrong, and real "
    "models have all three.",
    stub=STUB,
    command="python -m scaleout.exercises.memory.ranks bytes_held.py",
)

EXERCISES = (BYTES_HELD,)
