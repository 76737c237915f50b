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
        then = setting.other(scale=best)
        words = f"a loss scale of {power(best)}" if best else "no loss scale"
        if setting.leaves_out:
            return Advice({"scale": best}, words, f"nothing overflows, {percent(then.fate.zero)} become zero")
        if then.lost < setting.lost - WORTH:
            return Advice({"scale": best}, words, _left(then))
    for change, words in _instead(setting):
        then = setting.other(**change)
        if (then.found.zero if then.shares else then.lost) < setting.lost - WORTH:
            return Advice(change, words, _left(then))
    if best is not None and best != setting.scale:
        then = setting.other(scale=best)
        words = f"a loss scale of {power(best)}" if best else "no loss scale"
        if then.fate.few + then.fate.zero < setting.fate.few + setting.fate.zero - WORTH:
            return Advice({"scale": best}, words, f"{percent(then.fate.few)} keep fewer bits")
    return None


def _left(then) -> str:
    zero = then.found.zero if then.shares else then.fate.zero
    cut = then.found.clipped if then.shares else then.fate.beyond
    return f"{percent(zero)} become zero{f', {percent(cut)} are cut' if cut else ''}"


def _instead(setting) -> Iterator[tuple[dict, str]]:
    """The mildest first."""
    if setting.f.bits <= 8:
        yield {"shared": "up", "block": 32}, "a scale for each 32 numbers"
        yield {"shared": "nv", "block": 16}, "NVFP4's scales"
    if setting.format == "e4m3":
        yield {"format": "e5m2", "scale": setting.other(format="e5m2").best or 0}, "e5m2"
    if setting.format != "bf16":
        yield {"format": "bf16", "scale": 0}, "bf16"


# --- shared scales --------------------------------------------------------------------------------------------------


def _sharing(setting) -> Advice | None:
    for change, words in _closer(setting):
        then = setting.other(**change)
        if then.found.error < BETTER * setting.found.error:
            return Advice(change, words, f"off by {percent(then.found.error)}")
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
