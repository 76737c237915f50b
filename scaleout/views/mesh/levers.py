"""Which lever to move in the view `mesh`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.views.mesh.setting import MOST

WORTH = 0.03  # of tokens a second, that a lever must gain to be named
NEAR = 0.8  # of the most that any gains: of several the mildest
GIGA = 10**9

Change = tuple[str, dict]  # words, and the parameters that they change


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, and what it gives."""

    change: dict
    words: str
    gives: str


def advice(setting) -> Advice | None:
    """What makes the model fit, with the most tokens a second; where it does, the mildest that fits and gains NEAR
    of the most. None where nothing gains WORTH."""
    tried = [(words, change, setting.other(**change)) for words, change in _levers(setting)]
    some = [one for one in tried if one[2].fits]
    if not setting.fits:
        return _fitting(setting, tried, some)
    most = max((then.pace / setting.pace - 1 for _, _, then in some), default=0.0)
    if most <= WORTH:
        return None
    words, change, then = next(one for one in some if one[2].pace / setting.pace - 1 >= max(WORTH, NEAR * most))
    times = then.pace / setting.pace
    more = f"{svg.quantity(times, 2)} times the" if times > 2 else f"{times - 1:.0%} more"
    said = f"{more} tokens per second"
    return Advice(change, words, said)


def _fitting(setting, tried: list, some: list) -> Advice | None:
    """The fastest that fits; where none does, the smallest."""
    if some:
        words, change, then = max(some, key=lambda one: one[2].pace)
        return Advice(change, words, f"{amount(then.account.peak_bytes, GIGA)} per GPU, fits")
    words, change, then = min(tried, key=lambda one: one[2].account.peak_bytes)
    if then.account.peak_bytes > (1 - WORTH) * setting.account.peak_bytes:
        return None
    return Advice(change, words, f"{amount(then.account.peak_bytes, GIGA)} per GPU, not enough yet")


def _levers(setting) -> Iterator[Change]:
    """One control moved by one step each, the mildest first, or tensor and pipeline against each other."""
    if setting.order != "pp.dp.tp":
        yield "the order PP, DP, TP", {"order": "pp.dp.tp"}
    yield from _pipeline(setting)
    yield from _memory(setting)
    yield from _degrees(setting.layout, setting.node)
    if setting.link == "ethernet-100g" and setting.nodes > 1:
        yield "InfiniBand", {"link": "ib-ndr"}


def _degrees(at, node: int) -> Iterator[Change]:
    """Half or twice as much of one, and half of one for twice the other."""
    for name, most in (("tp", node), ("pp", 64)):
        now = getattr(at, name)
        if now > 1:
            yield f"{name} {now // 2}", {name: now // 2}
        if 2 * now <= most and at.dp > 1:
            yield f"{name} {2 * now}", {name: 2 * now}
    if at.tp > 1 and 2 * at.pp <= 64:
        yield f"tp {at.tp // 2} and pp {2 * at.pp}", {"tp": at.tp // 2, "pp": 2 * at.pp}
    if at.pp > 1 and 2 * at.tp <= node:
        yield f"tp {2 * at.tp} and pp {at.pp // 2}", {"tp": 2 * at.tp, "pp": at.pp // 2}


def _pipeline(setting) -> Iterator[Change]:
    """What makes a bubble smaller."""
    at = setting.layout
    if at.pp > 1 and at.m < 4 * at.pp and 2 * at.m <= MOST:
        yield f"{2 * at.m} micro-batches", {"micro_batches": 2 * at.m}
    v = next(iter(setting.all_chunks(at.pp)), 1)
    if at.chunks == 1 and v > 1:
        yield f"{v} chunks a rank", {"chunks": v}


def _memory(setting) -> Iterator[Change]:
    """What is held, and recomputed or gathered instead."""
    for recompute, words in (
        ("none", "recomputing nothing"),
        ("selective", "recomputing attention"),
        ("full", "recomputing every block"),
    ):
        if recompute != setting.recompute:
            yield words, {"recompute": recompute}
    if setting.layout.replicas > 1:
        yield from ((f"ZeRO {zero}", {"zero": zero}) for zero in (1, 3) if zero != setting.layout.zero)
    if setting.batch > 1:
        yield "1 sequence a micro-batch", {"batch": 1}
