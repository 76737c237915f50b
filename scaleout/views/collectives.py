"""An all-reduce step by step, and the time of each algorithm against the size of the message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from scaleout import chunk_grid, collectives, svg
from scaleout.algorithms import Cost
from scaleout.hardware import SWITCHES_REACH, link
from scaleout.plot import Axis, Plane
from scaleout.step import WIRE_EFFICIENCY
from scaleout.topology import Cluster, Wire, wire
from scaleout.views import guess, play, select, slider

TITLE = "All-reduce, step by step and by size"

COLOURS = {
    "ring": "c1", "tree": "c2", "hierarchical": "c3", "halving-doubling": "c4", "in-network": "c6", "naive": "c8",
}  # fmt: skip
NAMES = {
    "ring": "ring", "tree": "double tree", "hierarchical": "hierarchical", "halving-doubling": "halving-doubling",
    "in-network": "switches that add", "naive": "naive",
}  # fmt: skip

NODE = 8  # GPUs of a node
# By name: (GPUs in a node at most, link inside, link between nodes, adapters a node, words).
LINKS = {
    "node-ib": (NODE, "nvlink4", "ib-ndr", NODE, "nodes of 8 H100, InfiniBand for each GPU"),
    "node-100g": (NODE, "nvlink4", "ethernet-100g", 1, "nodes of 8 H100, 100 Gbit/s for each node"),
    "rack-ib": (72, "nvlink5", "ib-ndr", 72, "racks of 72 on NVLink 5, InfiniBand for each GPU"),
    "pcie": (NODE, "pcie5", "ethernet-100g", 1, "nodes of 8 on PCIe 5, 100 Gbit/s for each node"),
    "ib-ndr": (1, "pcie5", "ib-ndr", 1, "single GPUs, InfiniBand 400 Gbit/s"),
    "ethernet-100g": (1, "pcie5", "ethernet-100g", 1, "single GPUs, Ethernet 100 Gbit/s"),
    "ethernet-10g": (1, "pcie5", "ethernet-10g", 1, "single GPUs, Ethernet 10 Gbit/s"),
}
OWN = "own"  # alpha and rate from the reader's own calibration

LARGEST_MB, SMALLEST_MB = 10_000.0, 0.001
SHOWN = ("naive", "ring", "tree", "halving-doubling", "in-network")  # in the grid: hierarchical needs nodes

CONTROLS = (
    guess(label="Your guess: how much does one rank of the ring send to all-reduce this message?", unit="GB",
          answer="ring_sent_gb"),
    select("algorithm", "Algorithm in the grid", "ring", [(name, NAMES[name]) for name in SHOWN]),
    slider("ranks", "Ranks in the grid", 4, 2, 8),
    play("step", "Steps done", 0, 0, 14),
    slider("size", "Message", 1000.0, SMALLEST_MB, LARGEST_MB, step=0.001, unit="MB", log=True),
    slider("world", "Ranks in the curves", 32, 2, 1024, log=True),
    select("link", "Joined by", "node-ib", [*((key, words) for key, (*_, words) in LINKS.items()),
                                            (OWN, "my own: alpha and rate below")]),
    slider("alpha", "alpha of my own link", 25.0, 0.1, 100_000.0, step=0.1, unit="µs", log=True),
    slider("rate", "rate of my own link", 12.5, 0.01, 1000.0, step=0.01, unit="GB/s", log=True),
)  # fmt: skip

# The reader's own timings, as pairs (bytes, seconds): drawn while the link is "own". `from_profile` fills it.
MEASURED: list[tuple[float, float]] = []

WIDTH = 480
GRID = (*(m * 10**k for k in range(3, 10) for m in (1.0, 1.8, 3.2, 5.6)), 1e10)  # bytes that curves go through


def from_profile(profile: dict) -> dict:
    """Parameters that show this view on the machine of a profile (see `lab_machine`), with its timings as points.

    The profile's line for all_reduce becomes the wire of a ring that would take that long. ValueError where the
    profile is of one process.
    """
    line = profile["collectives"].get("all_reduce")
    if line is None:
        raise ValueError("this machine profile holds no all_reduce: calibrate it with more than one process")
    found = collectives.ring_wire(line["alpha_seconds"], line["seconds_per_byte"], profile["world"])
    MEASURED[:] = [(one["bytes"], one["seconds"]) for one in line["points"]]
    return {
        "link": OWN, "world": profile["world"],
        "alpha": min(100_000.0, max(0.1, found.alpha_seconds * 1e6)),
        "rate": min(1000.0, max(0.01, found.bytes_per_s / 1e9)),
    }  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """The cluster of the curves, and the algorithms that make sense on it."""

    cluster: Cluster
    names: tuple[str, ...]
    words: str
    switches: float = 1.0  # the rate that is left of the wire's while switches add

    def cost(self, name: str, size: float) -> Cost:
        on = self.cluster
        if name == "in-network":
            on = replace(on, inside=replace(on.inside, bytes_per_s=on.inside.bytes_per_s * self.switches))
        return collectives.cost_on("all_reduce", name, size, on)


def setting(key: str, world: int, alpha: float, rate: float) -> Setting:
    """Ranks fill as few nodes as hold them, evenly: where that does not come out, every node is priced as full."""
    flat = ("naive", "ring", "tree", "halving-doubling")
    if key == OWN:
        own = Wire(alpha * 1e-6, rate * 1e9)
        return Setting(Cluster(1, world, own, own, 1), flat, f"{world:,} ranks on your own link")
    most, inside, across, nics, _ = LINKS[key]
    nodes = ceil(world / most)
    gpus = ceil(world / nodes)
    adds = nodes == 1 and inside in SWITCHES_REACH
    on = Cluster(nodes, gpus, wire(inside, WIRE_EFFICIENCY), wire(across, WIRE_EFFICIENCY), nics, adds)
    names = flat + (("hierarchical",) if min(nodes, gpus) > 1 else ()) + (("in-network",) if adds else ())
    each = f" of {gpus} GPUs" if gpus > 1 else " of one GPU"
    words = f"{gpus:,} GPUs on {link(inside).name}" if nodes == 1 else f"{nodes:,} nodes{each} on {link(across).name}"
    return Setting(on, names, words, SWITCHES_REACH.get(inside, 1.0) / WIRE_EFFICIENCY)


@lru_cache(maxsize=32)
def curves(on: Setting) -> tuple[dict[str, list[float]], float | None]:
    """Seconds at each size of GRID by algorithm; bytes, to three digits, from which on the ring beats the tree.

    None where one of the two always does. Kept, so that a step of the grid prices nothing again.
    """
    found = {name: [on.cost(name, size).seconds for size in GRID] for name in on.names}
    ahead = [ring < tree for ring, tree in zip(found["ring"], found["tree"], strict=True)]
    at = next((i for i in range(1, len(GRID)) if ahead[i] and not ahead[i - 1]), None)
    if at is None:
        return found, None
    low, high = GRID[at - 1], GRID[at]
    while high / low > 1.002:
        middle = (low + high) / 2
        ring_ahead = on.cost("ring", middle).seconds < on.cost("tree", middle).seconds
        low, high = (low, middle) if ring_ahead else (middle, high)
    return found, float(f"{high:.3g}")


def draw(params: dict) -> dict:
    """The grid after the chosen number of steps, and beneath it the curves with the chosen size marked."""
    shown = chunk_grid.frames(params["algorithm"], params["ranks"])
    step = min(params["step"], shown.steps)
    on = setting(params["link"], params["world"], params["alpha"], params["rate"])
    size = params["size"] * 1e6
    costs = {name: on.cost(name, size) for name in on.names}
    values = _values(on, size, costs, shown, step)
    points = MEASURED if params["link"] == OWN else []
    return {
        "svg": _picture(shown, step, on, size, costs, values, points),
        "sentence": _sentence(shown, step, on, size, costs, values),
        "values": values,
    }


def _values(on: Setting, size: float, costs: dict, shown: chunk_grid.Frames, step: int) -> dict:
    winner = min(on.names, key=lambda name: costs[name].seconds)
    seconds = costs[winner].seconds
    p = on.cluster.ranks
    return {
        "winner": winner,
        "seconds": seconds,
        "busbw_gb_per_s": collectives.bus_bandwidth("all_reduce", size, p, seconds) / 1e9,
        "algbw_gb_per_s": collectives.algorithm_bandwidth(size, seconds) / 1e9,
        "latency_share": costs[winner].latency_seconds / seconds,
        "sent_gb": costs[winner].sent_bytes / 1e9,
        "ring_sent_gb": costs["ring"].sent_bytes / 1e9,
        "seconds_by_algorithm": {name: one.seconds for name, one in costs.items()},
        "crossover_bytes": curves(on)[1],
        "curve_ranks": p,
        "steps": shown.steps,
        "step": step,
        "complete_cells": sum(count == shown.ranks for row in shown.counts[step][: shown.ranks] for count in row),
        "grid_sent_share": shown.busiest() / shown.chunks,
    }


# --- the sentence ---------------------------------------------------------------------------------------------


def _sentence(shown: chunk_grid.Frames, step: int, on: Setting, size: float, costs: dict, values: dict) -> str:
    winner, at = values["winner"], values["crossover_bytes"]
    latency = values["latency_share"]
    share = "under 1%" if latency < 0.01 else f"{latency:.0%}" if latency < 0.995 else "nearly all"
    second = min((name for name in on.names if name != winner), key=lambda name: costs[name].seconds)
    found = (
        f"{on.words}: for {_bytes(size)} {_CALLED[winner]} fastest, {_time(values['seconds'])}, of which {share} is "
        f"latency. Bus bandwidth {svg.quantity(values['busbw_gb_per_s'])} GB/s. Next: {NAMES[second]}, "
        f"{_time(costs[second].seconds)}."
    )
    if winner == "in-network":
        found += " The switches add, so a GPU sends little more than the message, and busbw may exceed the link."
    elif winner == "halving-doubling":
        found += " NCCL has no halving-doubling: it chooses between tree and ring."
    if at:
        found += f" From {_bytes(at)} on the ring beats the tree."
    grid = f"In the grid of {shown.ranks} ranks, {_step_words(shown, step)}; by the end the busiest rank sends"
    return f"{found} {grid} {svg.quantity(values['grid_sent_share'])} times the message."


_CALLED = {name: f"the {words} is" for name, words in NAMES.items()} | {
    "halving-doubling": "halving-doubling is", "in-network": "the switches are", "naive": "gather and broadcast is",
    "hierarchical": "the hierarchical all-reduce is",
}  # fmt: skip


def _step_words(shown: chunk_grid.Frames, step: int) -> str:
    if step == 0:
        return f"none of {shown.steps} steps is done"
    return f"step {step} of {shown.steps} ({shown.phase(step)}) is done"


_UNITS = (("s", 1, 1), ("ms", 1e3, 1e-3), ("µs", 1e6, 0))


def _time(seconds: float) -> str:
    """Seconds for people."""
    unit, factor = next((u, f) for u, f, least in _UNITS if seconds >= least)
    return f"{svg.quantity(seconds * factor)} {unit}"


def _power(seconds: float) -> str:
    """A power of ten of seconds, for an axis: 10 ms."""
    unit, factor = next((u, f) for u, f, least in _UNITS if seconds >= least * 0.999)
    return f"{seconds * factor:.0f} {unit}"


def _bytes(size: float) -> str:
    """Bytes for people, in powers of ten."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
    unit, factor = next((u, f) for u, f in units if size >= 0.9995 * f)  # 999.6 kB are 1 MB to three digits
    return f"{size / factor:.3g} {unit}"


