"""A step under FSDP as events on lanes: all-gathers, compute, reduce-scatters; bytes sent, exposed communication."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

from scaleout.spec import checks
from scaleout.spec.sharding import DTYPES, Sharding, Unit, alike
from scaleout.spec.transformer import Shape
from scaleout.timing.ddp import Event, Layer, Layers, hidden_share
from scaleout.timing.fsdp_plan import Piece, Plan, runs_of_blocks
from scaleout.timing.fsdp_streams import Run, Span, Wires

LANES = ("compute", "gather", "reduce", "across", "copy in", "copy out")


@dataclass(frozen=True)
class FsdpTimeline:
    """One step of one rank; with equal ranks, of each. seconds = compute + exposed + update.

    passes: (start, end) of each forward and backward. compute_seconds: with what contention adds. exposed_seconds:
    the compute lane waits; for gathers (waits["gather"]) or for gradients on their way (waits["reduce"]).
    communication_seconds: all lanes but compute, added up. gathers, scatters: collectives of the step.
    """

    pieces: tuple[Piece, ...]
    passes: tuple[tuple[float, float], ...]
    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    update_seconds: float
    waits: dict[str, float]
    gathers: int
    scatters: int
    runs: tuple[tuple[Span, ...], ...]  # by pass: (lane, name, start, end, piece, unit), from the pass's start

    @property
    def overlap_fraction(self) -> float:
        """Share of the communication that compute (or other communication) hides, 0 to 1; 1 where there is none."""
        return hidden_share(self.communication_seconds, self.exposed_seconds)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Every event, in seconds from the start of the step; `layer` is the piece, `bucket` the unit."""
        events = [
            Event(lane, 0, name, origin + start, origin + end, None if piece < 0 else piece, unit)
            for (origin, _), run in zip(self.passes, self.runs, strict=True)
            for lane, name, start, end, piece, unit in run
        ]
        if self.update_seconds:
            events.append(Event("compute", 0, "update", self.seconds - self.update_seconds, self.seconds))
        return tuple(events)


Copies = Callable[[str, float, float], tuple[float, float]]


def pieces(
    layers: Sequence[Layer],
    cut: Sequence[Unit],
    sharding: Sharding,
    checkpointing: str = "none",
    copies: Copies = lambda name, gather_bytes, reduce_bytes: (0.0, 0.0),
) -> tuple[Piece, ...]:
    """The seconds of `exchange.layers` folded into the units of `sharding.units`.

    A layer belongs to the innermost unit around it. A unit without a layer of its own (norms) is a piece of no
    seconds before the next unit's first. With one rank there is nothing to send. checkpointing: that of the layers;
    with "full" a block of several units has its recomputation apart from its backward. copies: what copies of a unit
    add to its first piece, in forward and in backward, by its name and its bytes.
    """
    layers = Layers.of(layers)
    named, found = {unit.name: unit for unit in cut}, []
    of_rows: dict[tuple, tuple[float, float, float, float]] = {}
    folding = tuple(named), checkpointing == "full"
    if folding not in layers.known:
        layers.known[folding] = _folded(layers, *folding)
    for name, forward, backward, recompute, first in layers.known[folding]:
        sent = (0.0,) * 4
        if first:
            rows = tuple(named[name].rows)  # those of blocks are alike
            sent = of_rows[rows] = of_rows.get(rows) or _sent(named[name], sharding)
        more = copies(name, *sent[:2])
        found.append(Piece(name, forward + more[0], backward + more[1], *sent, recompute))
    return tuple(found)


def _folded(layers: tuple[Layer, ...], names: tuple[str, ...], recompute: bool) -> tuple[tuple, ...]:
    """By piece: (unit's name, seconds of forward, of backward, of a block's recomputation, whether it is the unit's
    first piece)."""
    visits: list[list] = []  # [unit's name, forward, backward, recomputation]
    known = set(names)
    for layer in layers:
        name = _innermost(_module(layer.name), known)
        if not visits or visits[-1][0] != name:
            visits.append([name, 0.0, 0.0, 0.0])
        visits[-1][1] += layer.forward_seconds
        visits[-1][2] += layer.backward_seconds
    follow = None
    seen = {name for name, *_ in visits}
    for unit in reversed(names):
        if unit not in seen:
            position = next((i for i, visit in enumerate(visits) if visit[0] == follow), len(visits))
            visits.insert(position, [unit, 0.0, 0.0, 0.0])
        follow = unit
    if recompute:
        _recomputed(visits)
    firsts = {name: i for i, (name, *_) in reversed([*enumerate(visits)])}
    return tuple([(*visit, firsts[visit[0]] == i) for i, visit in enumerate(visits)])


