"""Activations that the blocks of a model save through a step, without and with recomputation; and the time that each
policy adds to the step. Llama 2 7B, four sequences of 4,096 tokens per GPU, states split among eight H100s."""

from __future__ import annotations

from functools import lru_cache

from scaleout.draw import plot, svg
from scaleout.memory import allocator
from scaleout.memory import recompute as memory
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import Policy
from scaleout.spec.devices import DEVICES, GB
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import knapsack, machine
from scaleout.timing import recompute as timing
from scaleout.timing.job import step

SHAPE, BATCH, SEQ, RECIPE, LAYOUT = PRESETS["llama-2-7b"], 4, 4096, Recipe("bf16-master"), Layout(dp=8, zero=3)
JOB = Job(SHAPE, SEQ, DEVICES["h100-sxm"], cluster(1, 8), BATCH, LAYOUT, RECIPE)
CHEAP = ("norm 1", "copy", "norm 2", "SiLU", "product")  # memory-bound kernels: no matrix multiplication
SEGMENTS = (2, 6, 16)
SHARES = tuple(i / 16 for i in range(17))
HIGH = 250


def sizes() -> Sizes:
    """Of one GPU."""
    return Sizes(SHAPE, BATCH, SEQ, RECIPE, LAYOUT)


def policies() -> dict[str, Policy]:
    """The three policies, the one with the most bytes first."""
    z = sizes()
    return {"all saved": memory.none(z), "cheap recomputed": memory.selective(z, CHEAP), "inputs alone": memory.full(z)}


def profile(policy: Policy) -> list[tuple[float, float]]:
    """(blocks that are done, counted through forward and backward; GB of the blocks' activations)."""
    points, blocks = [(0.0, 0.0)], 0
    for moment in memory.moments(sizes(), policy):
        blocks += moment.phase != "rebuild"
        points.append((float(blocks), moment.held / GB))
    return points


def peak(policy: Policy) -> float:
    """GB at the highest of its moments."""
    return max(size for _, size in profile(policy))


@lru_cache(maxsize=1)
def room() -> float:
    """GB that an H100 has left for the blocks' activations at the loss, after all else."""
    at_loss = account(SHAPE, BATCH, SEQ, RECIPE, LAYOUT, memory.none(sizes())).moments["loss"]
    return (allocator.usable(DEVICES["h100-sxm"].memory_bytes) - sum(at_loss.values())) / GB + peak(
        memory.none(sizes())
    )


def hills(width: float) -> str:
    """Each policy's bytes: up in the forward pass, down in the backward pass, a tooth for each recomputed block."""
    left, blocks = 34.0, SHAPE.layers
    plane = plot.Plane(left, 30, width - left - 4, HIGH - 60, plot.Axis(0, 2 * blocks), plot.Axis(0, 100))
    ticks = [(n, str(n)) for n in (0, 25, 50, 75, 100)]
    marks = [plane.grid("", "GB of the blocks' activations", [(blocks, "loss")], ticks)]
    shown = policies()
    for policy, strong in zip(shown.values(), (0.22, 0.4, 0.95), strict=True):
        points = profile(policy)
        corners = " ".join(f"{svg.num(plane.at_x(x))},{svg.num(plane.at_y(y))}" for x, y in points)
        marks += [
            f'<polygon points="{corners}" fill="{svg.colour("c3")}" fill-opacity="{strong}"/>',
            plane.curve(points, "c3", 1.5),
        ]
    for name, policy in shown.items():
        level = plane.at_y(profile(policy)[blocks][1]) + (
            22 if name == "cheap recomputed" else -6
        )  # below the line of what is free
        words = f"{name}: {profile(policy)[blocks][1]:.1f}"
        marks.append(svg.text(plane.at_x(blocks), level, words, anchor="middle", size=svg.SMALL, bold=True, halo=True))
    level, words = plane.at_y(room()), f"free: {room():.0f}"
    marks += [
        svg.line(plane.left, level, plane.right, level, "accent", 1.5, "5 3"),
        svg.text(plane.left + 4, level - 5, words, fill="accent", size=svg.SMALL, bold=True, halo=True),
    ]
    marks += [
        svg.text(
            plane.left + part * plane.width,
            plane.bottom + plot.TICK,
            words,
            anchor="middle",
            fill="muted",
            size=svg.SMALL,
        )
        for words, part in (("forward", 0.25), ("backward", 0.75))
    ]
    label = "Activations of 32 blocks through the forward and the backward pass: " + "; ".join(
        f"{name}, {profile(policy)[blocks][1]:.1f} GB at the loss" for name, policy in shown.items()
    )
    return svg.figure(width, plane.bottom + 26, "".join(marks), label)


# --- what it costs ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def costs() -> dict[str, list[tuple[float, float]]]:
    """(per cent that the step is longer, GB that the blocks hold at most) of three ways: tensors, the cheapest first;
    whole blocks; segments of so many blocks."""
    z, rank = sizes(), machine.from_datasheet(JOB)
    tiles, seconds = timing.budgets(JOB, rank, SHARES, knapsack.greedy), timing.lengthened(step(JOB), rank)
    blocks = [
        Policy(tuple(memory.names(z) if i < n else frozenset() for i in range(SHAPE.layers)))
        for n in range(0, SHAPE.layers + 1, 4)
    ]
    segments = [memory.segments(z, k) for k in SEGMENTS]
    share = lambda policy: seconds(timing.again_seconds(JOB, rank, policy)) / seconds(0.0) - 1  # noqa: E731
    return {
        way: [(100 * share(policy), peak(policy)) for policy in policies]
        for way, policies in (("tiles", tiles), ("blocks", blocks), ("segments", segments))
    }


def ways(width: float) -> str:
    """GB against added time: a curve for tensors, a line for whole blocks, points for segments."""
    curves, left = costs(), 34.0
    plane = plot.Plane(left, 30, width - left - 14, HIGH - 76, plot.Axis(0, 36), plot.Axis(0, 90))
    marks = [
        plane.grid("added step time, %", "peak GB of the blocks' activations"),
        plane.curve(curves["blocks"], "muted", 1.5, "5 3"),
        plane.curve(curves["tiles"], "c3", 2.5),
        plane.dots(curves["segments"], "ink", 3.5),
    ]
    x, y = curves["blocks"][3]
    marks.append(
        svg.text(plane.at_x(x) + 8, plane.at_y(y) - 4, "whole blocks", size=svg.SMALL, fill="muted", halo=True)
    )
    x, y = next(point for point in curves["tiles"] if point[0] < 11)
    corner = plane.at_x(x) - 8, plane.at_y(y) + 16
    marks.append(svg.text(*corner, "cheapest first", anchor="end", size=svg.SMALL, bold=True, halo=True))
    for k, (x, y) in zip(SEGMENTS, curves["segments"], strict=True):
        corner = plane.at_x(x) - 9, plane.at_y(y) + 4
        name = f"segments of {k}" if k == SEGMENTS[-1] else str(k)
        marks.append(svg.text(*corner, name, anchor="end", size=svg.SMALLEST, halo=True))
    label = (
        "Peak memory against added step time: the curve for the cheapest tensors first lies below the line for whole "
        "blocks; the points for segments lie above the end of both."
    )
    return svg.figure(width, plane.bottom + 40, "".join(marks), label)
