"""Which lever to move: what makes a block of the view `tensor` faster or smaller, each tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.collectives.tensor import MEGATRON
from scaleout.views import lever
from scaleout.views.lever import Lever
from scaleout.views.tensor.scene import MATRICES
from scaleout.words.amounts import amount, took

HIDDEN = {"backward": "in the backward pass", "chunked": "in chunks"}
WORTH = 0.03  # of the time, or of the memory, that a lever must save to be named


def sentence(setting) -> str:
    """The one lever worth trying now."""
    return lever.sentence(advice(setting), f"Nothing here saves another {WORTH:.0%} of time or memory.")


def advice(setting) -> Lever | None:
    """The first lever that saves WORTH: a better split or link, then less memory, then overlap."""
    seconds_now, held_bytes = sum(setting.seconds(setting.link)), sum(setting.held_bytes)
    for words, change, for_memory in _levers(setting):
        trial = setting.other(**change)
        seconds, holds = sum(trial.seconds(trial.link)), sum(trial.held_bytes)
        if for_memory and holds < (1 - WORTH) * held_bytes:
            gives = f"each GPU needs {amount(holds, 10**9)}, not {amount(held_bytes, 10**9)}"
            return Lever(words, change, trial, gives)
        if not for_memory and seconds < (1 - WORTH) * seconds_now:
            return Lever(words, change, trial, took(seconds))
    return None


def _levers(setting) -> Iterator[tuple[str, dict, bool]]:
    """(words for a change, the change, whether it is for memory), what to try first first."""
    wrong = {name: cut for name, cut in MEGATRON.items() if setting.cuts[name] != cut}
    for name, cut in wrong.items():
        yield f"splitting {MATRICES[name]} by {cut}", {name: cut}, False
    for for_memory in (False, True) if wrong else ():
        yield "columns, then rows, in both halves", wrong, for_memory
    if setting.link != "nvlink":
        yield "NVLink", {"link": "nvlink"}, False
    if not setting.sequence:
        yield "sequence parallelism", {"sequence": True}, True
    hidden = "chunked" if setting.sequence else "backward"
    if setting.overlap != hidden:
        yield f"overlap {HIDDEN[hidden]}", {"overlap": hidden}, False
