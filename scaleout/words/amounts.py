"""Numbers, counts, bytes and times as people write them, and lists of words."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

UNITS = {10**9: ("B", "kB", "MB", "GB", "TB", "PB"), 2**30: ("B", "KiB", "MiB", "GiB", "TiB", "PiB")}
# (below how many seconds, the unit, its seconds): what people say, and what a stopwatch shows.
CLOCK = (
    (1e-3, "µs", 1e-6),
    (1.0, "ms", 1e-3),
    (600.0, "s", 1.0),
    (14_400.0, "min", 60.0),
    (345_600.0, "h", 3600.0),
    (inf, "days", 86_400.0),
)
STOPWATCH = (*CLOCK[:2], (inf, "s", 1.0))


def quantity(value: float, digits: int = 3, trim: bool = False) -> str:
    """A number for people: `digits` significant figures, thousands separated, no exponent. trim: without zeros at the
    end of its decimals.

    >>> quantity(1234567.0), quantity(140.0), quantity(0.01234), quantity(1.5), quantity(1.5, trim=True)
    ('1,230,000', '140', '0.0123', '1.50', '1.5')
    """
    if value == 0:
        return "0"
    places = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded one: 0.9996 is 1.00
    words = f"{round(value, places):,.{max(0, places)}f}"
    return words.rstrip("0").rstrip(".") if trim and "." in words else words


def short(value: float) -> str:
    """A round number in as few characters as can be read.

    >>> short(0.25), short(2048.0), short(1e6), short(5e10)
    ('0.25', '2,048', '1M', '50bn')
    """
    for least, name in ((1e9, "bn"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / least * (10 if name == 'k' else 1):,g}{name}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def count(number: int, name: str) -> str:
    """So many things of a name.

    >>> count(1, "sequence"), count(2048, "GPU")
    ('1 sequence', '2,048 GPUs')
    """
    return f"{number:,} {name}{'s' if number > 1 else ''}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Several words in a row.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def percent(share: float, brief: bool = False) -> str:
    """A share with a decimal, and no zero for what is not.

    >>> percent(0.4123), percent(0.0), percent(0.0003), percent(0.9999), percent(1.0), percent(0.0003, brief=True)
    ('41.2%', '0%', 'under 0.1%', 'over 99.9%', '100%', '<0.1%')
    """
    value = 100 * share
    if 0 < value < 0.05:
        return "<0.1%" if brief else "under 0.1%"
    if 99.95 <= value < 100 - 1e-9:
        return ">99.9%" if brief else "over 99.9%"
    return f"{value:.1f}".removesuffix(".0") + "%"


def unit(size: float, giga: int, digits: int = 3) -> tuple[int, str]:
    """(bytes, name) of the unit in which so many bytes are from 1 to 1000 when so many digits of them are said.
    giga: 10**9 or 2**30."""
    kilo = 1000 if giga == 10**9 else 1024
    power = next((k for k in range(5, 0, -1) if abs(size) >= (1 - 0.5 / 10**digits) * kilo**k), 0)
    return kilo**power, UNITS[giga][power]


def amount(size: float, giga: int = 10**9, digits: int = 3, trim: bool = False) -> str:
    """Bytes in few digits: '27.0 GB', '786 MB'; of bytes themselves no decimals, '4 B'. giga: 10**9 or 2**30."""
    unit_bytes, name = unit(size, giga, digits)
    return f"{quantity(size / unit_bytes, digits, trim or unit_bytes == 1)} {name}"


def adding_up(sizes: Sequence[float], unit_bytes: float, places: int) -> list[float]:
    """The sizes in units of `unit_bytes`, rounded so that their sum is the rounded sum: the largest
    remainders go up."""
    steps = [size / unit_bytes * 10**places for size in sizes]
    floors = [int(step) for step in steps]
    order = sorted(range(len(steps)), key=lambda i: floors[i] - steps[i])
    for i in order[: round(sum(steps)) - sum(floors)]:
        floors[i] += 1
    return [part / 10**places for part in floors]


def clock(seconds: float, units: Sequence[tuple[float, str, float]] = CLOCK) -> tuple[str, float]:
    """The unit in which people speak of an amount of time as long as this, to three digits, and its seconds."""
    return next((name, unit_seconds) for below, name, unit_seconds in units if abs(seconds) < 0.9995 * below)


def took(seconds: float, units: Sequence[tuple[float, str, float]] = CLOCK) -> str:
    """An amount of time in words.

    >>> took(0.0), took(0.0123), took(7800.0), took(7800.0, STOPWATCH)
    ('0 ms', '12.3 ms', '130 min', '7,800 s')
    """
    name, unit_seconds = clock(seconds, units) if seconds else ("ms", 1.0)
    return f"{quantity(seconds / unit_seconds)} {name}"
