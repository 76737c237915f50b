"""A step under ZeRO frame by frame: what each rank holds of each shard, and what has moved. `zero` has the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from scaleout.memory.zero import check, splits, widths
from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe

MAX_RANKS, MAX_PASSES = 64, 8  # ranks and passes of a picture: it grows with the cube of the one, and with the other
NOTHING, OWNED, BORROWED, OFFLOADED = range(4)

Grid = tuple[tuple[int, ...], ...]
Move = tuple[str, int, str]


@dataclass(frozen=True)
class Frame:
    """A moment of a step: what each rank holds of each shard, and what has been moved so far.

    held: by kind, rank and shard: 0 nothing, 1 owned, 2 there for a moment (borrowed weights; gradients that are not
        yet the sum, or another's), 3 owned, in the host's memory or on NVMe.
    sent: pieces. One is every weight (or gradient) once: (W-1)/W of all their bytes leave a rank, of W.
    crossed: shares between a GPU and its host. One is a rank's own n-th of the weights (or gradients).
    move: kind and shard that move in this frame, "out" from its owner to all, "in" from all to its owner, "both" for
        an all-reduce, "down" to the host, "up" from it; or None.
    """

    phase: str
    held: dict[str, Grid]
    sent: float
    crossed: float
    move: Move | None = None


def frames(
    recipe: Recipe, layout: Layout, keep: bool = False, passes: int = 1, offload: str = "none"
) -> tuple[Frame, ...]:
    """A step of the paper's, shard by shard: what moves is gathered, computed with and freed one shard at a time.

    It is not the first step: the optimizer's states exist. passes: forward and backward before the update; without
    split gradients (stages 0 and 1) only the last one sends. ValueError as in `check`, and above MAX_RANKS ranks
    or MAX_PASSES passes.
    """
    check(recipe, layout, keep, offload)
    checks.whole("passes", passes, limit=MAX_PASSES)
    if layout.dp > MAX_RANKS:
        raise ValueError(
            f"frames are a picture of at most {MAX_RANKS} ranks, not {layout.dp}: at_rest has no such limit"
        )
    play = _Play(recipe, layout.dp, layout.zero, keep, offload)
    return tuple(play.step(passes))


@dataclass
class _Play:
    """The current grid of shards, changed shard by shard; counts are of shards, so that nothing is rounded."""

    recipe: Recipe
    n: int
    stage: int
    keep: bool
    offload: str
    sent: int = 0
    crossed: int = 0
    held: dict[str, list[list[int]]] = field(default_factory=dict)
    still: dict[str, Grid] = field(default_factory=dict)  # what no frame changes, once for all of them

    def __post_init__(self) -> None:
        self.held = {kind: [[NOTHING] * self.n for _ in range(self.n)] for kind in widths(self.recipe)}
        for kind in self.held:
            if kind != "gradients" or self.recipe.keeps_gradients:
                for s in range(self.n):
                    self.settle(kind, s)
        self.still = {kind: _grid(rows) for kind, rows in self.held.items() if kind not in ("weights", "gradients")}

    @property
    def gathers(self) -> bool:
        return self.stage == 3 and (self.n > 1 or self.offload == "parameters")

    def offloaded(self, kind: str) -> bool:
        """Whether owners have this kind in their hosts' memory."""
        return self.offload != "none" and (kind != "weights" or self.offload == "parameters")

    def settle(self, kind: str, s: int) -> None:
        """Shard s as it is between its uses: with its owner, or with every rank before its stage."""
        split = self.stage >= splits(kind)
        owned = OFFLOADED if self.offloaded(kind) and split else OWNED
        for r in range(self.n):
            mine = r == s
            self.held[kind][r][s] = owned if mine or not split else NOTHING

    def lend(self, kind: str, s: int, owned: bool = True) -> None:
        """Shard s on every GPU; its owner's is its own, unless it too is a copy or not yet the sum."""
        for r in range(self.n):
            self.held[kind][r][s] = OWNED if r == s and owned else BORROWED

    def frame(self, phase: str, move: Move | None = None, sent: int = 0, crossed: int = 0) -> Frame:
        self.sent += sent * (self.n > 1)
        self.crossed += crossed
        grids = {kind: self.still.get(kind) or _grid(rows) for kind, rows in self.held.items()}
        return Frame(phase, grids, self.sent / self.n, self.crossed / self.n, move)

    def gather(self, phase: str, s: int) -> Iterator[Frame]:
        """Shard s of the weights to every GPU, from its owner's host if it is there."""
        if self.offloaded("weights"):
            self.held["weights"][s][s] = BORROWED
            yield self.frame("from the host", ("weights", s, "up"), crossed=1)
        self.lend("weights", s, owned=not self.offloaded("weights"))
        if self.n > 1:
            yield self.frame(phase, ("weights", s, "out"), sent=1)

    def step(self, passes: int) -> Iterator[Frame]:
        yield self.frame("at rest")
        for i in range(passes):
            yield from self.forward()
            yield from self.backward(last=i == passes - 1)
        yield from self.update()

    def forward(self) -> Iterator[Frame]:
        """The forward, shard by shard; where nothing is gathered it is one frame."""
        if not self.gathers:
            yield self.frame("forward")
            return
        for s in range(self.n):
            yield from self.gather("gather for the forward", s)
            if not self.keep:
                self.settle("weights", s)

    def backward(self, last: bool) -> Iterator[Frame]:
        for s in reversed(range(self.n)):
            if self.gathers and not self.keep:
                yield from self.gather("gather for the backward", s)
            self.lend("gradients", s, owned=False)
            yield self.frame("backward")
            if self.stage >= 2 or last:
                yield from self.reduce(s)
            if self.gathers:
                self.settle("weights", s)

    def reduce(self, s: int) -> Iterator[Frame]:
        """The sum of shard s to all, or to its owner, who hands it down to its host."""
        if self.stage == 1:
            self.lend("gradients", s)
        else:
            self.settle("gradients", s)
        if self.offloaded("gradients") and self.stage >= 2:
            self.held["gradients"][s][s] = OWNED
        if self.n > 1:
            yield self.frame(
                *(
                    ("reduce-scatter", ("gradients", s, "in"), 1)
                    if self.stage
                    else ("all-reduce", ("gradients", s, "both"), 2)
                )
            )
        if self.offloaded("gradients"):
            if self.stage >= 2:
                self.settle("gradients", s)
            yield self.frame("to the host", ("gradients", s, "down"), crossed=1)

    def update(self) -> Iterator[Frame]:
        yield self.frame("update")
        for s in range(self.n):
            if self.offloaded("gradients") and not self.offloaded("weights"):
                yield self.frame("from the host", ("weights", s, "up"), crossed=1)
            if self.stage in (1, 2) and self.n > 1:
                yield self.frame("gather new weights", ("weights", s, "out"), sent=1)
        if not self.recipe.keeps_gradients:
            self.held["gradients"] = [[NOTHING] * self.n for _ in range(self.n)]
        yield self.frame("step done")


def _grid(rows: list[list[int]]) -> Grid:
    return tuple(map(tuple, rows))


def frame_bytes(frame: Frame, parameters: int, recipe: Recipe, rank: int = 0) -> dict[str, int]:
    """Bytes of each kind on the GPU of a rank at a frame of a model of so many parameters. ValueError where the frame
    is of another recipe, and for a rank that it has not."""
    checks.instance("frame", frame, Frame)
    checks.whole("parameters", parameters)
    sizes, kinds = {}, widths(recipe)
    if strange := [kind for kind in kinds if kind not in frame.held]:
        raise ValueError(f"this frame has no {' and no '.join(strange)}: give the recipe that `frames` was given")
    checks.whole("rank", rank, 0, limit=len(frame.held["weights"]) - 1)
    for kind, width in kinds.items():
        row = frame.held[kind][rank]
        sizes[kind] = ceil(parameters * width * sum(state in (OWNED, BORROWED) for state in row) / len(row))
    return sizes
