"""What a reader's code keeps between steps: the tensors in what it was given to keep things in, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

DEEPEST = 9  # of containers in each other: an optimizer in a dict, its states, their moments


def tensors(container: object, depth: int = DEEPEST) -> Iterator[torch.Tensor]:
    """Every tensor in dicts, lists and optimizers, with its gradient."""
    if isinstance(container, torch.Tensor):
        yield container
        if container.grad is not None:
            yield container.grad
    elif depth and isinstance(container, torch.optim.Optimizer):
        yield from tensors([dict(container.state), container.param_groups], depth - 1)
    elif depth and isinstance(container, dict):
        yield from tensors([*container.keys(), *container.values()], depth - 1)
    elif depth and isinstance(container, (list, tuple, set)):
        for element in container:
            yield from tensors(element, depth - 1)


def held_bytes(container: object) -> int:
    """Bytes of their storages, each once."""
    return sum(
        {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors(container)
        }.values()
    )
