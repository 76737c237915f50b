"""A block under tensor parallelism as the ribbon shows it: what is drawn of each tensor, and the moments of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.collectives.placements import Move, Placed
from scaleout.collectives.tensor import HALVES, Block, Join, Tensor, Weight
from scaleout.draw import ribbon
from scaleout.draw.amounts import amount
from scaleout.spec.transformer import Shape

LETTERS = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "AA"}
SAID = {name: name.replace("_", "-") for name in LETTERS}
JOINS = ("into", "middle", "between", "out of")
NEXT = {"columns": "rows", "rows": "copies", "copies": "columns"}  # what pressing a matrix makes of its cut
TITLES = {"attention": "Attention", "mlp": "MLP"}


@dataclass(frozen=True)
class Moment:
    """A place of the ribbon that a pass comes to: a group of tensors, or a join with the message that it needs."""

    half: str
    at: str
    forward: bool
    move: Move | None = None

    @property
    def name(self) -> str:
        return f"{self.half} {self.at} {'there' if self.forward else 'back'}"


def moments(block: Block) -> tuple[Moment, ...]:
    """All of them, forward through attention and the MLP, then back through both."""
    out = []
    for half in HALVES:
        joins = _joins(block, half)
        for group, *after in (("enters", "into"), ("product", "middle", "between"), ("sums", "out of"), ("leaves",)):
            out.append(Moment(half, group, True))
            out += [Moment(half, at, True, move) for at in after for move in joins[at].forward]
    for half in reversed(HALVES):
        joins = _joins(block, half)
        out.append(Moment(half, "leaves", False))
        out += [Moment(half, at, False, move) for at in reversed(JOINS) for move in joins[at].backward]
        out.append(Moment(half, "enters", False))
    return tuple(out)


def _joins(block: Block, half: str) -> dict[str, Join]:
    return {one.at: one for one in block.joins if one.half == half}


def halves(block: Block, shape: Shape, cuts: dict[str, str], step: int | None) -> list[ribbon.Half]:
    """Attention and the MLP at a moment; None: all of them, without any collective."""
    every = moments(block)
    seen = len(every) if step is None else step + 1
    reached = {one.name for one in every[:seen]}
    return [_half(block, shape, half, cuts, () if step is None else every, seen, reached) for half in HALVES]


def _half(block, shape, half, cuts, every, seen, reached) -> ribbon.Half:
    first, second = HALVES[half]
    joins, weights = _joins(block, half), {one.name: one for one in block.weights}
    tensors = {one.name: one for one in block.tensors}
    names = ("q", "k", "v") if half == "attention" else tuple(one for one in ("gate", "up") if one in weights)
    there = {at: 1.0 if f"{half} {at} there" in reached else ribbon.FAINT for at in ("enters", "product", "sums", "leaves")}
    outside, scale = tensors["x"], shape.hidden
    given = joins["middle"].gives
    product = tuple(_activation(tensors[name], given, block.tp, scale, there["product"]) for name in names)
    ends = [_activation(outside, outside.placed, block.tp, scale, there[at], name=at) for at in ("enters", "leaves")]
    sums = _activation(tensors[f"{half} sum"], joins["out of"].gives, block.tp, scale, there["sums"])
    held = [_matrix(weights[name], block.tp, scale) for name in (*names, second)]
    return ribbon.Half(
        half, TITLES[half],
        enters=_end(ends[0], outside), leaves=_end(ends[1], outside),
        first=_cut(held[:-1], [weights[name] for name in names], first, cuts, block.tp, scale),
        product=ribbon.Group(product, _over(given, half), f"s×{_wide(names, weights, given, block.tp, scale)}"),
        between="softmax" if half == "attention" else "SwiGLU" if shape.gated_mlp else "GeLU",
        second=_cut(held[-1:], [weights[second]], second, cuts, block.tp, scale),
        sums=ribbon.Group((sums,), "", _held(joins["out of"].gives)),
        trouble=joins["middle"].reason,
        badges=tuple(_badges(half, every, joins, seen)),
    )  # fmt: skip


# --- tensors ---------------------------------------------------------------------------------------------------------


def _laid(placed: Placed, ranks: int, parts: int) -> dict:
    """How a sheet is divided. parts: of the width, fewer than ranks where some hold the same."""
    if placed.value.startswith("S"):
        rows = placed.value == "S(1)"
        return {"parts": ranks if rows else parts, "cut": "rows" if rows else "columns",
                "copies": 1 if rows else ranks // parts}  # fmt: skip
    return {"copies": ranks, "partial": placed.value == "P"}


def _activation(one: Tensor, placed: Placed, ranks: int, hidden: int, strong: float, name: str = "") -> ribbon.Part:
    wide = one.shape[2]
    parts = min(ranks, wide // one.local[2]) if one.placed.value == "S(2)" else ranks
    title = f"{name or one.name}: {' × '.join(f'{n:,}' for n in one.shape[1:])}, {_held(placed)}"
    return ribbon.Part(name or one.name, wide / hidden, 0.0, "c3", **_laid(placed, ranks, parts), strong=strong, title=title)


def _matrix(one: Weight, ranks: int, hidden: int) -> ribbon.Part:
    (a, b), (c, d) = one.shape, one.local
    parts = round(a * b / (c * d))
    cut = {"columns": "columns", "rows": "rows", "copies": "columns"}[one.cut]
    title = f"{one.name}: {a:,} × {b:,}; {c:,} × {d:,} on each GPU"
    return ribbon.Part(f"W{one.name}", b / hidden, a / hidden, "c1", parts=parts, cut=cut, copies=ranks // parts, title=title)


def _end(part: ribbon.Part, outside: Tensor) -> ribbon.Group:
    """What enters or leaves a half."""
    split = outside.placed.value != "R"
    ranks = part.parts * part.copies
    return ribbon.Group((part,), "tokens split" if split else f"{ranks} copies", f"s/{ranks}×h" if split else "s×h")


def _cut(parts, weights: list[Weight], name: str, cuts: dict[str, str], ranks: int, hidden: int) -> ribbon.Group:
    """One or more matrices that are cut alike, with what pressing them does."""
    cut = cuts[name]
    said = f"{ranks} copies" if cut == "copies" else f"in {cut}"
    if name == "qkv" and cut == "columns":
        said = "in columns, by heads"
    return ribbon.Group(
        tuple(parts), said, _shape(weights, cut, ranks, hidden), cut if name in ("qkv", "up") else "",
        (name, NEXT[cut], f"{'Q, K and V' if name == 'qkv' else name}, {said}: press for {NEXT[cut]}"),
    )  # fmt: skip


def _times(width: float) -> str:
    """So many widths of x: "h", "4h", "2.69h"."""
    return "h" if width == 1 else f"{width:.3g}h"


def _shape(weights: list[Weight], cut: str, ranks: int, hidden: int) -> str:
    """Of one rank's part, input by output."""
    deep = _times(weights[0].shape[0] / hidden)
    if cut == "rows":
        return f"{deep}/{ranks}×{_times(sum(one.shape[1] for one in weights) / hidden)}"
    return f"{deep}×{_width(weights, cut, ranks, hidden)}"