# --- the picture ----------------------------------------------------------------------------------------------


def _picture(
    shown: chunk_grid.Frames, step: int, on: Setting, size: float, costs: dict, values: dict, points: list,
) -> str:  # fmt: skip
    done = f"step {step} of {shown.steps}, {shown.phase(step)}" if step else f"before the first of {shown.steps} steps"
    title = f"{NAMES[shown.algorithm].capitalize()}, {shown.ranks} ranks: {done}"
    keys, height = svg.legend(4, 30, WIDTH - 8, [("c5", "partial sum"), ("c3", "sum of all"), ("accent", "moved")])
    grid, below = chunk_grid.draw(shown, step, 30 + height, WIDTH - 4)
    top = below + 44
    lines, at = curves(on)
    reach = _decades([one for some in lines.values() for one in some])
    plane = Plane(58, top, WIDTH - 80, 190, Axis(GRID[0], GRID[-1], True), Axis(*reach, True))
    body = [svg.text(4, 18, title, bold=True), keys, grid, _plane(plane)]
    for name in on.names:
        wide = 3.5 if name == values["winner"] else 2
        body.append(plane.curve(zip(GRID, lines[name], strict=True), COLOURS[name], wide, "", NAMES[name]))
    body.append(plane.rule(size, "accent", _bytes(size)))
    if at:
        body.append(plane.dots([(at, on.cost("ring", at).seconds)], "ink", 5, f"tree and ring cross at {_bytes(at)}"))
    body.append(plane.dots([(size, values["seconds"])], COLOURS[values["winner"]], 5.5, _time(values["seconds"])))
    items = [(COLOURS[name], f"{NAMES[name]} {_time(costs[name].seconds)}") for name in on.names]
    if at:
        items.append(("ink", f"tree = ring at {_bytes(at)}"))
    if points:
        body.append(plane.dots(points, "c7", 4, "measured here"))
        items.append(("c7", "measured here"))
    curve_keys, more = svg.legend(4, plane.bottom + 46, WIDTH - 8, items, 2)
    label = (
        f"{title}. Beneath, seconds of an all-reduce against bytes for {len(on.names)} algorithms, both axes "
        f"logarithmic; {NAMES[values['winner']]} is fastest at {_bytes(size)}."
    )
    return svg.figure(WIDTH, plane.bottom + 46 + more, "".join([*body, curve_keys]), label)


def _decades(values: list[float]) -> tuple[float, float]:
    """Powers of ten around all values."""
    low = high = 1e-9
    while low * 10 <= min(values):
        low *= 10
    while high < max(values):
        high *= 10
    return low, high


def _plane(plane: Plane) -> str:
    x = [(10.0**k, _bytes(10.0**k)) for k in range(3, 11)]
    ticks = [(value, _power(value)) for value in plane.y.ticks()]
    return plane.grid("message", "time of an all-reduce", x, ticks)
