"""Which lever to move in the view `mesh`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.views.mesh.setting import MOST_MICRO_BATCHES

WORTH = 0.03  # of tokens a second, that a lever must gain to be named
NEAR_BEST = 0.8  # of the most that any gains: of several the mildest
GIGA = 10**9

Change = tuple[str, dict]  # words, and the parameters that they change


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, and what it gives."""

    change: dict
    words: str
    gives: str


def advice(setting) -> Advice | None:
    """What makes the model fit, with the most tokens a second; where it does, the mildest that fits and gains NEAR_BEST
    of the most. None where nothing gains WORTH."""
    tried = [(words, change, setting.changed(**change)) for words, change in _levers(setting)]
    fitting = [candidate for candidate in tried if candidate[2].fits]
    if not setting.fits:
        return _fitting(setting, tried, fitting)
    best_gain = max((changed.pace / setting.pace - 1 for _, _, changed in fitting), default=0.0)
    if best_gain <= WORTH:
        return None
    words, change, changed = next(
        candidate for candidate in fitting if candidate[2].pace / setting.pace - 1 >= max(WORTH, NEAR_BEST * best_gain)
    )
    times = changed.pace / setting.pace
    gain_words = f"{svg.quantity(times, 2)} times the" if times > 2 else f"{times - 1:.0%} more"
    gain_text = f"{gain_words} tokens per second"
    return Advice(change, words, gain_text)


def _fitting(setting, tried: list, fitting: list) -> Advice | None:
    """The fastest that fits; where none does, the smallest."""
    if fitting:
        words, change, changed = max(fitting, key=lambda candidate: candidate[2].pace)
        return Advice(change, words, f"{amount(changed.account.peak_bytes, GIGA)} per GPU, fits")
    words, change, changed = min(tried, key=lambda candidate: candidate[2].account.peak_bytes)
    if changed.account.peak_bytes > (1 - WORTH) * setting.account.peak_bytes:
        return None
    return Advice(change, words, f"{amount(changed.account.peak_bytes, GIGA)} per GPU, not enough yet")


def _levers(setting) -> Iterator[Change]:
    """One control moved by one step each, the mildest first, or tensor and pipeline against each other."""
    if setting.order != "pp.dp.tp":
        yield "the order PP, DP, TP", {"order": "pp.dp.tp"}
    yield from _pipeline(setting)
    yield from _memory(setting)
    yield from _degrees(setting.layout, setting.node)
    if setting.link == "ethernet-100g" and setting.nodes > 1:
        yield "InfiniBand", {"link": "ib-ndr"}


def _degrees(layout, node: int) -> Iterator[Change]:
    """Half or twice as much of one, and half of one for twice the other."""
    for name, highest in (("tp", node), ("pp", 64)):
        degree = getattr(layout, name)
        if degree > 1:
            yield f"{name} {degree // 2}", {name: degree // 2}
        if 2 * degree <= highest and layout.dp > 1:
            yield f"{name} {2 * degree}", {name: 2 * degree}
    if layout.tp > 1 and 2 * layout.pp <= 64:
        yield f"tp {layout.tp // 2} and pp {2 * layout.pp}", {"tp": layout.tp // 2, "pp": 2 * layout.pp}
    if layout.pp > 1 and 2 * layout.tp <= node:
        yield f"tp {2 * layout.tp} and pp {layout.pp // 2}", {"tp": 2 * layout.tp, "pp": layout.pp // 2}


def _pipeline(setting) -> Iterator[Change]:
    """What makes a bubble smaller."""
    layout = setting.layout
    if layout.pp > 1 and layout.m < 4 * layout.pp and 2 * layout.m <= MOST_MICRO_BATCHES:
        yield f"{2 * layout.m} micro-batches", {"micro_batches": 2 * layout.m}
    v = next(iter(setting.all_chunks(layout.pp)), 1)
    if layout.chunks == 1 and v > 1:
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
