"""An all-reduce on a circle of ranks, step by step: who holds whose numbers, what one rank has sent, and where the
time goes by size of the message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scaleout.collectives import alpha_beta
from scaleout.draw import parcels, ramp, rank_circle, svg
from scaleout.views import base, guess, more, play, select, slider, toggle
from scaleout.views.collectives import band, levers, record, sent
from scaleout.views.collectives.links import (
    DECADES,
    LARGEST,
    LINKS,
    OWN_LINK,
    SHOWN,
    SMALLEST,
    Setting,
    sent_by_ranks,
)
from scaleout.views.collectives.links import band as curves
from scaleout.views.collectives.words import NAMES, SHORT, law, size, under_way
from scaleout.words.amounts import took

TITLE = "All-reduce, step by step and by size"

CONTROLS = (
    guess("Eight GPUs of one node all-reduce **1 GB** in a ring. How many GB does **each** of them send?",
          "ring_sent_gb", "GB", lo=0, hi=8, step=0.025),
    play("step", "Steps done", 9, 0, 2 * ramp.LIMIT - 2),
    slider("ranks", "Ranks", 8, 2, 1024, log=True),
    slider("size", "Message", 1000.0, SMALLEST / 1e6, LARGEST / 1e6, step=0.001, unit="MB", log=True),
    select("algorithm", "Algorithm", "ring", [(name, SHORT[name]) for name in SHOWN]),
    select("link", "Connected by", "node-ib", [*((key, words) for key, (*_, words) in LINKS.items()),
                                            (OWN_LINK, "my own: α and rate under More")]),
    *more(
        slider("alpha", "α of my own link", 25.0, 0.1, 100_000.0, step=0.1, unit="µs", log=True),
        slider("rate", "Rate of my own link", 12.5, 0.01, 1000.0, step=0.01, unit="GB/s", log=True),
        toggle("protocols", "NCCL’s protocols", False,
               help="LL, LL128 and Simple: each has a higher latency and bandwidth than the one before. If on, "
                    "the band shows the latency of the protocol that NCCL uses at each size; if off, the lowest."),
    ),
)  # fmt: skip

CIRCLES = {
    svg.WIDE: (169.0, 180.0, 132.0, 132.0),
    svg.NARROW: (179.0, 119.0, 148.0, 94.0),
}  # middle, half axes
CARDS = {svg.WIDE: (60.0, 44.0), svg.NARROW: (46.0, 33.0)}  # up to 8 ranks, and 16


@dataclass(frozen=True)
class Look(base.Setting):
    """What goes over the links: how much (MB), by what algorithm, and how far it is shown."""

    step: int
    size: float
    algorithm: str
    protocols: bool


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The circle with its parcels under way, the bar of what one rank has sent, and the band of the time."""
    links, look = Setting.of(params), Look.of(params)
    algorithm, amount = look.algorithm, look.size * 1e6
    shown = parcels.frames(algorithm, min(links.ranks, ramp.LIMIT))
    steps_over = min(look.step, shown.steps)
    bar = sent.Sent(shown, steps_over, links.ranks, amount, links.sent(algorithm), sent_by_ranks(links.link, algorithm))
    cost = links.way(algorithm, amount).cost
    points = record.matching(run, links, algorithm) or record.published(links, algorithm, look.protocols)
    return {
        "svg": _picture(links, bar, points, width, look.protocols),
        "sentence": levers.sentence(links, algorithm, amount),
        "values": _values(links, bar, look.protocols),
        "law": law(links, algorithm, amount, cost),
        "levers": _levers(links, algorithm, shown.steps),
    }


def advice(params: dict) -> str:
    """The lever worth trying now; "" where none is to be had."""
    look = Look.of(params)
    return levers.advice(Setting.of(params), look.algorithm, look.size * 1e6)


def _levers(links: Setting, algorithm: str, steps: int) -> dict:
    moves: dict = {"step": {"hi": steps}}
    protocols = curves(links, algorithm).protocols
    if len(protocols) < 2:
        always = f"NCCL uses {protocols[0]} at every size" if protocols else "NCCL has no protocols for this"
        moves["protocols"] = {"off": always}
    if links.link != OWN_LINK:
        moves |= {name: {"off": "only for a link of your own"} for name in ("alpha", "rate")}
    return moves


