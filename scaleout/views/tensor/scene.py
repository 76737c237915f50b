"""A block under tensor parallelism as it is drawn: the moments of a pass, and how each tensor is split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scaleout.collectives.placements import Move, Placed
from scaleout.collectives.tensor import HALVES, Block, Join, Tensor, Weight
from scaleout.draw import ribbon
from scaleout.draw.sheets import Sheet
from scaleout.spec.transformer import Shape
from scaleout.words.amounts import amount

LETTERS = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "AA"}
NAMES = {letters: name.replace("_", "-") for name, letters in LETTERS.items()}
JOINS = {"into": ("into",), "middle": ("middle", "between"), "out of": ("out of",)}  # by places of the ribbon
WAY = ("enters", "into", "product", "middle", "sums", "out of", "leaves")  # of a forward through a half
NEXT = {"columns": "rows", "rows": "copies", "copies": "columns"}  # what pressing a matrix makes of its split
MATRICES = {
    "qkv": "Q, K and V", "out": "the output projection",
    "up": "the MLP's first matrix", "down": "the MLP's second matrix",
}  # fmt: skip
TITLES = {"attention": "Attention", "mlp": "MLP"}
FIRST = {"attention": ("q", "k", "v"), "mlp": ("gate", "up")}
PRODUCTS = ("product", "sums")
LAST = len(HALVES) * (2 * len(WAY) - len(PRODUCTS)) - 1  # the last moment's number
PLACED_WORDS = {"R": "copies", "P": "partial", "S(1)": "by tokens", "S(2)": "split"}


@dataclass(frozen=True)
class Moment:
    """A place of the ribbon that a pass comes to: a group of tensors, or the collectives of a place, if it has any.
    wrong: of each, whether no message belongs there."""

    half: str
    place: str
    forward: bool
    moves: tuple[Move, ...] = ()
    wrong: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.half}, {self.place}, {'forward' if self.forward else 'backward'}"

    def label(self, move: Move) -> str:
        """One of its collectives in words."""
        way = "forward" if self.forward else "backward"
        return f"{NAMES[LETTERS[move.collective]]} in the {way} pass: each GPU sends {amount(move.sent, 10**9)}"


@dataclass(frozen=True)
class Scene:
    """A block, its shape, and how each of its four matrices is cut."""

    block: Block
    shape: Shape
    cuts: dict[str, str]

    @cached_property
    def joins(self) -> dict[str, dict[str, Join]]:
        """By half and place."""
        return {half: {join.at: join for join in self.block.joins if join.half == half} for half in HALVES}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.block.tensors}

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """LAST of them after the first, whatever the cuts: forward through attention and the MLP, then back."""
        forward = [self._moment(half, place, True) for half in HALVES for place in WAY]
        backward = [
            self._moment(half, place, False)
            for half in reversed(HALVES)
            for place in WAY[::-1]
            if place not in PRODUCTS
        ]
        return (*forward, *backward)

    def _moment(self, half: str, place: str, forward: bool) -> Moment:
        joins = [self.joins[half][name] for name in JOINS.get(place, ())]
        messages = [
            (move, forward and not join.legal)
            for join in (joins if forward else joins[::-1])
            for move in (join.forward if forward else join.backward)
        ]
        moves, wrong = zip(*messages, strict=True) if messages else ((), ())
        return Moment(half, place, forward, moves, wrong)

    def halves(self, step: int | None) -> list[ribbon.Half]:
        """Attention and the MLP at a moment; None: all of them, without any collective."""
        seen = len(self.moments) if step is None else step + 1
        return [self._half(half, seen, step is not None) for half in HALVES]

    def _half(self, half: str, seen: int, moves: bool) -> ribbon.Half:
        reached = {item.place for item in self.moments[:seen] if item.half == half and item.forward}
        strong = {place: 1.0 if place in reached else ribbon.FAINT for place in WAY}
        joins, attention, (first, second) = self.joins[half], half == "attention", HALVES[half]
        weights = [item for item in self.block.weights if item.name in FIRST[half]]
        input_placed, summed = joins["middle"].gives, joins["out of"].gives
        product = tuple(self._activation(item.name, input_placed, strong["product"]) for item in weights)
        placed_words = (
            "split by heads" if attention and input_placed.value == "S(2)" else PLACED_WORDS[input_placed.value]
        )
        return ribbon.Half(
            half,
            TITLES[half],
            self._end("enters", strong),
            self._cut(weights, first),
            ribbon.Group(product, placed_words, f"s×{self._columns(weights, input_placed.value == 'S(2)')}"),
            "softmax" if attention else "SwiGLU" if self.shape.gated_mlp else "GeLU",
            self._cut([item for item in self.block.weights if item.name == second], second),
            ribbon.Group((self._activation(f"{half} sum", summed, strong["sums"]),), "", PLACED_WORDS[summed.value]),
            self._end("leaves", strong),
            joins["middle"].reason,
            tuple(self._badges(half, seen)) if moves else (),
        )

    # --- tensors -----------------------------------------------------------------------------------------------------

    def _activation(self, name: str, placed: Placed, strong: float, mark: str = "") -> Sheet:
        """A tensor as it is placed before a join, which may differ from how it is placed after it."""
        tensor, t = self.tensors[name], self.block.tp
        parts = min(t, tensor.shape[2] // tensor.local[2]) if tensor.placed.value == "S(2)" else t
        laid_by_value: dict[str, dict[str, Any]] = {
            "R": {"copies": t},
            "P": {"copies": t, "partial": True},
            "S(1)": {"parts": t, "cut": "rows"},
            "S(2)": {"parts": parts, "copies": t // parts},
        }
        laid = laid_by_value[placed.value]
        title = f"{name}: {tensor.shape[1]:,} × {tensor.shape[2]:,}, {PLACED_WORDS[placed.value]}"
        return Sheet(mark or name, 0, 0, self._wide(tensor.shape[2]), 0, "c3", **laid, strong=strong, title=title)

    def _end(self, place: str, strong: dict[str, float]) -> ribbon.Group:
        """What enters or leaves a half."""
        placed, t = self.tensors["x"].placed, self.block.tp
        upper, lower = ("tokens split", f"s/{t}×h") if placed.value == "S(1)" else (f"{t} copies", "s×h")
        return ribbon.Group((self._activation("x", placed, strong[place], mark=place),), upper, lower)

    def _cut(self, weights: list[Weight], name: str) -> ribbon.Group:
        """Matrices that are cut alike, with what pressing them does."""
        cut, several = self.cuts[name], name in ("qkv", "up")
        upper = f"{self.block.tp} copies" if cut == "copies" else f"by {cut}"
        upper += ", by heads" * (name == "qkv" and cut == "columns")
        rows = self._times(weights[0].shape[0]) + f"/{self.block.tp}" * (cut == "rows")
        following = "copies" if NEXT[cut] == "copies" else f"a split by {NEXT[cut]}"
        label = f"{MATRICES[name]}, {upper}: press for {following}"
        return ribbon.Group(
            tuple(self._matrix(weight) for weight in weights),
            upper,
            f"{rows}×{self._columns(weights, cut == 'columns')}",
            cut if several else "",
            (name, NEXT[cut], label),
        )

    def _matrix(self, weight: Weight) -> Sheet:
        (a, b), (c, d) = weight.shape, weight.local
        parts, cut = round(a * b / (c * d)), "rows" if weight.cut == "rows" else "columns"
        title = f"{weight.name}: {c:,} × {d:,} of {a:,} × {b:,} on each GPU"
        copies = self.block.tp // parts
        return Sheet(f"W{weight.name}", 0, 0, self._wide(b), self._wide(a), "c1", parts, cut, copies, title=title)

    def _wide(self, width: int) -> float:
        """In widths of x."""
        return width / self.shape.hidden

    def _times(self, width: int) -> str:
        """In widths of x: "h", "4h", "2.69h"."""
        return "h" if width == self.shape.hidden else f"{self._wide(width):.3g}h"

    def _columns(self, weights: list[Weight], split: bool) -> str:
        """Of all of them; of one rank where they are split, with what it holds beside its own for others too."""
        if not split:
            return self._times(sum(weight.shape[1] for weight in weights))
        split_weights = [weight for weight in weights if weight.local[1] * self.block.tp == weight.shape[1]]
        shared = len(weights) - len(split_weights)
        return (
            f"{self._times(sum(weight.shape[1] for weight in split_weights))}/{self.block.tp}"
            + f" + {shared} heads" * bool(shared)
        )

    # --- collectives -------------------------------------------------------------------------------------------------

    def _badges(self, half: str, seen: int) -> Iterator[ribbon.Badge]:
        """One for each message of a half, beside each other where a place has two; a ring where only the other way has
        any."""
        moments = {
            (moment.place, moment.forward): (i, moment) for i, moment in enumerate(self.moments) if moment.half == half
        }
        for (place, forward), (i, moment) in moments.items():
            first = 1 - len(moment.moves) if forward else 0  # to the left, where a matrix is at the right
            for k, (move, wrong) in enumerate(zip(moment.moves, moment.wrong, strict=True)):
                yield ribbon.Badge(
                    f"{half} {place} {forward} {k}",
                    LETTERS[move.collective],
                    place,
                    forward,
                    i < seen,
                    moment.label(move),
                    first + k,
                    wrong,
                )
            if place in JOINS and not moment.moves and moments[place, not forward][1].moves:
                way = "forward" if forward else "backward"
                yield ribbon.Badge("", "", place, forward, True, f"nothing to communicate in the {way} pass")
