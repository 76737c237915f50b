"""What a reader's code sends and reduces: counted where torch.distributed is called from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

SENDS = ("send", "isend")
COLLECTIVES = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "reduce_scatter",
               "reduce_scatter_tensor", "reduce_scatter_single", "broadcast", "gather", "scatter", "all_to_all",
               "all_to_all_single", "all_gather_object", "all_reduce_coalesced")  # fmt: skip


@dataclass
class Calls:
    """`sent`: numbers by the rank they went to. `collectives`: (name, numbers in its first argument) of each call."""

    sent: dict[int, int] = field(default_factory=dict)
    collectives: list[tuple[str, int]] = field(default_factory=list)
    inside: bool = False  # of a call that is counted: torch calls one name of a collective from another

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.collectives]

    def reduced(self) -> int:
        """Numbers given to collectives that add."""
        return sum(numbers for name, numbers in self.collectives if "reduce" in name)


@contextmanager
def counted() -> Iterator[Calls]:
    """Counts what is called inside, also the sends of `batch_isend_irecv`; DDP's own calls are not seen."""
    calls = Calls()
    plain = {name: getattr(c10d, name) for name in (*SENDS, *COLLECTIVES) if hasattr(c10d, name)}
    try:
        for name in plain:
            _put(name, _watched(name, plain[name], calls))
        yield calls
    finally:
        for name, function in plain.items():
            _put(name, function)


def _put(name: str, function) -> None:
    for module in (dist, c10d):  # c10d too: P2POp compares its argument with the functions there
        if hasattr(module, name):
            setattr(module, name, function)


def _watched(name: str, function, calls: Calls):
    def call(*args, **kwargs):
        first = args[0] if args else next(iter(kwargs.values()), None)
        if calls.inside:
            return function(*args, **kwargs)
        if name in SENDS:
            to = kwargs.get("dst", kwargs.get("group_dst", args[1] if len(args) > 1 else None))
            calls.sent[to] = calls.sent.get(to, 0) + _numbers(kwargs.get("tensor", first))
        else:
            calls.collectives.append((name, _numbers(first)))
        calls.inside = True
        try:
            return function(*args, **kwargs)
        finally:
            calls.inside = False

    return call


def _numbers(held: object) -> int:
    if isinstance(held, torch.Tensor):
        return held.numel()
    return sum(map(_numbers, held)) if isinstance(held, (list, tuple)) else 0
