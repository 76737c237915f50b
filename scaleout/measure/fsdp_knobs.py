"""The options of FSDP in one launch: peak memory, collectives and step time for a grid of them, with predictions."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from functools import partial
from itertools import product

from scaleout.lab import fsdp, session
from scaleout.lab.text import progress
from scaleout.measure.fsdp_ledger import measured
from scaleout.measure.peak import timed
from scaleout.memory.accounts import account
from scaleout.memory.fsdp import collectives, fsdp_account
from scaleout.parallel.fsdp_ways import FSDPWay

KNOBS = {
    "wrap": ("model", "block", "layer"),
    "reshard": ("true", "false"),
    "prefetch": (0, 1, 2),
    "offload": (False, True),
    "checkpointing": ("none", "full"),
    "precision": ("fp32", "bf16"),
}
TURNS, STEPS = 2, 3  # every setting is built and run in each turn, for so many steps; the first is not timed


def chosen(text: str) -> tuple[str, ...]:
    """The knobs of --sweep. ValueError for others."""
    names = tuple(dict.fromkeys(text.split(",")))
    wrong = [name for name in names if name not in KNOBS]
    if wrong:
        raise ValueError(f"--sweep {text}: {wrong[0]!r} is no knob: use some of {', '.join(KNOBS)}")
    return names


def refuse(s, o) -> None:
    """ValueError for options that could not work together, before any work."""
    if o.sweep:
        chosen(o.sweep)
        if s.world == 1 or o.trace or o.via != "torch":
            raise ValueError(
                "--sweep is about fully_shard on several ranks, without --trace: use torchrun --nproc-per-node 2"
            )
    if o.via == "accelerate-naive" and (o.save or o.trace):
        raise ValueError("--via accelerate-naive only shows what was built: leave out --save and --trace")
    if o.trace and s.world == 1:
        raise ValueError("--trace is about several ranks: use torchrun --nproc-per-node 2")
    if o.clip is not None and o.offload and s.device.type == "cuda":
        raise ValueError(
            "--clip with --offload: the gradient is in CPU memory, where NCCL cannot reduce it: leave one out"
        )


def memory(s, o, cut, batch):
    """({kind: bytes} of rank 0 at the peak of a step of fully_shard, [(label, fullest bytes, unsharded units)]
    from one unshard or reshard to the next). Collective; the same on every rank."""
    way = FSDPWay(s, o.shape, "torch", cut, o.checkpointing, o.lr, o.seed, o.clip)
    for _ in range(2):  # lazily made: the optimizer's state, gathered storages
        way.step([batch])
    session.reset_allocator(s)
    peak, events = measured(way, batch)
    peak = {kind: int(s.largest(size if s.main else 0)) for kind, size in peak.items()}
    return peak, [
        (f"{moment}: {action} {unit or ('root' if action in ('gather', 'free') else '')}".rstrip(), size, whole_bytes)
        for moment, action, unit, size, _, whole_bytes in events
    ]


def settings(o, names):
    """[(name, options)] of the grid, without those that cannot differ: with one unit, the root, there is nothing to
    reshard and nothing to prefetch."""
    variants = {}
    for values in product(*(KNOBS[name] for name in names)):
        variant = replace(o, **dict(zip(names, values, strict=True)))
        effective = replace(variant, reshard="true", prefetch=0) if variant.wrap == "model" else variant
        label = ", ".join(
            f"{name} {str(getattr(variant, name)).lower()}"
            for name in names
            if variant.wrap != "model" or name not in ("reshard", "prefetch")
        )
        variants.setdefault(effective, (label, variant))
    return list(variants.values())


def sweep(lab) -> None:
    """Walk the grid of --sweep, say the table, keep the Record. lab: lab.runner.Lab.

    One setting is there at a time, so that a large one fits; the turns alternate, so that a busy moment of the machine
    hits all alike.
    """
    s, o = lab.s, lab.o
    grid = [("DDP: all on every rank", o, "ddp"), *((name, q, "torch") for name, q in settings(o, chosen(o.sweep)))]
    rows = [{"name": name, "seconds": []} for name, *_ in grid]
    for turn in progress(range(TURNS * len(grid)), "sweep", s.main):
        i = turn % len(grid)
        _visit(s, grid[i][1], grid[i][2], rows[i], partial(lab.batches, o=grid[i][1]), first=turn < len(grid))
    steps = {row["name"]: row["seconds"] for row in rows}
    rows = [row | {"seconds": statistics.median(row["seconds"])} for row in rows]
    s.say("\n" + fsdp.sweep(rows))
    _compare(lab, rows)
    lab.report(_record(lab, rows, steps), "", way="sweep")


def _visit(s, q, via, row, batches, first) -> None:
    """Build one setting, time its steps; on the first visit count its collectives and its bytes too."""
    cut = q.sharding(s.world)
    way = FSDPWay(s, q.shape, via, cut, q.checkpointing, q.lr, q.seed, q.clip)
    for step in range(STEPS):
        share = batches(step)
        seconds, _ = timed(s, lambda share=share: way.step(share, q.sync_every_pass))
        if step:
            row["seconds"].append(seconds)
    if not first:
        return
    share = batches(STEPS)
    row |= way.counted(share, q.sync_every_pass)
    way.update()
    session.reset_allocator(s)
    peak, _ = measured(way, share[0])
    row |= {"peak": int(s.largest(sum(peak.values()) if s.main else 0)), "wanted": _wanted(s, q, cut, via)}
    gathers = collectives(q.shape, cut, q.recipe)["all_gather"]["count"] if via == "torch" else 0
    row["wanted_gathers"] = gathers * q.accumulation


def _wanted(s, q, cut, via) -> int:
    """Peak bytes of rank 0 by the pure model. DDP's buckets are a second set of gradients."""
    if via == "torch":
        return fsdp_account(q.shape, q.micro_batch, q.seq, q.recipe, cut, s.device.type).peak_bytes
    plain = account(q.shape, q.micro_batch, q.seq, q.recipe)
    return plain.peak_bytes + plain.states["gradients"]


def _compare(lab, rows) -> None:
    """Add peaks and all-gathers of all settings, predicted and measured, and their checks."""
    for row in rows:
        lab.predict(f"peak bytes, {row['name']}", row["wanted"], row["peak"])
        lab.predict(f"all-gathers per step, {row['name']}", row["wanted_gathers"], row["gathers"])
    peaks = ([row[name] for row in rows] for name in ("wanted", "peak"))
    lab.check_prediction("peaks within 2% of the prediction", *peaks)
    wrong = sum(row["wanted_gathers"] != row["gathers"] for row in rows)
    lab.check("settings whose all-gathers are not as predicted", wrong, 0.0)


def _record(lab, rows, steps):
    """One Record for the whole grid; its step_seconds are those of DDP, the baseline."""
    o, cut = lab.o, lab.o.sharding(lab.s.world)
    lab.skip("losses: --sweep compares memory and time")
    lab.series = {f"seconds per step, {name}": seconds for name, seconds in steps.items()}
    return lab.record(
        steps[rows[0]["name"]],
        [],
        recipe=asdict(o.recipe) | {f"sharding: {k}": v for k, v in asdict(cut).items()},
        batch=o.micro_batch * lab.s.world * o.accumulation,
        warmup_steps=0,
        peak_memory={row["name"]: row["peak"] for row in rows},
    )
