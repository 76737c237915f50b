"""An all-reduce step by step, and the time of each algorithm against the size of the message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from scaleout.collectives import alpha_beta, nccl
from scaleout.collectives.algorithms import Cost
from scaleout.draw import chunk_grid, svg
from scaleout.draw.plot import Axis, Plane
from scaleout.spec.hardware import link
from scaleout.spec.topology import Cluster, Wire, cluster
from scaleout.views import guess, play, select, slider
from scaleout.views.choices import NODE

TITLE = "All-reduce, step by step and by size"

COLOURS = {
    "ring": "c1", "tree": "c2", "hierarchical": "c3", "halving-doubling": "c4", "in-network": "c6", "naive": "c8",
}  # fmt: skip
NAMES = {
    "ring": "ring", "tree": "double tree", "hierarchical": "hierarchical", "halving-doubling": "halving-doubling",
    "in-network": "NVLink switches", "naive": "naive",
}  # fmt: skip

# By name: (GPUs in a node at most, link inside, link between nodes, adapters a node, words).
LINKS = {
    "node-ib": (NODE, "nvlink4", "ib-ndr", NODE, "nodes of 8 H100, InfiniBand for each GPU"),
    "node-100g": (NODE, "nvlink4", "ethernet-100g", 1, "nodes of 8 H100, 100 Gbit/s Ethernet for each node"),
    "pcie": (NODE, "pcie5", "ethernet-100g", 1, "nodes of 8 on PCIe 5, 100 Gbit/s Ethernet for each node"),
    "ib-ndr": (1, "pcie5", "ib-ndr", 1, "single GPUs, InfiniBand 400 Gbit/s"),
    "ethernet-100g": (1, "pcie5", "ethernet-100g", 1, "single GPUs, Ethernet 100 Gbit/s"),
    "ethernet-10g": (1, "pcie5", "ethernet-10g", 1, "single GPUs, Ethernet 10 Gbit/s"),
}
LIBRARY = ("ring", "tree", "in-network")  # what NCCL chooses from
OWN_NAMES = ("naive", "ring", "tree", "halving-doubling")  # on a wire of one's own
TIE = 0.01  # a lead that is not worth a name
OWN = "own"  # alpha and rate from the reader's own calibration

LARGEST_MB, SMALLEST_MB = 10_000.0, 0.001
SHOWN = ("naive", "ring", "tree", "halving-doubling", "in-network")  # in the grid: hierarchical needs nodes

CONTROLS = (
    guess("Eight GPUs of one node all-reduce **1 GB** around a ring. How much does **each** of them send?",
          "ring_sent_gb", "GB", lo=0, hi=2, step=0.025),
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

WIDTH = 480
GRID = (*(m * 10**k for k in range(3, 10) for m in (1.0, 3.2)), 1e10)  # bytes that curves go through


@dataclass(frozen=True)
class Setting:
    """The cluster of the curves, and the algorithms that make sense on it. own: a wire of the reader's, no link."""

    cluster: Cluster
    textbook: tuple[str, ...]  # what no library has, beside what NCCL chooses from
    words: str
    own: bool = False

    def costs(self, size: float) -> dict[str, Cost]:
        """By algorithm, NCCL's own at the protocol that is fastest: first what a library has."""
        if self.own:
            return {name: alpha_beta.cost_on("all_reduce", name, size, self.cluster) for name in OWN_NAMES}
        found: dict[str, Cost] = {}
        for one in sorted(nccl.choices("all_reduce", size, self.cluster), key=lambda one: one.seconds):
            found.setdefault(one.algorithm, one.cost)
        has = {name: found[name] for name in LIBRARY if name in found}
        return has | {name: nccl.textbook("all_reduce", name, size, self.cluster) for name in self.textbook}