def _width(weights: list[Weight], cut: str, ranks: int, hidden: int) -> str:
    """Columns of one rank; where it shares key-value heads with others, what it has of them beside its own."""
    whole = sum(one.shape[1] for one in weights)
    if cut != "columns":
        return _times(whole / hidden)
    shared = sum(one.local[1] for one in weights if one.local[1] * ranks != one.shape[1])
    own = _times(sum(one.shape[1] for one in weights if one.local[1] * ranks == one.shape[1]) / hidden)
    return f"{own}/{ranks}" + (f" + 2 heads" if shared else "")


def _wide(names, weights: dict[str, Weight], given: Placed, ranks: int, hidden: int) -> str:
    cut = "columns" if given.value == "S(2)" else "copies"
    return _width([weights[name] for name in names], cut, ranks, hidden)


HELD = {"R": "copies", "P": "partial", "S(1)": "by tokens", "S(2)": "split"}


def _held(placed: Placed) -> str:
    return HELD[placed.value]


def _over(placed: Placed, half: str) -> str:
    return "split by heads" if half == "attention" and placed.value == "S(2)" else _held(placed)


# --- collectives -----------------------------------------------------------------------------------------------------


def _badges(half: str, every: tuple[Moment, ...], joins: dict[str, Join], seen: int):
    """One for each message of this half; where there are two at a place, one beside the other."""
    places: dict[tuple[str, bool], list[tuple[int, Moment]]] = {}
    for i, one in enumerate(every):
        if one.half == half and one.move:
            place = "middle" if one.at == "between" else one.at
            places.setdefault((place, one.forward), []).append((i, one))
    for (place, forward), found in places.items():
        first = 1 - len(found) if forward else 0  # to the left, where a matrix is at the right
        for k, (i, one) in enumerate(found):
            yield ribbon.Badge(
                f"{half} {place} {forward} {k}", LETTERS[one.move.collective], place, forward, i < seen, said(one),
                first + k, forward and not joins[one.at].legal,
            )  # fmt: skip


def said(one: Moment) -> str:
    """A message in words."""
    way = "forward" if one.forward else "backward"
    return f"{SAID[one.move.collective]} in the {way}: each GPU sends {amount(one.move.sent, 10**9)}"
