"""Which lever to move: what makes a block of the view `tensor` faster or smaller, each tried before it is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaleout.collectives.tensor import MEGATRON
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.tensor.scene import MATRICES

HIDDEN = {"backward": "in the backward", "chunked": "in chunks"}
WORTH = 0.03  # of the seconds, or of the bytes held, that a lever must save to be named


@dataclass(frozen=True)
class Advice:
    """A lever: the fields of the setting that it changes, and words for it and for what it saves."""

    change: dict
    words: str
    saves: str


def advice(setting) -> Advice | None:
    """The first lever that saves WORTH: what is faster by a cut or a link, then what holds less, then what hides
    messages. setting: of the view."""
    seconds_now, held_bytes = sum(setting.seconds(setting.link)), sum(setting.held_bytes)
    for change, words, for_memory in _levers(setting):
        changed = replace(setting, **change)
        seconds, holds = sum(changed.seconds(changed.link)), sum(changed.held_bytes)
        if for_memory and holds < (1 - WORTH) * held_bytes:
            return Advice(change, words, f"a GPU holds {amount(holds, 10**9)}, not {amount(held_bytes, 10**9)}")
        if not for_memory and seconds < (1 - WORTH) * seconds_now:
            return Advice(change, words, took(seconds))
    return None


def _levers(setting):
    """(a change, words for it, whether it is for what a GPU holds), what to try first first."""
    wrong = {name: cut for name, cut in MEGATRON.items() if setting.cuts[name] != cut}
    for name, cut in wrong.items():
        yield {name: cut}, f"{MATRICES[name]} in {cut}", False
    for for_memory in (False, True) if wrong else ():
        yield wrong, "columns, then rows, in both halves", for_memory
    if setting.link != "nvlink":
        yield {"link": "nvlink"}, "NVLink", False
    if not setting.sequence:
        yield {"sequence": True}, "sequence parallel", True
    hidden = "chunked" if setting.sequence else "backward"
    if setting.overlap != hidden:
        yield {"overlap": hidden}, f"overlap {HIDDEN[hidden]}", False
