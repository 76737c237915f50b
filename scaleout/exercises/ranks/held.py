"""What a reader's code keeps between steps: the tensors in what it was given to keep things in, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

DEEPEST = 9  # of containers in each other: an optimizer in a dict, its states, their moments


def tensors(held: object, depth: int = DEEPEST) -> Iterator[torch.Tensor]:
    """Every tensor in dicts, lists and optimizers, with its gradient."""
    if isinstance(held, torch.Tensor):
        yield held
        if held.grad is not None:
            yield held.grad
    elif depth and isinstance(held, torch.optim.Optimizer):
        yield from tensors([dict(held.state), held.param_groups], depth - 1)
    elif depth and isinstance(held, dict):
        yield from tensors([*held.keys(), *held.values()], depth - 1)
    elif depth and isinstance(held, (list, tuple, set)):
        for one in held:
            yield from tensors(one, depth - 1)


def held_bytes(held: object) -> int:
    """Bytes of their storages, each once."""
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors(held)}.values())