def _values(links: Setting, bar: sent.Sent, protocols: bool) -> dict:
    shown, amount, algorithm = bar.shown, bar.message, bar.shown.algorithm
    library, costs, scan = links.by_library(amount), links.costs(amount), curves(links, algorithm)
    way = links.way(algorithm, amount)
    seconds, first = way.cost.seconds, sorted(library, key=lambda name: library[name].cost.seconds)
    return {
        "winner": first[0],
        "second": first[1],
        "ahead": costs[first[1]].seconds / costs[first[0]].seconds - 1,
        "seconds": seconds,
        "latency_share": way.share,
        "half_bytes": scan.half_bytes,
        "protocols_shown": list(scan.protocols) if protocols and len(scan.protocols) > 1 else [],
        "by_size": [
            [decade, decade_way.cost.seconds, decade_way.share]
            for decade in DECADES
            for decade_way in (links.way(algorithm, decade),)
        ],
        "busbw_gb_per_s": alpha_beta.bus_bandwidth("all_reduce", amount, links.ranks, seconds) / 1e9,
        "algbw_gb_per_s": alpha_beta.algorithm_bandwidth(amount, seconds) / 1e9,
        "sent_gb": way.cost.sent_bytes / 1e9,
        "sent_so_far_gb": bar.so_far / 1e9,
        "ring_sent_gb": costs["ring"].sent_bytes / 1e9,
        "seconds_by_algorithm": {name: decade_way.seconds for name, decade_way in costs.items()},
        "crossover_bytes": scan.crossover_bytes,
        "joined_by": links.words,
        "drawn_ranks": shown.ranks,
        "steps": shown.steps,
        "step": bar.steps_over,
        "contributors": [shown.contributors(bar.steps_over, rank) for rank in range(shown.ranks)],
        "owners": shown.owners,
        "complete_cells": sum(cell == shown.full for row in shown.held[bar.steps_over][: shown.ranks] for cell in row),
    }


# --- the picture ----------------------------------------------------------------------------------------------


def _picture(links: Setting, bar: sent.Sent, points, width: int, protocols: bool) -> str:
    algorithm, wide = bar.shown.algorithm, width == svg.WIDE
    node = links.cluster.gpus_per_node if bar.ranks == bar.shown.ranks else 0
    circle = _ranks(algorithm, bar.shown.ranks, bar.steps_over, node, width)
    body = [circle, _key(bar, links, width), sent.wide(bar, 338) if wide else sent.narrow(bar, 238)]
    y = 345 if wide else 292
    body.insert(2, band.draw(links, algorithm, bar.message, points, y, wide, protocols))
    label = (
        f"{NAMES[algorithm].capitalize()} all-reduce of {size(bar.message)} among {links.words}, step {bar.steps_over} "
        f"of {bar.shown.steps} done: one rank has sent {size(bar.so_far)} of {size(bar.total * bar.message)}. It takes "
        f"{took(links.way(algorithm, bar.message).cost.seconds)}."
    )
    return svg.figure(width, _height(wide, points), "".join(body), label)


@lru_cache(maxsize=16)  # neither the message nor the wire moves anything on it
def _ranks(algorithm: str, ranks: int, steps_over: int, node: int, width: int) -> str:
    shown = parcels.frames(algorithm, ranks)
    return rank_circle.draw(shown, steps_over, _circle(shown, width), under_way(shown, steps_over), node)


def _height(wide: bool, points) -> float:
    return (474 if wide else 382) + (15 if points else 0)


def _circle(shown: parcels.Frames, width: int) -> rank_circle.Circle:
    large, small = CARDS[width]
    card = large if shown.ranks <= 8 else small + (large - small) * (16 - shown.ranks) / 12
    return rank_circle.Circle(*CIRCLES[width], card)


def _key(bar: sent.Sent, links: Setting, width: int) -> str:
    """What columns and stripes are, and how many ranks are left out or share a node."""
    wide, count, lines = width == svg.WIDE, bar.shown.chunks, []
    if wide:
        columns = "column: the message" if count == 1 else f"columns: {count} chunks"
        lines += [(12, columns), (26, "stripes: whose numbers")]
    if bar.ranks > bar.shown.ranks:
        lines.append((338 if wide else 12, f"drawn with {bar.shown.ranks} of {bar.ranks:,}"))
    elif min(links.cluster.nodes, links.cluster.gpus_per_node) > 1:
        lines.append((338 if wide else 12, f"{links.cluster.nodes} nodes of {links.cluster.gpus_per_node}"))
    return "".join(svg.text(2, y, words, fill="muted", size=svg.SMALLEST) for y, words in lines)


measured = record.measured


def locked(params: dict, width: int) -> str:
    """The ring before its first step, an empty bar and an empty band: what is given, and not what follows."""
    links = Setting.of(params)
    shown = parcels.frames("ring", min(links.ranks, ramp.LIMIT))
    bar = sent.Sent(shown, 0, links.ranks, Look.of(params).size * 1e6, 1.0, ())
    lines = [(f"{links.ranks} ranks,", False), (size(bar.message), True), ("on each of them", False)]
    wide = width == svg.WIDE
    body = [
        rank_circle.draw(shown, 0, _circle(shown, width), lines, 0),
        _key(bar, links, width),
        band.locked(345 if wide else 292, wide),
        sent.wide(bar, 338, locked=True) if wide else sent.narrow(bar, 238, locked=True),
    ]
    label = (
        f"{links.ranks} ranks on a ring before the first step, each with {size(bar.message)} in {shown.chunks} chunks."
    )
    return svg.figure(width, _height(wide, None), "".join(body), label)


def slips(params: dict) -> list[tuple[float, str]]:
    """What wrong answers are made of, by the opening's message in GB."""
    p, message = Setting.of(params).ranks, Look.of(params).size / 1e3
    return [
        (message / p, "one chunk, once"),
        (2 * message / p, "one chunk in each lap"),
        ((p - 1) / p * message, "one lap of two"),
        (message, "the message once"),
        (2 * message, "the message twice; in each lap a rank sends all chunks but one"),
        ((p - 1) * message, "the whole message to each of the others"),
    ]
