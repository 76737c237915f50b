"""Which lever to move in the view `precision`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw.ruler import power
from scaleout.views.precision.amounts import percent

WORTH = 0.01  # of the gradients that a lever must save to be named
BETTER = 0.95  # times the error that is left by a lever for shared scales


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, and what it gives."""

    change: dict
    words: str
    gives: str


def advice(setting) -> Advice | None:
    """What loses less; None where nothing does."""
    if setting.shares:
        return _sharing(setting)
    if setting.searches:
        return Advice({"step": 0, "format": "bf16"}, "bf16", "no step is left out, for 8 bits in place of 11")
    return _scaling(setting)


def _scaling(setting) -> Advice | None:
    best = setting.best
    if best is not None and best != setting.scale:
        changed = setting.changed(scale=best)
        words = f"a loss scale of {power(best)}" if best else "no loss scale"
        if setting.leaves_out:
            return Advice({"scale": best}, words, f"nothing overflows, {percent(changed.fate.zero)} become zero")
        if changed.lost < setting.lost - WORTH:
            return Advice({"scale": best}, words, _left(changed))
    for change, words in _instead(setting):
        changed = setting.changed(**change)
        if (changed.shared_fate.zero if changed.shares else changed.lost) < setting.lost - WORTH:
            return Advice(change, words, _left(changed))
    if best is not None and best != setting.scale:
        changed = setting.changed(scale=best)
        words = f"a loss scale of {power(best)}" if best else "no loss scale"
        if changed.fate.few + changed.fate.zero < setting.fate.few + setting.fate.zero - WORTH:
            return Advice({"scale": best}, words, f"{percent(changed.fate.few)} keep fewer bits")
    return None


def _left(setting) -> str:
    zero = setting.shared_fate.zero if setting.shares else setting.fate.zero
    cut = setting.shared_fate.clipped if setting.shares else setting.fate.beyond
    return f"{percent(zero)} become zero{f', {percent(cut)} are cut' if cut else ''}"


def _instead(setting) -> Iterator[tuple[dict, str]]:
    """The mildest first."""
    if setting.f.bits <= 8:
        yield {"shared": "up", "block": 32}, "a scale for each 32 numbers"
        yield {"shared": "nv", "block": 16}, "NVFP4's scales"
    if setting.format == "e4m3":
        yield {"format": "e5m2", "scale": setting.changed(format="e5m2").best or 0}, "e5m2"
    if setting.format != "bf16":
        yield {"format": "bf16", "scale": 0}, "bf16"


# --- shared scales --------------------------------------------------------------------------------------------------


def _sharing(setting) -> Advice | None:
    for change, words in _closer(setting):
        changed = setting.changed(**change)
        if changed.shared_fate.error < BETTER * setting.shared_fate.error:
            return Advice(change, words, f"off by {percent(changed.shared_fate.error)}")
    return None


def _closer(setting) -> Iterator[tuple[dict, str]]:
    """The mildest first."""
    if setting.shared == "floor":
        yield {"shared": "up"}, "rounding scales up"
    if setting.shared != "nv" and setting.format == "e2m1":
        yield {"shared": "nv", "block": 16}, "NVFP4's e4m3 scales"
    if setting.shared == "tensor":
        yield {"shared": "up", "block": 32}, "a scale for each 32 numbers"
    if setting.block > 16 and setting.shared != "tensor":
        yield {"block": 16}, "blocks of 16"
    if setting.format == "e2m1":
        yield {"format": "e4m3"}, "e4m3, twice the bits"
    if setting.format == "e5m2":
        yield {"format": "e4m3"}, "e4m3, with one bit more"
