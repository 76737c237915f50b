"""The activations that a block saves for its backward, tile by tile, and the cost of recomputing each tile.

A tile is the set of tensors that one operation saves for the backward; all tiles together have the bytes of
`activations.block_kept`. A dropped tile is recomputed before the block's backward, from tiles that were saved or have
been recomputed, so the cost of several tiles is the sum of their costs. Matmuls are counted in FLOPs as in
`transformer.flops`, all other operations by the bytes that they read and write one after another, as in the book's
model.

Chen et al. 2016 (arXiv 1604.06174) save every k-th input, Korthikanti et al. 2022 (arXiv 2205.05198, section 5) drop
the core of attention, and torch's partitioner drops as much as a budget requires.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scaleout.memory.activations import Sizes, block_kept, norm_kept, qk_norm_kept, relaid, tables
from scaleout.spec import checks

INPUT = "block input"


@dataclass(frozen=True)
class Tile:
    """The tensors that one operation saves for the backward, on this rank.

    bytes: saved. flops: of the matmuls that recompute it, two per multiply-add, with all scores of attention. moved:
    bytes that its other kernels read and write. sends: (collective, bytes) among the tensor-parallel ranks. kind:
    "input", "norm", "product", "attention", "copy", "sum", "activation" or "mask".
    """

    name: str
    bytes: int
    flops: int
    moved: int
    kind: str
    sends: tuple[tuple[str, int], ...] = ()


def tiles(z: Sizes) -> tuple[Tile, ...]:
    """The tiles of one block in the order of its forward; the first is its input. Their bytes sum to
    block_kept(z, "none"). ValueError under an adapter, and for a recipe that drops something already."""
    if z.recipe.checkpointing != "none":
        raise ValueError(f"tiles are of a block that keeps all: use checkpointing none, not {z.recipe.checkpointing}")
    if z.frozen:
        raise ValueError("what adapters keep is not told apart here: use adapter none")
    if z.recipe.operations != "book":
        raise ValueError("tiles are of the book's operations: use operations book")
    sizes = block_kept(z, "none")
    middle = Tile("middle", z.x + z.mask, _product(z, "out"), 2 * z.x + z.y + _masking(z), "sum", _summed(z))
    parts = [
        Tile(INPUT, z.x, 0, 0, "input"),
        _norm(z, "norm 1", sizes["input of q, k, v"]),
        *_attention(z),
        middle,
        _norm(z, "norm 2", sizes["input of up and gate" if z.shape.gated_mlp else "input of up"]),
        *_mlp(z),
    ]
    if z.mask:
        parts.append(Tile("mask", z.mask, _product(z, "down"), _masking(z), "mask", _summed(z)))
    return tuple(parts)


def _norm(z: Sizes, name: str, read: int) -> Tile:
    """A norm's output as the matrices keep it, `read` bytes, and its own one or two numbers per token. Under autocast
    each matrix reads and casts it for itself."""
    readers = 3 if name == "norm 1" else 1 + z.shape.gated_mlp
    cast = readers * z.x + read if z.auto else 0
    gathered = (("all_gather", z.read),) if z.gathers and not z.regathers else ()
    return Tile(name, norm_kept(z) - z.x + read, 0, 2 * z.x + cast, "norm", gathered)


def _product(z: Sizes, name: str) -> int:
    rows, columns = z.matrices[name]
    return 2 * z.tokens * rows * columns


def _masking(z: Sizes) -> int:
    """Dropout reads, writes and writes its mask."""
    return 2 * z.y + z.mask if z.mask else 0


def _summed(z: Sizes) -> tuple[tuple[str, int], ...]:
    if z.layout.tp == 1:
        return ()
    return (("reduce_scatter" if z.gathers else "all_reduce", z.read),)


def _gathered(z: Sizes) -> tuple[tuple[str, int], ...]:
    """The all-gather of an input that matrices read again: one for all of them."""
    return (("all_gather", z.read),) if z.regathers else ()


def _attention(z: Sizes) -> list[Tile]:
    """Q, K and V as the core reads them, and what the core leaves."""
    turned, naive = z.shape.positions == "rotary", z.recipe.attention == "naive"
    width = {"q": z.q, "k": z.q if naive else z.kv, "v": z.q if naive else z.kv}  # a naive core repeats grouped heads
    parts = []
    for name, output in (("q", z.q), ("k", z.kv), ("v", z.kv)):
        turns = turned and name != "v"  # four products and two sums of halves, then both in one tensor: nine passes
        moved = (9 * output if turns else 0) + (output + width[name] if width[name] > output else 0)
        angles = tables(z) // 2 if turns else 0
        parts.append(
            Tile(name, width[name] + angles, _product(z, name), moved, "product", _gathered(z) if name == "q" else ())
        )
    if qk_norm_kept(z):
        parts.append(Tile("norms of q and k", qk_norm_kept(z), 0, 2 * (z.q + z.kv), "norm"))
    half = 2 * z.tokens * z.seq * z.shape.heads * z.shape.d // z.layout.tp  # Q K^T, or the weighted sum of V
    if not naive:
        parts.append(Tile("attention", z.q + z.lse, 2 * half, 0, "attention"))
        return [*parts, Tile("copy", relaid(z), 0, 2 * relaid(z), "copy")] if relaid(z) else parts
    # scaled, masked and made probabilities: three times read and written
    parts.append(Tile("scores", z.scores + z.seq**2, half, 6 * z.scores + z.seq**2, "attention"))
    if z.recipe.dropout:
        mask = z.scores // z.e
        parts.append(Tile("dropped scores", z.scores + mask, 0, 2 * z.scores + mask, "mask"))
    return [*parts, Tile("attention", z.q, half, 0, "attention")]


def _mlp(z: Sizes) -> list[Tile]:
    if not z.shape.gated_mlp:
        return [
            Tile("up", z.f, _product(z, "up"), 0, "product", _gathered(z)),
            Tile("GELU", z.f, 0, 2 * z.f, "activation"),
        ]
    return [
        Tile("gate", z.f, _product(z, "gate"), 0, "product", _gathered(z)),
        Tile("SiLU", z.f, 0, 2 * z.f, "activation"),
        Tile("up", z.f, _product(z, "up"), 0, "product"),
        Tile("product", z.f, 0, 3 * z.f, "activation"),
    ]


# --- policies -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """drops: for each block of a rank's chunk the names of the tiles that it drops. segment: blocks that are made
    again together, from the input of the first. outputs: a block that drops something keeps the `outputs` of the rest,
    not what the derivative needs of them."""

    drops: tuple[frozenset[str], ...]
    segment: int = 1
    outputs: bool = False

    def together(self, block: int) -> range:
        """The blocks of the segment that `block` is in."""
        first = block // self.segment * self.segment
        return range(first, min(first + self.segment, len(self.drops)))


def names(z: Sizes) -> frozenset[str]:
    """The tiles that a block can drop: all but its input."""
    return frozenset(tile.name for tile in tiles(z)) - {INPUT}


def none(z: Sizes) -> Policy:
    """Keep everything."""
    return Policy((frozenset(),) * z.chunk_layers)


def full(z: Sizes) -> Policy:
    """Each block keeps its input."""
    return Policy((names(z),) * z.chunk_layers)


def every_kth(z: Sizes, k: int) -> Policy:
    """Every k-th block, the first among them, keeps its input alone; the others keep everything."""
    checks.whole("k", k)
    return Policy(tuple(frozenset() if i % k else names(z) for i in range(z.chunk_layers)))


def segments(z: Sizes, k: int) -> Policy:
    """Of every k blocks the first keeps its input, and all k are made again at once (arXiv 1604.06174, section 4)."""
    checks.whole("k", k)
    return Policy(tuple(names(z) | ({INPUT} if i % k else set()) for i in range(z.chunk_layers)), k)


def selective(z: Sizes, dropped: Iterable[str]) -> Policy:
    """The same tiles in every block. ValueError for one that there is not."""
    wanted, existing = frozenset(dropped), names(z)
    if wanted - existing:
        names_ = ", ".join(tile.name for tile in tiles(z)[1:])
        raise ValueError(f"a block has no tile {min(wanted - existing)!r} to drop: use some of {names_}")
    return Policy((wanted,) * z.chunk_layers)


def core(z: Sizes) -> frozenset[str]:
    """The tiles that selective recomputation drops (arXiv 2205.05198, section 5): the scores of a naive core, the
    output of a fused one."""
    return names(z) & {"scores", "dropped scores"} or frozenset({"attention"})


# --- bytes and FLOPs of a policy ------------------------------------------------------------------------------------


def refuse(z: Sizes, policy: Policy) -> None:
    """ValueError for a policy of another number of blocks, of tiles that there are not, or of no segments."""
    checks.whole("segment", policy.segment)
    if len(policy.drops) != z.chunk_layers:
        raise ValueError(f"the policy is of {len(policy.drops)} blocks, and a rank has {z.chunk_layers}: make it anew")
    strange = frozenset().union(*policy.drops) - names(z) - {INPUT}
    if strange:
        raise ValueError(f"the policy drops {min(strange)!r}, and a block has no such tile: make it anew")


def dropped_bytes(z: Sizes, policy: Policy) -> list[int]:
    """Bytes of activations that each block drops."""
    refuse(z, policy)
    size = {tile.name: tile.bytes for tile in tiles(z)}
    if not policy.outputs:
        return [sum(size[name] for name in drop) for drop in policy.drops]
    block_size, size = sum(size.values()), outputs(z) | {INPUT: z.x}
    return [block_size - sum(n for name, n in size.items() if name not in drop) if drop else 0 for drop in policy.drops]


def block_bytes(z: Sizes, dropped: Iterable[str]) -> int:
    """Bytes that one block keeps without those tiles."""
    dropped = frozenset(dropped)
    return sum(tile.bytes for tile in tiles(z) if tile.name not in dropped)


def kept(z: Sizes, policy: Policy) -> int:
    """Bytes that the blocks of a rank's chunk keep of one micro-batch between forward and backward."""
    return z.chunk_layers * sum(block_kept(z, "none").values()) - sum(dropped_bytes(z, policy))


