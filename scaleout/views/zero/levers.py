"""Which lever to move in the view `zero`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw.amounts import amount
from scaleout.draw.labels import took

GIGA = 10**9
WORTH = 0.03  # of the bytes held, or of the seconds, that a lever must save to be named


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, and what it gives."""

    change: dict
    words: str
    gives: str


def advice(setting) -> Advice | None:
    return None
