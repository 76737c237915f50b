"""Steps of data parallelism under one another on one axis of time: what each computes, and what falls onto its wire."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw import svg
from scaleout.draw.lanes import Lanes
from scaleout.draw.plot import time_axis
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS
from scaleout.timing.ddp import Timeline
from scaleout.timing.job import step
from scaleout.words.amounts import took

TOP = 20  # CSS pixels of a step's name, and as much beneath the last for the axis
LEFT = 4


SEQUENCES = (8, 24)  # of 1,024 tokens, a GPU's in `opening`


def opening(width: float) -> str:
    """GPT-2 XL on sixteen H100s by torch.compile, each with a network card of 400 Gbit/s: fewer tokens than hide the
    all-reduce, and more."""
    nodes = topology.cluster(16, 1, inside="nvlink4", across="ib-ndr", nics=1)
    job = Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], nodes, 1, Layout(dp=16), Recipe(), PROGRAMS["compiled"])
    return draw(width, [(f"{1024 * n:,} tokens per GPU", _timeline(job.other(batch=n))) for n in SEQUENCES])


def _timeline(job: Job) -> Timeline:
    """When a step of data parallelism computes and communicates."""
    timeline = step(job).timeline
    assert isinstance(timeline, Timeline)  # DDP's, for a job without sharding
    return timeline


def draw(width: float, steps: Sequence[tuple[str, Timeline]]) -> str:
    """Each step with its name in bold, as wide as its seconds. ValueError for no steps."""
    if not steps:
        raise ValueError("there is no step to draw")
    until = 1.12 * max(timeline.seconds for _, timeline in steps)
    bar, fall = (22, 40) if svg.broad(width) else (18, 34)
    marks, y = [], 0.0
    for name, timeline in steps:
        lanes = Lanes(timeline, LEFT, y + TOP, width - 2 * LEFT, until, bar, fall)
        marks += [svg.text(LEFT, y + 13, name, bold=True), lanes.draw()]
        y = lanes.bottom + 10
    axis = time_axis(LEFT, y, width - 2 * LEFT, until, y - 4)
    durations = [(name, took(timeline.seconds), took(timeline.exposed_seconds)) for name, timeline in steps]
    summary = "; ".join(f"{name}: {total}, of which {exposed} exposed" for name, total, exposed in durations)
    return svg.figure(width, y + TOP, "".join([*marks, axis]), f"Compute and messages of one step each. {summary}.")