def setting(key: str, world: int, alpha: float, rate: float) -> Setting:
    """Ranks fill as few nodes as hold them, evenly: where that does not come out, every node is priced as full."""
    if key == OWN:
        own = Wire(alpha * 1e-6, rate * 1e9)
        return Setting(Cluster(world, 1, own, own, 1), (), f"{world:,} ranks on your own link", own=True)
    most, inside, across, nics, _ = LINKS[key]
    nodes = ceil(world / most)
    gpus = ceil(world / nodes)
    textbook = ("naive", "halving-doubling", *(("hierarchical",) if min(nodes, gpus) > 1 else ()))
    each = f" of {gpus} GPUs" if gpus > 1 else " of one GPU"
    words = f"{gpus:,} GPUs on {link(inside).name}" if nodes == 1 else f"{nodes:,} nodes{each} on {link(across).name}"
    return Setting(cluster(nodes, gpus, inside, across, nics), textbook, words)


@lru_cache(maxsize=32)
def curves(on: Setting) -> tuple[dict[str, list[float]], float | None]:
    """Seconds at each size of GRID by algorithm; bytes, to three digits, below which the tree beats the ring and from
    which on the ring beats the tree. None where one of the two always does, or they change places more than once. Kept,
    so that a step of the grid prices nothing again.
    """
    prices = [on.costs(size) for size in GRID]
    found = {name: [one[name].seconds for one in prices] for name in prices[0]}
    ahead = [ring < tree for ring, tree in zip(found["ring"], found["tree"], strict=True)]
    turns = [i for i in range(1, len(GRID)) if ahead[i] != ahead[i - 1]]
    at = turns[0] if len(turns) == 1 and ahead[-1] else None
    if at is None:
        return found, None
    low, high = GRID[at - 1], GRID[at]
    while high / low > 1.002:
        middle = (low + high) / 2
        costs = on.costs(middle)
        low, high = (low, middle) if costs["ring"].seconds < costs["tree"].seconds else (middle, high)
    return found, float(f"{high:.3g}")


def draw(params: dict, width: int) -> dict:
    """The grid after the chosen number of steps, and beneath it the curves with the chosen size marked."""
    shown = chunk_grid.frames(params["algorithm"], params["ranks"])
    step = min(params["step"], shown.steps)
    on = setting(params["link"], params["world"], params["alpha"], params["rate"])
    size = params["size"] * 1e6
    costs = on.costs(size)
    values = _values(on, size, costs, shown, step)
    return {
        "svg": _picture(shown, step, on, size, costs, values),
        "sentence": _sentence(shown, step, on, size, costs, values),
        "values": values,
    }