def _recomputed(visits: list[list]) -> None:
    """`exchange.layers` has a block's recomputation in its last backward: take it out, give each piece its own."""
    for rows in runs_of_blocks(name for name, *_ in visits).values():
        repeated = fsum(visits[i][1] for i in rows)
        for i in rows:
            visits[i][2] = max(0.0, visits[i][2] - (repeated if i == rows[-1] else 0.0))
            visits[i][3] = visits[i][1]


def _module(layer: str) -> str:
    """The module that computes a layer of `exchange.layers`."""
    if not layer.startswith("block "):
        return layer
    _, i, name = layer.split()
    return f"blocks.{i}.{'mlp' if name in ('up', 'gate', 'down') else 'attention'}.{name}"


def _innermost(module: str, named: Collection[str]) -> str:
    while module and module not in named:
        module = module.rpartition(".")[0]
    if module not in named:
        raise ValueError("a layer lies in none of these units: take units and layers of the same shape")
    return module


def _sent(unit: Unit, sharding: Sharding) -> tuple[float, float, float, float]:
    shard, reduce = unit.shard(sharding.ranks), DTYPES[sharding.reduce]
    padded = shard * sharding.ranks if sharding.ranks > 1 else 0
    return (padded * DTYPES[sharding.parameter], padded * reduce, shard * reduce, 4.0 * unit.own(sharding.ranks))


def fsdp_step(
    work: Sequence[Piece],
    gather_seconds: Callable[[float], float],
    scatter_seconds: Callable[[float], float],
    *,
    reshard: bool | int = True,
    reshard_root: bool = False,
    prefetch: int = 1,
    backward_prefetch: int | None = None,
    overlap: bool = True,
    accumulation: int = 1,
    sync_every_pass: bool = True,
    reduce_across: Callable[[float], float] | None = None,
    copy_seconds: Callable[[float], float] | None = None,
    regather_seconds: Callable[[float], float] | None = None,
    update_seconds: float = 0.0,
    contention: float = 0.0,
) -> FsdpTimeline:
    """One step of FSDP2 (torch's `fully_shard`): `accumulation` passes, one update.

    gather_seconds, scatter_seconds: of an all-gather and a reduce-scatter of a unit, by its whole bytes.
    reshard: free a unit after its forward and gather it again (True), keep it (False), or gather it again in a group
    of that many ranks, which takes regather_seconds. The root is kept, unless reshard_root.
    prefetch: units ahead. In forward the gather of a unit may start when the unit prefetch + 1 before it starts to
    compute (torch's default, 1, is this, and so is `set_modules_to_forward_prefetch` with that many modules); in
    backward, when the unit `backward_prefetch` (None: the same) before it does. 0: when it is needed.
    overlap=False: whoever calls a collective waits for it, as `fully_shard` does with gloo on a CPU.
    sync_every_pass: torch's default; False is `set_requires_gradient_sync(False)` in all passes but the last, which
    skips their reduce-scatters and no gather. reduce_across: an all-reduce of a rank's shard over the replicas
    (hybrid sharding), on a stream of its own. copy_seconds: offload copies shards in before each gather from all
    ranks, and gradients out. contention: the share of its speed that compute loses while a collective runs.

    Gathers and reduce-scatters share a communicator: one at a time, in the order of issue. Compute waits for the
    reduce-scatter before the one it is about to start. A pass ends when all gradients are reduced. Not in it:
    stragglers, launches, copies within the device. Raises ValueError, in one line, for values that cannot be.
    """
    work = tuple(work)
    backward_units = prefetch if backward_prefetch is None else backward_prefetch
    _check(work, reshard, regather_seconds, accumulation)
    _check_rest(
        overlap=overlap,
        sync_every_pass=sync_every_pass,
        reshard_root=reshard_root,
        prefetch=prefetch,
        backward_prefetch=backward_units,
        update_seconds=update_seconds,
        contention=contention,
    )
    regather = regather_seconds if reshard is not True and reshard is not False else None
    wires = Wires(
        gather_seconds,
        scatter_seconds,
        reduce_across,
        copy_seconds,
        regather,
        reshard is False,
        not reshard_root,
        prefetch,
        backward_units,
        overlap,
        contention,
    )
    plan = Plan(work)
    quiet = Run(plan, wires, sync=False).run() if accumulation > 1 and not sync_every_pass else None
    synced = Run(plan, wires, sync=True).run()
    return _timeline(work, [quiet or synced] * (accumulation - 1) + [synced], update_seconds)


