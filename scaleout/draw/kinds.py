"""Kinds of bytes as a picture stacks them, from the bottom up: their colours, and their names in a key."""

from __future__ import annotations

from collections.abc import Iterable

from scaleout.draw import labels
from scaleout.memory.accounts import Account
from scaleout.memory.tape import KINDS

COLOURS = dict(zip(KINDS, ("c1", "c2", "c6", "c2", "c3", "c8", "c8"), strict=True)) | {"copies": "c5"}
PALE = {"master": 0.55, "temporaries": 0.55}  # beside what has the same colour
ORDER = ("optimizer", "master", "weights", "copies", "gradients", "activations", "logits", "temporaries")
NAMES = {"optimizer": "Adam's averages", "master": "fp32 master", "copies": "bf16 copies", "temporaries": "scratch"}
MOMENTS = {"rest": "rest", "forward": "forward", "loss": "loss", "head": "head", "block": "blocks",
           "embedding": "embed", "optimizer": "update"}  # fmt: skip


def apart(ledger: Account, moment: str) -> dict[str, int]:
    """Bytes by kind at a moment, or at "rest", with what is a copy of a weight apart from the weights."""
    if moment == "rest":
        return dict.fromkeys(ORDER, 0) | ledger.rest
    copies = ledger.copies(moment)
    kinds = ledger.moments[moment]
    return {kind: (kinds | {"weights": kinds["weights"] - copies, "copies": copies})[kind] for kind in ORDER}


def keys(shown: Iterable[str], x: float, y: float, width: float) -> tuple[str, float]:
    """A key of these kinds in the order of the stack: the marks, and the height that they take."""
    present = set(shown)
    kinds = [kind for kind in ORDER if kind in present]
    pairs = [(COLOURS[kind] + ("%" if kind in PALE else ""), NAMES.get(kind, kind)) for kind in kinds]
    return labels.keys(x, y, width, pairs)
