"""A block's allocations between the edges of its units, written down once and repeated: FSDP's blocks are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from scaleout.memory.fsdp_tape import FsdpTape
from scaleout.memory.tape import Event, Recorder, Tape


@dataclass
class Allocations:
    """What is allocated and freed without an edge of a unit between. most: bytes at the first of the fullest instants,
    beside those before all this; None where nothing is allocated. fullest, net: bytes by kind then, and at the end."""

    most: int | None = None
    total: int = 0
    net: dict[str, int] = field(default_factory=dict)
    fullest: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, size: int, allocated: bool) -> None:
        """`size` bytes more of a kind, fewer where it is negative."""
        self.net[kind] = self.net.get(kind, 0) + size
        self.total += size
        if allocated and (self.most is None or self.total > self.most):
            self.most, self.fullest = self.total, self.net.copy()


Block = list[Allocations | tuple[str, str]]  # allocations, and (edge, module) between them


def recorded(walk: Callable[[Tape], None], tape: FsdpTape) -> Block:
    """What `walk` does with a tape, for `replay` in each block: edges only of modules that are units."""
    recorder = Recorder()
    walk(recorder)
    return _merged(recorder.events, {name.split(".", 2)[2] for name in tape.groups if name.count(".") > 1})


def _merged(events: list[Event], modules: Collection[str]) -> Block:
    between = Allocations()
    block: Block = [between]
    for what, name, size in events:
        if what in ("hold", "drop"):
            between.add(name, size if what == "hold" else -size, what == "hold")
        elif name in modules:
            between = Allocations()
            block += [(what, name), between]
    return block


def replay(block: Block, tape: FsdpTape) -> None:
    """A block that was recorded happens on this tape, inside `tape.inside`."""
    for part in block:
        if isinstance(part, tuple):
            getattr(tape, part[0])(part[1])
        else:
            tape.allocate(part.net, part.most, part.fullest)
