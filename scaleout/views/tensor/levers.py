"""Which lever to move: what makes a block of the view `tensor` faster or smaller, each tried before it is named."""

from __future__ import annotations

from dataclasses import replace

from scaleout.collectives.tensor import MEGATRON
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.tensor.words import MATRICES

WORTH = 0.03  # of the seconds, or of the bytes held, that a lever must save to be named


def advice(setting) -> str:
    """The lever worth trying now: a cut, then the link, then memory, then fewer GPUs."""
    now, held = sum(setting.seconds(setting.link)), sum(setting.held)
    for change, words in _faster(setting):
        then = replace(setting, **change)
        seconds = sum(then.seconds(then.link))
        if seconds < (1 - WORTH) * now:
            return f"Try **{words}**: {took(seconds)}."
    then = replace(setting, sequence=True)
    if sum(then.held) < (1 - WORTH) * held:
        return f"Try **sequence parallel**: a GPU holds {amount(sum(then.held), 10**9)}, not {amount(held, 10**9)}."
    return "No lever here makes it faster by 3%."


def _faster(setting):
    """Changes that may save seconds, and words for them."""
    for name, cut in MEGATRON.items():
        if setting.cuts[name] != cut:
            yield {name: cut}, f"{MATRICES[name]} in {cut}"
    if setting.cuts != MEGATRON:
        yield dict(MEGATRON), "columns, then rows, in both halves"
    if setting.link != "nvlink":
        yield {"link": "nvlink"}, "NVLink"