def flops(z: Sizes, policy: Policy) -> int:
    """FLOPs recomputed on this rank for one micro-batch. A block whose output is dropped runs its last product again
    too; the others stop before it, as torch's checkpoint does (its early stop)."""
    refuse(z, policy)
    tile_flops, last = {tile.name: tile.flops for tile in tiles(z)}, 0 if z.mask else _product(z, "down")
    return sum(tile_flops[name] for drop in policy.drops for name in drop) + last * sum(
        INPUT in drop for drop in policy.drops
    )


# --- where outputs of operations are kept -----------------------------------------------------------------------------


def outputs(z: Sizes) -> dict[str, int]:
    """Bytes of the output of the operation that makes a tile, where one does: what selective checkpointing keeps in
    place of what the derivative needs (torch's, and parallel/recompute.py).

    Not in it: the output of an RMS norm, which the book writes as several operations; what dropout makes, for random
    numbers that are not drawn again shift those behind them.
    """
    widths = {"q": z.q, "k": z.kv, "v": z.kv, "middle": z.y, "scores": z.scores}
    if z.shape.norm == "layernorm":
        widths |= {"norm 1": norm_kept(z), "norm 2": norm_kept(z)}
    plain = {"attention", "copy", "gate", "up", "SiLU", "GELU", "product"}
    return {tile.name: widths.get(tile.name, tile.bytes) for tile in tiles(z) if tile.name in plain | widths.keys()}


