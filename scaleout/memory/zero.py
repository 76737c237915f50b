"""What each rank holds under ZeRO: states by kind, split by stage, frame by frame through a step, and with offload.

ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) cuts the parameters into as many shards as ranks; who owns a
shard keeps the states of it. Offload puts an owner's states into its host's memory or on NVMe (ZeRO-Offload, arXiv
2101.06840; ZeRO-Infinity, arXiv 2104.07857). Activations are not split, and are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from scaleout.memory.states import optimizer_width, state_bytes
from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.muon import matrix_parameters
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, total_parameters

OFFLOADS = ("none", "optimizer", "parameters")
TIERS = ("device", "host", "nvme")
MOST = 64  # ranks of a picture: it grows with their cube
FIRST_SPLIT = {"weights": 3, "gradients": 2}  # every other kind is the optimizer's, and split from stage 1
NOTHING, OWNED, BORROWED, AWAY = range(4)

Grid = tuple[tuple[int, ...], ...]
Move = tuple[str, int, str]


def widths(recipe: Recipe) -> dict[str, float]:
    """Bytes of one parameter by kind, in the order of the picture; the optimizer's kinds after the gradients."""
    own = recipe.width("gradient")
    out = {"weights": recipe.width("weight"), "gradients": recipe.gradient_bytes}
    if recipe.main_gradients == "beside":
        out |= {"gradients": own, "main gradients": recipe.gradient_bytes - own}
    if recipe.width("master"):
        out["master"] = recipe.width("master")
    moments = {"sgd": (), "momentum": ("momentum",)}.get(recipe.optimizer, ("momentum", "variance"))
    return out | {name: optimizer_width(recipe) / len(moments) for name in moments}


def splits(kind: str) -> int:
    """The first stage that splits a kind: 3 for weights, 2 for gradients, 1 for what is the optimizer's."""
    return FIRST_SPLIT.get(kind, 1)


def check(recipe: Recipe, layout: Layout, keep: bool = False, offload: str = "none", to: str = "host") -> None:
    """Raise ValueError, in one line, for a choice that no program has, or that is not priced here."""
    checks.instance("recipe", recipe, Recipe)
    checks.instance("layout", layout, Layout)
    checks.flag("keep", keep)
    checks.one_of("offload", offload, OFFLOADS)
    checks.one_of("to", to, TIERS[1:])
    if recipe.adapter != "none":
        raise ValueError(f"adapters are not split here: use adapter none, not {recipe.adapter}")
    if keep and layout.zero < 3:
        raise ValueError(f"keep is about gathered weights: use stage 3, not {layout.zero}")
    if offload == "optimizer" and not layout.zero:
        raise ValueError("offload needs an owner for each shard: use stage 1, 2 or 3")
    if offload == "parameters" and layout.zero < 3:
        raise ValueError(f"offload of parameters needs stage 3, not {layout.zero}: or offload the optimizer alone")
    if offload != "none" and to == "nvme" and layout.zero < 3:
        raise ValueError(f"offload to NVMe needs stage 3, not {layout.zero}: or offload to the host")


@dataclass(frozen=True)
class Frame:
    """A moment of a step: what each rank holds of each shard, and what has been moved so far.

    held: by kind, rank and shard: 0 nothing, 1 owned, 2 there for a moment (borrowed weights; gradients that are not
        yet the sum, or another's), 3 owned, in the host's memory or on NVMe.
    sent: pieces. One is every weight (or gradient) once: (n-1)/n of all their bytes leave a rank.
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
    split gradients (stages 0 and 1) only the last one sends. ValueError as in `check`, and above MOST ranks.
    """
    check(recipe, layout, keep, offload)
    checks.whole("passes", passes)
    if layout.dp > MOST:
        raise ValueError(f"frames are a picture of at most {MOST} ranks, not {layout.dp}: at_rest has no such limit")
    play = _Play(recipe, layout.dp, layout.zero, keep, offload)
    return tuple(play.step(passes))


