"""Seconds of recomputation: what each tile of a block costs to make again, what to drop for a budget, and the step.

A product takes its FLOPs at the rate of products, fused attention its own (it skips what the mask hides, one half), any
other kernel its bytes at the memory's rate, a message its collective. Which tiles to drop is a knapsack: bytes to be
freed, seconds to be spent. `greedy` takes the cheapest byte first, `exact` asks what is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, inf
from operator import add

from scaleout.memory import accounts
from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import INPUT, Policy, Tile, flops, none, refuse, tiles
from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape
from scaleout.timing.pipeline import Costs
from scaleout.timing.tensor import step_seconds
from scaleout.timing.tensor_machine import Machine

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


def seconds(z: Sizes, tile: Tile, on: Machine) -> float:
    """Seconds to make a tile again, from what it is made of."""
    fused = tile.name == "attention" and z.recipe.attention == "sdpa"
    product = tile.flops / 2 / on.fused_flop_per_s if fused else tile.flops / on.flop_per_s
    return fsum((product, tile.moved / on.memory_bytes_per_s, *(on.inside(*move) for move in tile.sends)))


def priced(z: Sizes, on: Machine) -> tuple[Priced, ...]:
    """The tiles that a block can drop, in the order of its forward."""
    return tuple(Priced(t.name, t.bytes, seconds(z, t, on), z.chunk_layers) for t in tiles(z) if t.name != INPUT)


# --- what to drop ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """In how many blocks each tile is dropped; the bytes that this frees of one micro-batch, the seconds it takes."""

    counts: dict[str, int]
    freed: int
    seconds: float


def _choice(items: Sequence[Priced], counts: Sequence[int]) -> Choice:
    pairs = list(zip(items, counts, strict=True))
    return Choice(
        {item.name: n for item, n in pairs if n}, sum(n * item.bytes for item, n in pairs),
        fsum(n * item.seconds for item, n in pairs),
    )  # fmt: skip


def _ordered(items: Sequence[Priced], free: int) -> list[Priced]:
    """Cheapest byte first. ValueError where all of them together do not free as much, and for no number."""
    if free != free:
        raise ValueError("free must be a number of bytes, not nan")
    most = sum(item.count * item.bytes for item in items)
    if free > most:
        raise ValueError(f"dropping all frees {most / 1e9:.2f} GB, and {free / 1e9:.2f} GB are asked for: ask for less")
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
    sizes = [(size, spent, sum(one.count for one in same)) for (size, spent), same in kinds.items()]
    found = greedy(items, free)
    best = [found.seconds * (1 + 1e-12), None]
    _search(sizes, 0, free, 0.0, [], best)
    if best[1] is None:
        return found
    counts: dict[str, int] = {}
    for n, same in zip(best[1], kinds.values(), strict=False):
        for item in same:
            counts[item.name] = min(n, item.count)
            n -= counts[item.name]
    return _choice(order, [counts.get(item.name, 0) for item in order])


def _search(sizes, at: int, free: int, spent: float, taken: list[int], best: list) -> None:
    """Of the kinds from `at` on. best: [seconds, how many of each kind]."""
    if free <= 0:
        if spent < best[0]:
            best[:] = spent, list(taken)
        return
    if at == len(sizes) or spent + _at_least(sizes, at, free) >= best[0]:
        return
    size, each, count = sizes[at]
    for n in range(min(count, ceil(free / size)) if size else 0, -1, -1):
        _search(sizes, at + 1, free - n * size, spent + n * each, [*taken, n], best)


def _at_least(sizes, at: int, free: int) -> float:
    """Seconds to free so many bytes where tiles could be cut; infinite where there are not as many."""
    total = 0.0
    for size, each, count in sizes[at:]:
        if free <= size * count:
            return total + (each * free / size if free > 0 else 0.0)
        total, free = total + each * count, free - size * count
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
    out = [Point((), 0, 0.0)]
    for item in sorted(items, key=lambda item: turned * item.price if turned else 0):
        last = out[-1]
        out.append(Point((*last.names, item.name), last.freed + item.bytes, last.seconds + item.seconds))
    return tuple(out)


def pareto(items: Sequence[Priced]) -> tuple[Point, ...]:
    """All choices of one block that no other one beats in bytes and in seconds, from nothing to everything."""
    front = [Point((), 0, 0.0)]
    for item in items:
        more = [Point((*p.names, item.name), p.freed + item.bytes, p.seconds + item.seconds) for p in front]
        kept, least = [], inf
        for point in sorted(front + more, key=lambda p: (-p.freed, p.seconds)):
            if point.seconds < least:
                kept.append(point)
                least = point.seconds
        front = kept
    return tuple(reversed(front))


def policy(z: Sizes, choice: Choice) -> Policy:
    """The choice in blocks, the first ones first: what the last block drops is made again at once, and frees nothing
    of a peak in the backward."""
    return Policy(tuple(
        frozenset(name for name, n in choice.counts.items() if i < n) for i in range(z.chunk_layers)
    ))  # fmt: skip


def budgets(z: Sizes, on: Machine, shares: Sequence[float], best=exact) -> tuple[Policy, ...]:
    """For each share, 0 to 1, the policy of fewest seconds that keeps at most that share of what can be dropped."""
    items = priced(z, on)
    most = sum(item.count * item.bytes for item in items)
    for share in shares:
        checks.number("share", share, 0, 1)
    return tuple(policy(z, best(items, ceil((1 - share) * most))) for share in shares)


def for_memory(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, on: Machine, memory: int, best=exact
) -> Policy:
    """The policy of fewest seconds whose whole step (`accounts.account`) takes at most `memory` bytes of tensors.

    best: `exact` or `greedy`. Each try frees what the one before lacked. ValueError, with what the least takes, where
    not even full recomputation fits.
    """
    checks.number("memory", memory, 0)
    z = Sizes(shape, batch, seq, recipe, layout)
    items, found, free = priced(z, on), none(z), 0
    most = sum(item.count * item.bytes for item in items)
    while (held := accounts.account(shape, batch, seq, recipe, layout, found).peak_bytes) > memory:
        if free == most:
            raise ValueError(f"even with full recomputation a step takes {held / 1e9:.2f} GB, and {memory / 1e9:.2f} "
                             "GB are there: use a smaller batch, or split the states")  # fmt: skip
        free = min(most, free + max(1, ceil((held - memory) / z.in_flight)))
        found = policy(z, best(items, free))
    return found


# --- the step -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecomputeTime:
    """A step of one micro-batch. again: seconds made again; baseline: without them; flops: made again on a rank.

    share: how much longer the step is. mfu counts the model's FLOPs, hfu those made again too.
    """

    seconds: float
    baseline: float
    again: float
    flops: int
    mfu: float
    hfu: float

    @property
    def share(self) -> float:
        return self.again / self.baseline


def again_seconds(z: Sizes, on: Machine, found: Policy) -> float:
    """Seconds that a policy makes again in one micro-batch."""
    refuse(z, found)
    each = {tile.name: seconds(z, tile, on) for tile in tiles(z)}
    rows, columns = z.matrices["down"]
    last = 0.0 if z.mask else 2 * z.tokens * rows * columns / on.flop_per_s
    return fsum(each[name] for drop in found.drops for name in drop) + last * sum(INPUT in d for d in found.drops)


def step(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, on: Machine, found: Policy
) -> RecomputeTime:
    """A step under a policy, beside the same one that keeps everything (`tensor.step_seconds`). No pipeline: what it
    adds to a stage's backward is `again_seconds`."""
    z = Sizes(shape, batch, seq, recipe, layout)
    plain, again = step_seconds(shape, batch, seq, layout, on, recipe), again_seconds(z, on, found)
    whole, more = plain.seconds + again, flops(z, found)
    return RecomputeTime(
        whole, plain.seconds, again, more, plain.mfu * plain.seconds / whole,
        plain.mfu * plain.seconds / whole + more / whole / on.peak,
    )  # fmt: skip