def outputs_flops(z: Sizes, policy: Policy, early_stop: bool = True) -> int:
    """As `flops`, where outputs are kept: of all operations of a block whose output is not. Those run too that only
    lead to one that is kept, as Q K^T does to the probabilities. early_stop: nothing behind the last tile, as in
    torch's checkpoint."""
    refuse(z, policy)
    tile_flops, size, last = {tile.name: tile.flops for tile in tiles(z)}, outputs(z), _product(z, "down")
    total = 0
    for i, drop in enumerate(policy.drops):
        if drop:
            total += sum(
                tile_flops[name]
                for name in tile_flops
                if (name in drop or name not in size or name == "scores") and name != "mask"
            )
            inside = i + 1 < len(policy.drops) and INPUT in policy.drops[i + 1]
            total += last if z.mask or inside or not early_stop else 0
    return total


@dataclass(frozen=True)
class Moment:
    """Bytes of the blocks' activations once something is done: a block's "forward", the "rebuild" of what it and its
    segment dropped, its "backward"."""

    phase: str
    block: int
    held: int


def moments(z: Sizes, policy: Policy) -> tuple[Moment, ...]:
    """The activations of the blocks through forward and backward of one micro-batch, beside those of the micro-batches
    that a pipeline has in flight."""
    dropped, block_size = dropped_bytes(z, policy), sum(block_kept(z, "none").values())
    allocated, steps, rebuilt = (z.in_flight - 1) * kept(z, policy), [], set()
    for i, freed in enumerate(dropped):
        allocated += block_size - freed
        steps.append(Moment("forward", i, allocated))
    for i in reversed(range(len(dropped))):
        regained = sum(dropped[j] for j in policy.together(i)) if i not in rebuilt else 0
        rebuilt |= set(policy.together(i))
        if regained:
            allocated += regained
            steps.append(Moment("rebuild", i, allocated))
        allocated -= block_size
        steps.append(Moment("backward", i, allocated))
    return tuple(steps)
