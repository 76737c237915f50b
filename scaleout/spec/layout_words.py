"""A layout as it is written on a command line, tp=2,pp=2, and which layouts torch's own parts can be composed to.

Those parts are DTensor's styles of tensor parallelism, which come with sequence parallelism and keep what they gather,
`fully_shard` and `torch.distributed.pipelining`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaleout.spec import checks, mesh, pipeline
from scaleout.spec.layout import Layout
from scaleout.spec.slices import check_sequence, check_tensor, check_vocabulary
from scaleout.spec.transformer import Shape

# The words, outermost axis first, and the fields of Layout that they are.
WORDS = {"pp": "pp", "dp": "dp", "cp": "cp", "tp": "tp", "zero": "zero", "m": "micro_batches", "v": "chunks",
         "schedule": "schedule"}  # fmt: skip


def parse(text: str, ranks: int, shape: Shape, zero: int = 3) -> Layout:
    """The layout of so many ranks that "tp=2,pp=2" asks for: dp is what is left, where it is not given; with several
    stages per rank (v) the schedule is interleaved. zero: where the text names none. ValueError, in one line with what
    works, for words that are none, and for a layout of another number of ranks."""
    values: dict[str, Any] = {}  # whole numbers, and the schedule's name
    for word in filter(None, text.replace(" ", "").split(",")):
        name, _, value = word.partition("=")
        if name not in WORDS or name in values or not value:
            raise ValueError(f"{word!r} is no part of a layout: give {', '.join(WORDS)}, each once, as in tp=2,pp=2")
        if name != "schedule" and not (value.isascii() and value.isdigit()):
            raise ValueError(f"{word}: give a whole number, as in {name}=2")
        values[name] = value if name == "schedule" else int(value)
    if values.get("v", 1) > 1:
        values.setdefault("schedule", "interleaved")
    model_ranks = 1
    for axis in ("pp", "cp", "tp"):
        checks.whole(axis, values.get(axis, 1))
        model_ranks *= values.get(axis, 1)
    values.setdefault("dp", max(1, ranks // model_ranks))
    values.setdefault("zero", zero)
    axes = Layout(**{axis: values[axis] for axis in ("pp", "dp", "cp", "tp") if axis in values})
    mesh.refuse(shape, axes, ranks)
    tp = axes.tp > 1
    return Layout(**{WORDS[name]: value for name, value in values.items()}, sequence_parallel=tp, gather_again=not tp)


def written(layout: Layout) -> str:
    """The words of a layout, all but those that say nothing."""
    names = {"pp", "dp", "tp", "zero"} | ({"m"} if layout.m > 1 else set())
    names |= ({"schedule"} if layout.pp > 1 else set()) | ({"v"} if layout.chunks > 1 else set())
    names |= {"cp"} if layout.cp > 1 else set()
    full = replace(layout, micro_batches=layout.m)
    return ",".join(f"{name}={getattr(full, field)}" for name, field in WORDS.items() if name in names)


def refuse(shape: Shape, layout: Layout, ranks: int, seq: int) -> None:
    """ValueError, in one line with the nearest that works, for a layout that torch's parts cannot give these ranks.
    seq: tokens of a sequence."""
    mesh.refuse(shape, layout, ranks)
    mesh.blocks(shape.layers, layout.stages)
    if layout.cp > 1:
        raise ValueError(f"cp {layout.cp}: torch's context parallelism has no place in a pipeline's stages: use cp 1")
    if layout.zero == 1:
        raise ValueError("zero 1: fully_shard splits gradients with the optimizer's state: use zero 2, or 0")
    if pipeline.SCHEDULES[layout.schedule].splits and (layout.tp > 1 or layout.zero == 3):
        raise ValueError(
            f"{layout.schedule} splits the backward, which torch can neither through tensor parallelism "
            "nor where weights are freed in between: use 1f1b, gpipe or interleaved"
        )
    if layout.tp > 1:
        check_tensor(shape, layout.tp)
        check_vocabulary(shape, layout.tp)
        if shape.kv % layout.tp:
            raise ValueError(
                f"ColwiseParallel would cut {shape.kv} key-value heads into {layout.tp} parts: use tp "
                f"{shape.kv} or less"
            )
        check_sequence(seq, layout.tp)


def micro_batches(layout: Layout, batch: int, limit: int | None = None) -> Layout:
    """The layout with the micro-batches of a step of `batch` sequences over all replicas.

    Those that it asks for; else the fewest that fill its pipeline with at most `limit` sequences in one (None: any
    number). ValueError, in one line with what works, where replicas and micro-batches do not divide the batch.
    """
    checks.whole("batch", batch, limit=mesh.MOST_GPUS)
    if batch % layout.dp:
        least = layout.dp * layout.m
        nearest = max(least, round(batch / least) * least)
        raise ValueError(f"dp {layout.dp} does not divide a batch of {batch} sequences: the nearest batch is {nearest}")
    sequences = batch // layout.dp
    fits = [n for n in checks.divisors(sequences) if limit is None or sequences // n <= limit]
    if layout.pp > 1:
        fits = [n for n in fits if pipeline.allowed(layout.schedule, layout.pp, n)]
    count = layout.micro_batches
    if not fits or (count and count not in fits):
        subject = f"m {count}" if count else f"a pipeline of {layout.pp}"
        use = f"use m {checks.nearest(count or layout.m, fits)}" if fits else (f"use a batch of {layout.dp * layout.m}")
        raise ValueError(f"{subject} does not fit {sequences} sequences a replica: {use}")
    return replace(layout, micro_batches=count or fits[0])
