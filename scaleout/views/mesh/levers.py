"""Which lever to move in the view `mesh`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from scaleout.views import lever
from scaleout.views.lever import Change, Lever
from scaleout.views.mesh.setting import MOST_MICRO_BATCHES
from scaleout.words.amounts import amount, quantity

WORTH = 0.03  # of tokens per second, that a lever must gain to be named
NEAR_BEST = 0.8  # of the most that any gains: of several the mildest
GIGA = 10**9


def sentence(setting) -> str:
    """The one lever worth trying now, with what it gives."""
    return lever.sentence(advice(setting), f"No single change here gains {WORTH:.0%}.")


def advice(setting) -> Lever | None:
    """What makes the model fit, with the most tokens per second; where it does, the mildest that fits and gains
    NEAR_BEST of the most. None where nothing gains WORTH."""
    tried = [*lever.tried(setting, _levers(setting))]
    fitting = [candidate for candidate in tried if candidate.after.fits]
    if not setting.fits:
        return _fitting(setting, tried, fitting)

    def gain(trial) -> float:
        return trial.pace / setting.pace - 1

    best_gain = max((gain(candidate.after) for candidate in fitting), default=0.0)
    if best_gain <= WORTH:
        return None
    return lever.first(
        fitting, lambda trial: gain(trial) >= max(WORTH, NEAR_BEST * best_gain), partial(_gains, setting)
    )


def _gains(setting, trial) -> str:
    times = trial.pace / setting.pace
    return f"{f'{quantity(times, 2)} times the' if times > 2 else f'{times - 1:.0%} more'} tokens per second"


def _fitting(setting, tried: list[Lever], fitting: list[Lever]) -> Lever | None:
    """The fastest that fits; where none does, the smallest."""
    if fitting:
        fastest = max(fitting, key=lambda candidate: candidate.after.pace)
        return fastest.giving(f"{amount(fastest.after.account.peak_bytes, GIGA)} per GPU, which fits")
    smallest = min(tried, key=lambda candidate: candidate.after.account.peak_bytes)
    peak_bytes = smallest.after.account.peak_bytes
    if peak_bytes > (1 - WORTH) * setting.account.peak_bytes:
        return None
    return smallest.giving(f"{amount(peak_bytes, GIGA)} per GPU, still too much")


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
        yield f"{v} chunks per rank", {"chunks": v}


def _memory(setting) -> Iterator[Change]:
    """What saves memory: recomputation, ZeRO, a smaller micro-batch."""
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
        yield "1 sequence per micro-batch", {"batch": 1}