def _values(on: Setting, size: float, costs: dict, shown: chunk_grid.Frames, step: int) -> dict:
    winner, second = _ranking(on, costs)[:2]
    seconds = costs[winner].seconds
    p = on.cluster.ranks
    return {
        "winner": winner,
        "second": second,
        "ahead": costs[second].seconds / seconds - 1,
        "seconds": seconds,
        "busbw_gb_per_s": alpha_beta.bus_bandwidth("all_reduce", size, p, seconds) / 1e9,
        "algbw_gb_per_s": alpha_beta.algorithm_bandwidth(size, seconds) / 1e9,
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


def _ranking(on: Setting, costs: dict[str, Cost]) -> list[str]:
    """Fastest first, of what can be had: on a link what NCCL has."""
    return sorted((name for name in costs if name not in on.textbook), key=lambda name: costs[name].seconds)


# --- the sentence ---------------------------------------------------------------------------------------------


def _sentence(shown: chunk_grid.Frames, step: int, on: Setting, size: float, costs: dict, values: dict) -> str:
    at = values["crossover_bytes"]
    found = f"{on.words}: for {_bytes(size)} {_verdict(costs, values)}."
    if values["winner"] == "in-network":
        found += " The switches add, so a GPU sends little more than the message, and busbw may exceed the link."
    best = min(on.textbook, key=lambda name: costs[name].seconds, default=values["winner"])
    if costs[best].seconds < (1 - TIE) * values["seconds"]:
        found += f" A textbook's {NAMES[best]} would take {_time(costs[best].seconds)}; NCCL does not have it."
    if at and size >= at:
        found += f" Below {_bytes(at)} the tree beats the ring."
    elif at and costs["tree"].seconds < costs["ring"].seconds:
        found += f" From {_bytes(at)} on the ring beats the tree."
    done = f"step {step} of {shown.steps} ({shown.phase(step)})" if step else f"none of {shown.steps} steps"
    grid = f"In the grid of {shown.ranks} ranks, {done} is done; by the end the busiest rank sends"
    return f"{found} {grid} {svg.quantity(values['grid_sent_share'])} times the message."


def _verdict(costs: dict, values: dict) -> str:
    """Who is fastest, by more than 1%, how long it takes and what of that is latency, its busbw, and who is next."""
    winner, second, latency = values["winner"], values["second"], values["latency_share"]
    share = "under 1%" if latency < 0.01 else f"{latency:.0%}" if latency < 0.995 else "nearly all"
    busbw = f"busbw {svg.quantity(values['busbw_gb_per_s'])} GB/s"
    took = f"{_time(values['seconds'])}, of which {share} is latency ({busbw})"
    if values["ahead"] < TIE:
        return f"{_CALLED[winner]} and {_CALLED[second]} tie at {took}"
    more = values["ahead"]
    behind = f"{more:.0%} longer" if more < 1 else f"{svg.quantity(1 + more)} times as long"
    verb = "are" if winner == "in-network" else "is"
    return f"{_CALLED[winner]} {verb} fastest: {took}; {_CALLED[second]} would take {behind}"


_CALLED = {name: f"the {words}" for name, words in NAMES.items()} | {
    "halving-doubling": "halving-doubling", "naive": "gather and broadcast", "in-network": "NVLink switches that add",
    "hierarchical": "the hierarchical all-reduce",
}  # fmt: skip


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


def _picture(shown: chunk_grid.Frames, step: int, on: Setting, size: float, costs: dict, values: dict) -> str:
    done = f"step {step} of {shown.steps}, {shown.phase(step)}" if step else f"before the first of {shown.steps} steps"
    title = f"{NAMES[shown.algorithm].capitalize()}, {shown.ranks} ranks: {done}"
    keys, height = svg.legend(4, 30, WIDTH - 8, [("c5", "partial sum"), ("c3", "sum of all"), ("accent", "moved")])
    grid, below = chunk_grid.draw(shown, step, 30 + height, WIDTH - 4)
    top = below + 44
    lines, at = curves(on)
    reach = _decades([one for some in lines.values() for one in some])
    plane = Plane(58, top, WIDTH - 80, 190, Axis(GRID[0], GRID[-1], True), Axis(*reach, True))
    body = [svg.text(4, 18, title, bold=True), keys, grid, _plane(plane)]
    for name in lines:
        wide = 3.5 if name == values["winner"] else 2
        body.append(plane.curve(zip(GRID, lines[name], strict=True), COLOURS[name], wide, "", NAMES[name]))
    body.append(plane.rule(size, "accent", _bytes(size)))
    if at:
        body.append(plane.dots([(at, on.costs(at)["ring"].seconds)], "ink", 5, f"tree and ring cross at {_bytes(at)}"))
    body.append(plane.dots([(size, values["seconds"])], COLOURS[values["winner"]], 5.5, _time(values["seconds"])))
    items = [(COLOURS[name], f"{NAMES[name]} {_time(costs[name].seconds)}") for name in costs]
    if at:
        items.append(("ink", f"tree = ring at {_bytes(at)}"))
    curve_keys, more = svg.legend(4, plane.bottom + 46, WIDTH - 8, items, 2)
    label = (
        f"{title}. Beneath, seconds of an all-reduce against bytes for {len(costs)} algorithms, both axes "
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
