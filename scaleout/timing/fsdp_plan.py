"""A pass of FSDP as pieces of compute, and for each unit the pieces during which it is unsharded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scaleout.spec import checks


@dataclass(frozen=True)
class Piece:
    """What one unit computes without a break, in the order of the forward pass. `name` is the unit's, "" the root's.

    A unit that computes more than once (the root: token table first, output head last) has several pieces of its name,
    and the first carries its bytes. gather_bytes: the whole unit, padded, in the dtype that is gathered. reduce_bytes:
    its whole gradients, padded, in the dtype they are reduced in. shard_bytes: of those, what one rank has after the
    reduce-scatter. host_bytes: one rank's stored shard, which offload copies. Bytes of 0: nothing to send, as with
    one rank. recompute_seconds: of its forward once more, where a checkpointed block of several pieces ("blocks.3.x")
    is recomputed as a whole before its last one's backward. Raises ValueError, in one line, for values that cannot be.
    """

    name: str
    forward_seconds: float
    backward_seconds: float
    gather_bytes: float = 0.0
    reduce_bytes: float = 0.0
    shard_bytes: float = 0.0
    host_bytes: float = 0.0
    recompute_seconds: float = 0.0

    def __post_init__(self) -> None:
        checks.amounts(self.__dict__)


@dataclass(frozen=True)
class Order:
    """Which unit is needed from where to where, by the names of the pieces. Units are numbered in the order in which
    forward reaches them.

    A unit is whole from the first to the last piece that it or a unit inside it computes; the root ("") throughout.
    """

    pieces: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._spans, key=lambda name: (self._spans[name][0], name.count("."), len(name))))

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        known = set(self.pieces)
        spans: dict[str, tuple[int, int]] = {}
        for i, piece in enumerate(self.pieces):
            name = piece
            while True:
                if name in known:
                    spans[name] = (spans.get(name, (i, i))[0], i)
                if not name:
                    break
                name = name.rpartition(".")[0]
        return spans

    @cached_property
    def first(self) -> tuple[int, ...]:
        """By unit, its first piece."""
        return tuple(self._spans[name][0] for name in self.names)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """By unit, its last piece."""
        return tuple(self._spans[name][1] for name in self.names)

    @cached_property
    def backward(self) -> tuple[int, ...]:
        """Units in the order in which backward reaches them: the reverse of the order in which forward leaves them,
        what lies around others before what lies in it."""
        return tuple(sorted(range(len(self.names)), key=lambda u: (-self.last[u], u)))

    @cached_property
    def piece_unit(self) -> tuple[int, ...]:
        """By piece, its unit."""
        number = {name: u for u, name in enumerate(self.names)}
        return tuple(number[name] for name in self.pieces)

    @cached_property
    def edges(self) -> tuple[dict[int, list[int]], ...]:
        """By piece, the units that forward opens before it and closes after it; then those of backward."""
        units = range(len(self.names))
        return (
            _by_piece(self.first, units),
            _by_piece(self.last, units),
            _by_piece(self.last, self.backward),
            _by_piece(self.first, reversed(units)),
        )


def _by_piece(piece_of: Sequence[int], units: Iterable[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for unit in units:
        groups.setdefault(piece_of[unit], []).append(unit)
    return groups


@lru_cache(maxsize=256)  # curves schedule the same units again and again
def _order(pieces: tuple[str, ...]) -> Order:
    return Order(pieces)


@dataclass(frozen=True)
class Plan:
    """The pieces of a pass in their order."""

    pieces: tuple[Piece, ...]

    order = cached_property(lambda self: _order(tuple([piece.name for piece in self.pieces])))
    names = cached_property(lambda self: self.order.names)
    first = cached_property(lambda self: self.order.first)
    last = cached_property(lambda self: self.order.last)
    backward = cached_property(lambda self: self.order.backward)
    piece_unit = cached_property(lambda self: self.order.piece_unit)

    @cached_property
    def bytes(self) -> tuple[Piece, ...]:
        """By unit, the piece that carries its bytes: the first of its name."""
        carriers: dict[str, Piece] = {}
        for piece in self.pieces:
            carriers.setdefault(piece.name, piece)
        return tuple(carriers[name] for name in self.names)

    @cached_property
    def recomputed(self) -> dict[int, range]:
        """By the last piece of a block that is recomputed as a whole, the block's pieces."""
        if not any(piece.recompute_seconds for piece in self.pieces):
            return {}
        blocks = runs_of_blocks(piece.name for piece in self.pieces).values()
        return {rows[-1]: rows for rows in blocks if any(self.pieces[i].recompute_seconds for i in rows)}


def runs_of_blocks(names: Iterable[str]) -> dict[str, range]:
    """By block ("blocks.3") of several pieces, the numbers of its pieces, which follow each other."""
    blocks: dict[str, range] = {}
    for i, name in enumerate(names):
        block = ".".join(name.split(".")[:2])
        if block.startswith("blocks."):
            blocks[block] = range(blocks[block].start if block in blocks else i, i + 1)
    return {block: rows for block, rows in blocks.items() if len(rows) > 1}
