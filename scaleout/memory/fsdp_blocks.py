"""A block's allocations between the edges of its units, written down once and repeated: FSDP's blocks are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from scaleout.memory.fsdp_tape import FsdpTape
from scaleout.memory.tape import Event, Recorder, Tape


@dataclass
class Allocations:
    """What is allocated and freed between two edges of units, in bytes above those at the start. most, fullest: of all
    kinds and by kind at the peak (the first, of several), most None where nothing is allocated; total, net: the same at
    the end."""

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


class BlockTape(FsdpTape):
    """An FSDP tape on which a block that was recorded happens again and again."""

    def recorded(self, walk: Callable[[Tape], None]) -> Block:
        """What `walk` does with a tape: edges only of modules that are units."""
        recorder = Recorder()
        walk(recorder)
        return _merged(recorder.events, {name.split(".", 2)[2] for name in self.groups if name.count(".") > 1})

    def replay(self, block: Block) -> None:
        """A block that was recorded happens inside `inside`."""
        for part in block:
            if isinstance(part, tuple):
                getattr(self, part[0])(part[1])
            else:
                self._allocate(part)

    def _allocate(self, part: Allocations) -> None:
        """A row of `hold` and `drop` at once."""
        if part.most is not None:
            self._used = True
            if self.total + part.most > self._most:
                self._most, held = self.total + part.most, self.held.copy()
                for kind, n in part.fullest.items():
                    held[kind] += n
                self._snapshot = held, tuple(self._whole)
        for kind, n in part.net.items():
            self.held[kind] += n
        self.total += part.total


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