# --- beside the other techniques ------------------------------------------------------------------------------------


def pipelined(costs: Costs, again: Sequence[float]) -> Costs:
    """A pipeline's costs with so many seconds made again before the input gradient of each stage: 1F1B's order gives
    them to every micro-batch, so they lengthen the bubble as they lengthen the work."""
    return replace(costs, input=tuple(map(add, costs.input, again)))


def gathers(found: Policy, reshard: bool = True) -> tuple[int, int]:
    """(all-gathers of a block's weights in a step, blocks that are whole before the first of the backward is reduced)
    under FSDP2, which gathers one block ahead.

    The gather that the backward needs anyway serves what is made again, so recomputation repeats none. A segment's
    blocks are all gathered before the last of them begins its backward.
    """
    blocks = len(found.drops)
    return (2, min(blocks, max(2, found.segment))) if reshard else (1, blocks)


def offload(size: float, link_bytes_per_s: float, forward: float, backward: float) -> tuple[float, float]:
    """Exposed seconds (on the way out, on the way back) where `size` bytes go to the host's memory beside so many
    seconds of forward, and come back beside so many of backward, instead of being made again."""
    checks.above_0("link_bytes_per_s", link_bytes_per_s)
    for name, value in {"size": size, "forward": forward, "backward": backward}.items():
        checks.number(name, value, 0)
    way = size / link_bytes_per_s
    return max(0.0, way - forward), max(0.0, way - backward)
