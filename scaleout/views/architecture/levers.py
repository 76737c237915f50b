"""What to replace in the view `architecture`: each is tried before one is named. And why a control changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.timing.stragglers import TRANSFER
from scaleout.views import lever
from scaleout.views.architecture.setting import ALL, EVERY, NONE, Setting
from scaleout.views.architecture.words import NAMES
from scaleout.views.lever import Change, Lever

WORTH = 0.03  # of the step time that a replacement must save to be named


def sentence(setting: Setting) -> str:
    """The replacement that saves most, or that none saves 3%."""
    return lever.sentence(advice(setting), "No other single replacement saves 3% of the step time.")


def advice(setting: Setting) -> Lever | None:
    """One rank, or one part on every rank, whichever makes the step shortest."""
    best = min(lever.tried(setting, _changes()), key=lambda one: one.after.mean)
    saved = 1 - best.after.mean / setting.mean
    return best.giving(f"the mean step time falls by {saved:.0%}") if saved >= WORTH else None


def _changes() -> Iterator[Change]:
    for rank in range(8):
        yield f"replacing rank {rank} by the median", {"rank": str(rank), "part": ALL}
    for part, name in NAMES.items():
        yield f"replacing {name} on every rank", {"rank": EVERY, "part": part}


def notes(setting: Setting) -> dict:
    """What is said of controls that change nothing now, or not what was set."""
    if setting.rank == NONE:
        return {"part": {"off": "Choose first whose work is replaced."}}
    if setting.part == TRANSFER and setting.rank != EVERY:
        return {"rank": {"takes": "every rank, because all ranks share a transfer"}}
    return {}