def _timeline(work: tuple[Piece, ...], runs: list[Run], update_seconds: float) -> FsdpTimeline:
    time, passes = 0.0, []
    for run in runs:
        passes.append((time, time + run.time))
        time += run.time
    spans = tuple(tuple(run.spans) for run in runs)
    compute, sent, gathers, scatters = _totals(spans)
    waits = {kind: fsum(run.waits[kind] for run in runs) for kind in ("gather", "reduce")}
    seconds, exposed = time + update_seconds, fsum(waits.values())
    return FsdpTimeline(
        work, tuple(passes), seconds, compute, sent, exposed, update_seconds, waits, gathers, scatters, spans
    )


def _totals(runs: tuple[tuple[Span, ...], ...]) -> tuple[float, float, int, int]:
    """Seconds of compute and of communication, gathers and reduce-scatters of some passes."""
    compute = fsum(fsum(e - s for lane, _, s, e, *_ in spans if lane == "compute") for spans in runs)
    sent = fsum(fsum(e - s for lane, _, s, e, *_ in spans if lane != "compute") for spans in runs)
    lanes = [span[0] for spans in runs for span in spans]
    return compute, sent, lanes.count("gather"), lanes.count("reduce")


def first_pass(line: FsdpTimeline) -> FsdpTimeline:
    """The first pass of a step alone."""
    runs, (_, end) = line.runs[:1], line.passes[0]
    compute, sent, gathers, scatters = _totals(runs)
    exposed = end - compute
    return FsdpTimeline(line.pieces, line.passes[:1], end, compute, sent, exposed, 0.0, {}, gathers, scatters, runs)


def volume(shape: Shape, sharding: Sharding, reshard_root: bool = False) -> dict[str, float]:
    """Bytes that one rank sends in a step of one pass, by collective, beside what DDP sends for the same model.

    "gather": all units once. "gather again": in backward, those that were not kept. "reduce-scatter", and with
    replicas "all-reduce" of its shard. Each rank of p sends (p - 1)/p of the whole, 2 (p - 1)/p in an all-reduce, by
    any algorithm that sends no more than it must. With n bytes, nothing kept and no padding, the first three add up
    to 3 n (p - 1)/p against DDP's 2 n (p - 1)/p (arXiv 2304.11277, section 3.2.2), where DDP reduces in
    `sharding.reduce`.
    """
    p, replicas, kept_ranks = sharding.ranks, sharding.replicas, sharding.kept_ranks
    wide, reduce = DTYPES[sharding.parameter], DTYPES[sharding.reduce]
    volumes = dict.fromkeys(("gather", "gather again", "reduce-scatter", "all-reduce"), 0.0)
    elements = 0
    for unit, times in alike(shape, sharding):
        elements += times * unit.parameters
        shard = times * unit.shard(p)
        root = not unit.name
        ranks = (p if reshard_root and sharding.reshard is not False else 1) if root else kept_ranks
        volumes["gather"] += (p - 1) * shard * wide
        volumes["gather again"] += (
            (ranks - 1) * shard * p / ranks * wide
        )  # torch cuts what was gathered, padding and all
        volumes["reduce-scatter"] += (p - 1) * shard * reduce
        volumes["all-reduce"] += 2 * (replicas - 1) / replicas * shard * reduce
    total = fsum(volumes.values())
    return volumes | {"total": total, "ddp": 2 * (sharding.world - 1) / sharding.world * elements * reduce}


def _check(work, reshard, regather_seconds, accumulation) -> None:
    if not work or not all(isinstance(piece, Piece) for piece in work):
        raise ValueError("a step needs at least one piece, and each must be a Piece")
    checks.whole("accumulation", accumulation, unit=" of passes")
    if not isinstance(reshard, bool) and (not isinstance(reshard, int) or reshard < 2):
        raise ValueError(f"reshard must be True, False or a number of ranks from 2 up, not {reshard!r}")
    if not isinstance(reshard, bool) and regather_seconds is None:
        raise ValueError("reshard over a smaller group needs regather_seconds, of a gather in that group")


def _check_rest(**values) -> None:
    for name in ("overlap", "sync_every_pass", "reshard_root"):
        checks.flag(name, values[name])
    for name in ("prefetch", "backward_prefetch"):
        if not checks.is_whole(values[name]) or values[name] < 0:
            raise ValueError(f"{name} must be a whole number of units from 0 up, not {values[name]!r}")
    checks.number("update_seconds", values["update_seconds"], 0)
    checks.number("contention", values["contention"], 0, 1)
