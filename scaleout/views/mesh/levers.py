"""Which lever to move in the view `mesh`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw.amounts import amount

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
    tried = [one for one in tried if one[2].layout != setting.layout or one[2] != setting]
    some = [one for one in tried if one[2].fits]
    if not setting.fits:
        if some:
            words, change, then = max(some, key=lambda one: one[2].pace)
            return Advice(change, words, f"{amount(then.account.peak_bytes, GIGA)} a GPU, fits")
        words, change, then = min(tried, key=lambda one: one[2].account.peak_bytes)
        if then.account.peak_bytes > (1 - WORTH) * setting.account.peak_bytes:
            return None
        return Advice(change, words, f"{amount(then.account.peak_bytes, GIGA)} a GPU, not enough yet")
    if not some:
        return None
    most = max(one[2].pace for one in some) / setting.pace - 1
    words, change, then = next(one for one in some if one[2].pace / setting.pace - 1 >= NEAR * most)
    gain = then.pace / setting.pace - 1
    return Advice(change, words, f"{100 * gain:.0f}% more tokens a second") if gain > WORTH else None


def _levers(setting) -> Iterator[Change]:
    """One control moved by one step each."""
    at, order = setting.layout, setting.order
    if order != "pp.dp.tp":
        yield "the order PP, DP, TP", {"order": "pp.dp.tp"}
    if setting.link == "ethernet-100g":
        yield "InfiniBand", {"link": "ib-ndr"}
    if at.pp > 1 and at.m < 4 * at.pp:
        yield f"{2 * at.m} micro-batches", {"micro_batches": 2 * at.m}
    v = next(iter(setting.all_chunks(at.pp)), 1)
    if at.chunks == 1 and 1 < v <= 8:
        yield f"{v} chunks a rank", {"chunks": v}
    for recompute in ("none", "selective", "full"):
        if recompute != setting.recompute:
            words = "recomputing nothing" if recompute == "none" else f"{recompute} recomputation"
            yield words, {"recompute": recompute}
    if at.replicas > 1:
        yield from ((f"ZeRO {zero}", {"zero": zero}) for zero in (1, 3) if zero != at.zero)
    for name in ("tp", "pp"):
        now = getattr(at, name)
        if now > 1:
            yield f"{name} {now // 2}", {name: now // 2}
        if 2 * now <= {"tp": setting.node, "pp": 64}[name] and at.dp > 1:
            yield f"{name} {2 * now}", {name: 2 * now}
    if setting.batch > 1:
        yield "1 sequence a micro-batch", {"batch": 1}
