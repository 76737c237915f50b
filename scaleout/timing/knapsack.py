"""Which tiles of a model's blocks to drop, by their bytes and by the time of recomputing them.

Bytes are to be freed and seconds to be spent: a knapsack. `greedy` takes the cheapest byte first, `exact` finds the
best choice, `curve` and `pareto` have those of one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf

from scaleout.spec import checks

ORDERS = ("cheapest", "as it runs", "dearest")


@dataclass(frozen=True)
class Priced:
    """A tile of `count` blocks: its bytes, and the seconds that making it again takes, in one of them."""

    name: str
    bytes: int
    seconds: float
    count: int = 1

    @property
    def price(self) -> float:
        """Seconds a byte; what frees nothing is never worth it."""
        return self.seconds / self.bytes if self.bytes else inf


@dataclass(frozen=True)
class Choice:
    """In how many blocks each tile is dropped; the bytes that this frees of one micro-batch, the seconds it takes."""

    counts: dict[str, int]
    freed: int
    seconds: float


def _choice(items: Sequence[Priced], counts: Sequence[int]) -> Choice:
    pairs = list(zip(items, counts, strict=True))
    return Choice(
        {item.name: n for item, n in pairs if n},
        sum(n * item.bytes for item, n in pairs),
        fsum(n * item.seconds for item, n in pairs),
    )


def _ordered(items: Sequence[Priced], free: int) -> list[Priced]:
    """Cheapest byte first. ValueError where all of them together do not free as much, and for no number."""
    if free != free:
        raise ValueError("free must be a number of bytes, not nan")
    limit = sum(item.count * item.bytes for item in items)
    if free > limit:
        raise ValueError(
            f"dropping all frees {limit / 1e9:.2f} GB, and {free / 1e9:.2f} GB are asked for: ask for less"
        )
    return sorted(items, key=lambda item: (item.price, -item.bytes))


def greedy(items: Sequence[Priced], free: int) -> Choice:
    """Drop the cheapest byte first, of no tile more than it takes, until `free` bytes are free."""
    order, counts = _ordered(items, free), []
    for item in order:
        counts.append(min(item.count, ceil(max(0, free) / item.bytes)) if item.bytes else 0)
        free -= counts[-1] * item.bytes
    return _choice(order, counts)


def exact(items: Sequence[Priced], free: int) -> Choice:
    """The choice of fewest seconds that frees at least `free` bytes.

    Depth first over how often each tile is dropped; a branch ends where even parts of tiles, cheapest first, could not
    make it better than the best so far, which greedy begins. Tiles that are alike are one.
    """
    order = _ordered(items, free)
    kinds: dict[tuple[int, float], list[Priced]] = {}
    for item in order:
        kinds.setdefault((item.bytes, item.seconds), []).append(item)
    sizes = [(size, spent, sum(item.count for item in alike)) for (size, spent), alike in kinds.items()]
    first = greedy(items, free)
    best: list = [first.seconds * (1 + 1e-12), None]
    _search(sizes, 0, free, 0.0, [], best)
    if best[1] is None:
        return first
    counts: dict[str, int] = {}
    for n, alike in zip(best[1], kinds.values(), strict=False):
        for item in alike:
            counts[item.name] = min(n, item.count)
            n -= counts[item.name]
    return _choice(order, [counts.get(item.name, 0) for item in order])


def _search(sizes, kind: int, free: int, spent: float, counts: list[int], best: list) -> None:
    """Try the kinds from `kind` on, and put what is better into best: [seconds, how many of each kind]."""
    if free <= 0:
        if spent < best[0]:
            best[:] = spent, list(counts)
        return
    if kind == len(sizes) or spent + _at_least(sizes, kind, free) >= best[0]:
        return
    size, item_seconds, count = sizes[kind]
    for n in range(min(count, ceil(free / size)) if size else 0, -1, -1):
        _search(sizes, kind + 1, free - n * size, spent + n * item_seconds, [*counts, n], best)


def _at_least(sizes, kind: int, free: int) -> float:
    """Seconds to free so many bytes where tiles could be cut; infinite where there are not as many."""
    total = 0.0
    for size, item_seconds, count in sizes[kind:]:
        if free <= size * count:
            return total + (item_seconds * free / size if free > 0 else 0.0)
        total, free = total + item_seconds * count, free - size * count
    return inf


@dataclass(frozen=True)
class Point:
    """Tiles of one block that are dropped, what that frees, the seconds to make them again."""

    names: tuple[str, ...]
    freed: int
    seconds: float


def curve(items: Sequence[Priced], order: str = "cheapest") -> tuple[Point, ...]:
    """One block, one tile after the other: "cheapest" byte first, "as it runs", or "dearest" first."""
    checks.one_of("order", order, ORDERS)
    turned = {"cheapest": 1, "as it runs": 0, "dearest": -1}[order]
    points = [Point((), 0, 0.0)]
    for item in sorted(items, key=lambda item: turned * item.price if turned else 0):
        last = points[-1]
        points.append(Point((*last.names, item.name), last.freed + item.bytes, last.seconds + item.seconds))
    return tuple(points)


def pareto(items: Sequence[Priced]) -> tuple[Point, ...]:
    """All choices of one block that no other one beats in bytes and in seconds, from nothing to everything."""
    front = [Point((), 0, 0.0)]
    for item in items:
        longer = [Point((*p.names, item.name), p.freed + item.bytes, p.seconds + item.seconds) for p in front]
        best, least = [], inf
        for point in sorted(front + longer, key=lambda p: (-p.freed, p.seconds)):
            if point.seconds < least:
                best.append(point)
                least = point.seconds
        front = best
    return tuple(reversed(front))
