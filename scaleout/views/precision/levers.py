"""Which lever to move in the view `precision`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from scaleout.draw.ruler import power
from scaleout.views import lever
from scaleout.views.lever import Change, Lever
from scaleout.words.amounts import percent

WORTH = 0.01  # of the gradients that a lever must save to be named
BETTER = 0.95  # times the error that is left by a lever for shared scales


def advice(setting) -> Lever | None:
    """What loses less; None where nothing does."""
    if setting.shares:
        return _sharing(setting)
    if setting.searches:
        [bf16] = lever.tried(setting, [("bf16", {"step": 0, "format": "bf16"})])
        return bf16.giving("no step is skipped, with 8 bits in place of 11")
    return _scaling(setting)


def _scaling(setting) -> Lever | None:
    best, scaled = setting.best, []
    if best is not None and best != setting.scale:
        words = f"a loss scale of {power(best)}" if best else "no loss scale"
        scaled = [*lever.tried(setting, [(words, {"scale": best})])]
    if setting.leaves_out and scaled:
        return scaled[0].giving(f"nothing overflows, {percent(scaled[0].after.fate.zero)} become zero")
    loses_less = lever.first(
        chain(scaled, lever.tried(setting, _instead(setting))),
        lambda trial: (trial.shared_fate.zero if trial.shares else trial.lost) < setting.lost - WORTH,
        _left,
    )
    return loses_less or lever.first(
        scaled,
        lambda trial: trial.fate.few + trial.fate.zero < setting.fate.few + setting.fate.zero - WORTH,
        lambda trial: f"{percent(trial.fate.few)} keep fewer bits",
    )


def _left(setting) -> str:
    zero = setting.shared_fate.zero if setting.shares else setting.fate.zero
    cut = setting.shared_fate.clipped if setting.shares else setting.fate.beyond
    return f"{percent(zero)} become zero{f', {percent(cut)} are clipped' if cut else ''}"


def _instead(setting) -> Iterator[Change]:
    """The mildest first."""
    if setting.f.bits <= 8:
        yield "one scale per 32 numbers", {"shared": "up", "block": 32}
        yield "NVFP4's scales", {"shared": "nv", "block": 16}
    if setting.format == "e4m3":
        yield "e5m2", {"format": "e5m2", "scale": setting.other(format="e5m2").best or 0}
    if setting.format != "bf16":
        yield "bf16", {"format": "bf16", "scale": 0}


# --- shared scales --------------------------------------------------------------------------------------------------


def _sharing(setting) -> Lever | None:
    return lever.first(
        lever.tried(setting, _closer(setting)),
        lambda trial: trial.shared_fate.error < BETTER * setting.shared_fate.error,
        lambda trial: f"an error of {percent(trial.shared_fate.error)}",
    )


def _closer(setting) -> Iterator[Change]:
    """The mildest first."""
    if setting.shared == "floor":
        yield "rounding scales up", {"shared": "up"}
    if setting.shared != "nv" and setting.format == "e2m1":
        yield "NVFP4's e4m3 scales", {"shared": "nv", "block": 16}
    if setting.shared == "tensor":
        yield "one scale per 32 numbers", {"shared": "up", "block": 32}
    if setting.block > 16 and setting.shared != "tensor":
        yield "blocks of 16", {"block": 16}
    if setting.format == "e2m1":
        yield "e4m3, with twice the bits", {"format": "e4m3"}
    if setting.format == "e5m2":
        yield "e4m3, with one bit more", {"format": "e4m3"}