@dataclass
class _Play:
    """The grid as it is now, changed shard by shard; counts are of shards, so that nothing is rounded on the way."""

    recipe: Recipe
    n: int
    stage: int
    keep: bool
    offload: str
    sent: int = 0
    crossed: int = 0
    held: dict[str, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = {kind: [[NOTHING] * self.n for _ in range(self.n)] for kind in widths(self.recipe)}
        for kind in self.held:
            if kind != "gradients" or self.recipe.keeps_gradients:
                for s in range(self.n):
                    self.settle(kind, s)

    @property
    def gathers(self) -> bool:
        return self.stage == 3 and (self.n > 1 or self.offload == "parameters")

    def away(self, kind: str) -> bool:
        """Whether owners have this kind in their hosts' memory."""
        return self.offload != "none" and (kind != "weights" or self.offload == "parameters")

    def settle(self, kind: str, s: int) -> None:
        """Shard s as it is between its uses: with its owner, or with every rank before its stage."""
        split = self.stage >= splits(kind)
        for r in range(self.n):
            mine = r == s
            self.held[kind][r][s] = (AWAY if self.away(kind) and split else OWNED) if mine or not split else NOTHING

    def lend(self, kind: str, s: int, owned: bool = True) -> None:
        """Shard s on every GPU; its owner's is its own, unless it too is a copy or not yet the sum."""
        for r in range(self.n):
            self.held[kind][r][s] = OWNED if r == s and owned else BORROWED

    def frame(self, phase: str, move: Move | None = None, sent: int = 0, crossed: int = 0) -> Frame:
        self.sent += sent * (self.n > 1)
        self.crossed += crossed
        held = {kind: tuple(map(tuple, grid)) for kind, grid in self.held.items()}
        return Frame(phase, held, self.sent / self.n, self.crossed / self.n, move)

    def gather(self, phase: str, s: int) -> Iterator[Frame]:
        """Shard s of the weights to every GPU, from its owner's host if it is there."""
        if self.away("weights"):
            self.held["weights"][s][s] = BORROWED
            yield self.frame("from the host", ("weights", s, "up"), crossed=1)
        self.lend("weights", s, owned=not self.away("weights"))
        if self.n > 1:
            yield self.frame(phase, ("weights", s, "out"), sent=1)

    def step(self, passes: int) -> Iterator[Frame]:
        yield self.frame("at rest")
        for i in range(passes):
            yield from self.forward()
            yield from self.backward(last=i == passes - 1)
        yield from self.update()

    def forward(self) -> Iterator[Frame]:
        """Where nothing is gathered it is one frame."""
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
        if self.away("gradients") and self.stage >= 2:
            self.held["gradients"][s][s] = OWNED
        if self.n > 1:
            yield self.frame(*(("reduce-scatter", ("gradients", s, "in"), 1) if self.stage else
                               ("all-reduce", ("gradients", s, "both"), 2)))  # fmt: skip
        if self.away("gradients"):
            if self.stage >= 2:
                self.settle("gradients", s)
            yield self.frame("to the host", ("gradients", s, "down"), crossed=1)

    def update(self) -> Iterator[Frame]:
        yield self.frame("update")
        for s in range(self.n):
            if self.away("gradients") and not self.away("weights"):
                yield self.frame("from the host", ("weights", s, "up"), crossed=1)
            if self.stage in (1, 2) and self.n > 1:
                yield self.frame("gather new weights", ("weights", s, "out"), sent=1)
        if not self.recipe.keeps_gradients:
            self.held["gradients"] = [[NOTHING] * self.n for _ in range(self.n)]
        yield self.frame("step done")


def frame_bytes(frame: Frame, parameters: int, recipe: Recipe, rank: int = 0) -> dict[str, int]:
    """Bytes of each kind on the GPU of a rank at a frame of a model of so many parameters."""
    out = {}
    for kind, width in widths(recipe).items():
        row = frame.held[kind][rank]
        out[kind] = ceil(parameters * width * sum(one in (OWNED, BORROWED) for one in row) / len(row))
    return out


def at_rest(
    parameters: int, recipe: Recipe, layout: Layout, offload: str = "none", to: str = "host"
) -> dict[str, dict[str, int]]:
    """Bytes that one rank keeps, by tier and kind, as the update finds them: gradients are there.

    With offload the optimizer steps in the host, from gradients that were handed down (ZeRO-Offload, section 4.1);
    before stage 2 the GPU has all of them too. It steps its master copy, or where the recipe has none a copy of the
    weights. to: where offloaded states lie. ValueError as in `check`.
    """
    check(recipe, layout, offload=offload, to=to)
    states, kinds = state_bytes(parameters, recipe, layout), widths(recipe)
    bytes_of = {"weights": states["weights"], "gradients": states["gradients"], "master": states["master"]}
    if "main gradients" in kinds:
        bytes_of["gradients"] = ceil(parameters * kinds["gradients"] / (layout.dp if layout.zero >= 2 else 1))
        bytes_of["main gradients"] = states["gradients"] - bytes_of["gradients"]
    bytes_of["variance"] = states["optimizer"] // 2 if "variance" in kinds else 0
    bytes_of["momentum"] = states["optimizer"] - bytes_of["variance"]
    out = {tier: dict.fromkeys(kinds, 0) for tier in TIERS}
    for kind in kinds:
        leaves = offload == "parameters" or (offload == "optimizer" and kind != "weights")
        out[to if leaves else "device"][kind] = bytes_of[kind]
    if offload == "optimizer" and "master" not in kinds:
        out[to]["weights"] = ceil(parameters * kinds["weights"] / layout.dp)
    if offload == "optimizer" and layout.zero == 1:  # every rank has all gradients on its GPU, and hands down its own
        out["device"]["gradients"] = bytes_of["gradients"]
        out[to]["gradients"] = ceil(parameters * kinds["gradients"] / layout.dp)
    return out


def dealt(sizes: Sequence[int], ranks: int) -> list[int]:
    """The owner of each tensor where tensors are dealt out whole: the largest first, to the rank with the least so far.

    As torch's ZeroRedundancyOptimizer does it (_partition_parameters), which cuts none: a rank with a large table has
    more than an n-th. sizes: elements of each.
    """
    checks.whole("ranks", ranks)
    checks.instance("sizes", sizes, Sequence)
    checks.whole("the smallest size", min(sizes, default=0), 0)
    held, owner = [0] * ranks, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = held.index(min(held))
        held[owner[i]] += sizes[i]
    return owner


def muon_bytes(shape: Shape, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of the optimizer's state on one rank where Muon steps the blocks' matrices and AdamW the rest: "momentum"
    of all parameters, "variance" of the rest alone. recipe: its precision; split evenly from stage 1."""
    check(recipe, layout)
    checks.instance("shape", shape, Shape)
    each = recipe.width("master") or recipe.width("weight")
    total, share = total_parameters(shape), layout.dp if layout.zero else 1
    rest = total - matrix_parameters(shape)
    return {"momentum": ceil(total * each / share), "variance": ceil(rest * each / share)}


def fullest(
    parameters: int, recipe: Recipe, layout: Layout, unit: int, keep: bool = False, offload: str = "none",
    to: str = "host",
) -> tuple[str, dict[str, dict[str, int]]]:  # fmt: skip
    """The fullest moment of a step for states, and its bytes by tier and kind: the backward, in what all programs do.

    unit: parameters that are gathered or reduced at once (a block; a bucket). They lie in a buffer of their own beside
    the shards: the weights whole in stage 3 (all of the model, if kept), the gradients whole from stage 2. One rank
    has no such buffers, but for weights that come from the host.
    """
    check(recipe, layout, keep, offload, to)
    checks.whole("parameters", parameters)
    checks.whole("unit", unit)
    if unit > parameters:
        raise ValueError(f"unit {unit} is more than all {parameters} parameters")
    held, kinds = at_rest(parameters, recipe, layout, offload, to), widths(recipe)
    device = held["device"]
    if layout.zero == 3 and (layout.dp > 1 or offload == "parameters"):
        device["weights"] += ceil((parameters if keep else unit) * kinds["weights"])
    if layout.zero >= 2 and (layout.dp > 1 or offload != "none"):
        device["gradients"] += ceil(unit * kinds["gradients"])
    return "backward", held
