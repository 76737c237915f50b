"""Three wrappings next to each other: when each unit is unsharded, the memory that units take, and exposed
communication. Llama 3 8B on sixteen H100s, two sequences of 4,096 tokens per GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scaleout.draw import fsdp_hill, fsdp_units, svg
from scaleout.draw.plot import TICK, Axis, Plane
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.transformer import PRESETS
from scaleout.timing import fsdp_lives
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.job import Step
from scaleout.timing.job import step as step_of
from scaleout.words.amounts import took

SHAPE, BATCH, SEQ, RANKS = PRESETS["llama-3-8b"], 2, 4096, 16
NAMES = {"model": "The whole model", "block": "Each block", "layer": "Each matrix"}
KINDS = ("gathered", "buffers", "whole gradients")  # of units while they are unsharded
STRIP, HILL = 66, 84
GIB, TOP = 2**30, 45.0  # of the axis of what units take, in GiB


@lru_cache(maxsize=3)
def step(wrap: str) -> tuple[FsdpAccount, Step]:
    """Memory of a GPU, and the step time under torch.compile."""
    job = Job(
        SHAPE,
        SEQ,
        DEVICES["h100-sxm"],
        topology.cluster(2, 8),
        BATCH,
        Layout(dp=RANKS, zero=3),
        Recipe("autocast-bf16"),
        program("compiled"),
        Replicas(wrap=wrap),
    )
    return fsdp_account(SHAPE, BATCH, SEQ, Recipe("fp32"), job.sharding), step_of(job)


def most(wrap: str) -> float:
    """Peak GiB of unsharded weights, their buffers, and gradients not yet reduced."""
    return max(sum(moment.held[kind] for kind in KINDS) for moment in step(wrap)[0].ends) / GIB


def three(width: float) -> str:
    """A panel for each: beside each other, on a phone beneath."""
    side = svg.broad(width)
    gap = 28.0 if side else 14.0
    wide = (width - 2 * gap) / 3 if side else width
    tall = 64 + STRIP + HILL + 44
    panels = [_panel(wrap, wide) for wrap in NAMES]
    corners = [(k * (wide + gap), 0.0) if side else (0.0, k * (tall + gap)) for k in range(3)]
    body = "".join(svg.group(x, y, panel) for (x, y), panel in zip(corners, panels, strict=True))
    summary = "; ".join(
        f"{NAMES[wrap].lower()}: units take up to {most(wrap):.1f} GiB, {100 * _waits(wrap):.0f}% of the step exposed"
        for wrap in NAMES
    )
    label = f"When each unit is unsharded, and beneath it the memory that units take, in three wrappings. {summary}."
    return svg.figure(width, tall if side else 3 * tall + 2 * gap, body, label)


def _waits(wrap: str) -> float:
    time = step(wrap)[1]
    return _timeline(time).exposed_seconds / time.seconds


def _timeline(time: Step) -> ShortTimeline:
    assert isinstance(time.timeline, ShortTimeline)  # FSDP's, for a job with ZeRO stage 3
    return time.timeline


def _panel(wrap: str, width: float) -> str:
    account, time = step(wrap)
    line = _timeline(time).updated(time.parts["update"])
    rows, count = fsdp_lives.lives(line, fsdp_units.ROWS)
    strip = fsdp_units.Strip(0, 42, width, STRIP, time.seconds)
    lane_strip = fsdp_units.Strip(0, strip.y + STRIP + 2, width, 0, time.seconds)
    plane = Plane(0, lane_strip.y + 34, width, HILL, Axis(0, time.seconds), Axis(0, TOP))
    units = f"{count} unit{'s' if count > 1 else ''}, {line.gathers} all-gather{'s' if line.gathers > 1 else ''}"
    words = f"units take up to {most(wrap):.1f} GiB"
    floor = svg.line(0, plane.bottom, width, plane.bottom, "muted")
    return "".join(
        [
            svg.text(0, 13, NAMES[wrap], bold=True),
            svg.text(0, 30, units, size=svg.SMALL, fill="muted"),
            fsdp_units.whole(strip, rows),
            fsdp_units.lanes(line, lane_strip, False, named=False),
            _units(account, line, plane),
            floor,
            svg.text(0, plane.top - 4, words, size=svg.SMALL, halo=True),
            svg.text(
                0,
                plane.bottom + TICK + 2,
                f"{took(time.seconds)}; exposed {100 * _waits(wrap):.1f}%",
                size=svg.SMALL,
                bold=_waits(wrap) > 0.05,
                fill="accent" if _waits(wrap) > 0.05 else "muted",
            ),
        ]
    )


def _units(account: FsdpAccount, line: ShortTimeline, plane: Plane) -> str:
    """The memory that units take, without anything else."""
    rows = [
        (start, end, replace(moment, held={kind: n * (kind in KINDS) for kind, n in moment.held.items()}))
        for start, end, moment in fsdp_hill.placed(account.sampled(3), line)
    ]
    return fsdp_hill.area(fsdp_hill.columns(rows, plane), plane, GIB)
