"""How the view `zero` says bytes and counts."""

from __future__ import annotations

from scaleout.words.amounts import amount

COUNTS: dict[float, str] = {1: "once", 2: "twice", 3: "three times"}


def gigabytes(size: float) -> str:
    """Bytes to a tenth of a GB where three digits are fewer.

    >>> gigabytes(107.81e9), gigabytes(26.95e9), gigabytes(2.8e12)
    ('107.8 GB', '27.0 GB', '2.80 TB')
    """
    return amount(size, digits=4 if 100e9 <= size < 999.95e9 else 3)


def times(pieces: float) -> str:
    """How often all weights' bytes are sent.

    >>> times(2), times(9), times(2.9611)
    ('twice', '9 times', '2.96 times')
    """
    return COUNTS.get(pieces, f"{pieces:.3g} times")
