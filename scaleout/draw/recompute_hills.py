"""What the blocks of a model hold through a step, with everything kept and with parts of it made again; and what each
way to hold less costs the step. Llama 2 7B, four sequences of 4,096 tokens a GPU, states split among eight H100s."""

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
CHEAP = ("norm 1", "copy", "norm 2", "SiLU", "product")  # kernels that wait for memory: no product of matrices
SEGMENTS = (2, 6, 16)
SHARES = tuple(i / 16 for i in range(17))
HIGH = 250


def sizes() -> Sizes:
    """Of one GPU."""
    return Sizes(SHAPE, BATCH, SEQ, RECIPE, LAYOUT)


def policies() -> dict[str, Policy]:
    """The three hills, the highest first."""
    z = sizes()
    return {"everything": memory.none(z), "no cheap part": memory.selective(z, CHEAP), "inputs alone": memory.full(z)}


def held(policy: Policy) -> list[tuple[float, float]]:
    """(blocks that are done, counted through forward and backward; GB of the blocks' activations)."""
    out, done = [(0.0, 0.0)], 0
    for moment in memory.moments(sizes(), policy):
        done += moment.phase != "rebuild"
        out.append((float(done), moment.held / GB))
    return out


def most(policy: Policy) -> float:
    """GB at the highest of its moments."""
    return max(size for _, size in held(policy))


@lru_cache(maxsize=1)
def room() -> float:
    """GB that an H100 has for the blocks' activations, beside all else that is there at the loss."""
    found = account(SHAPE, BATCH, SEQ, RECIPE, LAYOUT, memory.none(sizes())).moments["loss"]
    return (allocator.usable(DEVICES["h100-sxm"].memory_bytes) - sum(found.values())) / GB + most(memory.none(sizes()))


def hills(width: float) -> str:
    """Each policy's hill: up through the forward, down through the backward, with a tooth for each block made again."""
    left, blocks = 34.0, SHAPE.layers
    plane = plot.Plane(left, 30, width - left - 4, HIGH - 60, plot.Axis(0, 2 * blocks), plot.Axis(0, 100))
    ticks = [(n, str(n)) for n in (0, 25, 50, 75, 100)]
    out = [plane.grid("", "GB that the blocks hold", [(blocks, "the loss")], ticks)]
    found = policies()
    for policy, strong in zip(found.values(), (0.22, 0.4, 0.95), strict=True):
        points = held(policy)
        corners = " ".join(f"{svg.num(plane.at_x(x))},{svg.num(plane.at_y(y))}" for x, y in points)
        out.append(f'<polygon points="{corners}" fill="{svg.colour("c3")}" fill-opacity="{strong}"/>')
        out.append(plane.curve(points, "c3", 1.5))
    for name, policy in found.items():
        at = plane.at_y(held(policy)[blocks][1]) + (22 if name == "no cheap part" else -6)  # beneath the room's line
        words = f"{name}: {held(policy)[blocks][1]:.1f}"
        out.append(svg.text(plane.at_x(blocks), at, words, anchor="middle", size=svg.SMALL, bold=True, halo=True))
    at, words = plane.at_y(room()), f"usable: {room():.0f}"
    out += [svg.line(plane.left, at, plane.right, at, "accent", 1.5, "5 3"),
            svg.text(plane.left + 4, at - 5, words, fill="accent", size=svg.SMALL, bold=True, halo=True)]  # fmt: skip
    for words, part in (("forward", 0.25), ("backward", 0.75)):
        out.append(svg.text(plane.left + part * plane.width, plane.bottom + plot.TICK, words, anchor="middle",
                            fill="muted", size=svg.SMALL))  # fmt: skip
    label = "What 32 blocks hold through forward and backward: " + "; ".join(
        f"{name}, {held(policy)[blocks][1]:.1f} GB at the loss" for name, policy in found.items())  # fmt: skip
    return svg.figure(width, plane.bottom + 26, "".join(out), label)


# --- what it costs ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def costs() -> dict[str, list[tuple[float, float]]]:
    """(per cent that the step is longer, GB that the blocks hold at most) of three ways: tiles, the cheapest first;
    whole blocks; segments of so many blocks."""
    z, rank = sizes(), machine.from_datasheet(JOB)
    tiles, seconds = timing.budgets(JOB, rank, SHARES, knapsack.greedy), timing.lengthened(step(JOB), rank)
    blocks = [Policy(tuple(memory.names(z) if i < n else frozenset() for i in range(SHAPE.layers)))
              for n in range(0, SHAPE.layers + 1, 4)]  # fmt: skip
    segments = [memory.segments(z, k) for k in SEGMENTS]
    share = lambda one: seconds(timing.again_seconds(JOB, rank, one)) / seconds(0.0) - 1  # noqa: E731
    return {way: [(100 * share(one), most(one)) for one in found]
            for way, found in (("tiles", tiles), ("blocks", blocks), ("segments", segments))}  # fmt: skip


def ways(width: float) -> str:
    """GB against seconds: a curve for tiles, a line for whole blocks, points for segments."""
    found, left = costs(), 34.0
    plane = plot.Plane(left, 30, width - left - 14, HIGH - 76, plot.Axis(0, 36), plot.Axis(0, 90))
    out = [
        plane.grid("the step is longer by, %", "GB that the blocks hold, at most"),
        plane.curve(found["blocks"], "muted", 1.5, "5 3"), plane.curve(found["tiles"], "c3", 2.5),
        plane.dots(found["segments"], "ink", 3.5),
    ]  # fmt: skip
    x, y = found["blocks"][3]
    out.append(svg.text(plane.at_x(x) + 8, plane.at_y(y) - 4, "all tiles of some blocks", size=svg.SMALL, fill="muted",
                        halo=True))  # fmt: skip
    x, y = next(one for one in found["tiles"] if one[0] < 11)
    at = plane.at_x(x) - 8, plane.at_y(y) + 16
    out.append(svg.text(*at, "cheapest tiles", anchor="end", size=svg.SMALL, bold=True, halo=True))
    for k, (x, y) in zip(SEGMENTS, found["segments"], strict=True):
        at = plane.at_x(x) - 9, plane.at_y(y) + 4
        out.append(svg.text(*at, _segment(k), anchor="end", size=svg.SMALLEST, halo=True))
    label = "GB held against seconds: cheapest tiles first lies below whole blocks; segments lie above the end of both"
    return svg.figure(width, plane.bottom + 40, "".join(out), label)


def _segment(k: int) -> str:
    return f"segments of {k}" if k == SEGMENTS[-1] else str(k)
