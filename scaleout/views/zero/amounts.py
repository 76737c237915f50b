"""How the view `zero` writes bytes and communication volumes."""

from __future__ import annotations

from scaleout.words.amounts import amount


def gigabytes(size: float) -> str:
    """Bytes to a tenth of a GB where three digits are fewer.

    >>> gigabytes(107.81e9), gigabytes(26.95e9), gigabytes(2.8e12)
    ('107.8 GB', '27.0 GB', '2.80 TB')
    """
    return amount(size, digits=4 if 100e9 <= size < 999.95e9 else 3)


def volume(pieces: float) -> str:
    """A communication volume, in units of N elements.

    >>> volume(2), volume(9), volume(2.9611)
    ('2N', '9N', '2.96N')
    """
    return f"{pieces:.3g}N"
