"""Quantities as a reader writes them: '12.5 GB', '12,5 GB', '1.2e10 bytes', '6.5 billion'.

A quantity has a dimension (what it measures) and a unit of that dimension. The base unit of every dimension
has the factor 1: bytes, bytes per parameter, parameters, times, seconds, bytes/s, steps, share. GB is 10^9
bytes, GiB is 2^30 bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}

UNITS: dict[str, dict[str, float]] = {
    "bytes": {"bytes": 1, **_DECIMAL, **_BINARY},
    "bytes/parameter": {"bytes/parameter": 1, "bits/parameter": 1 / 8},
    "parameters": {"parameters": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9,
                   "trillion": 10**12},
    "times": {"times": 1},
    "seconds": {"s": 1, "ms": 1e-3, "µs": 1e-6},
    "bytes/s": {"bytes/s": 1, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12, "GiB/s": 2**30,
                "Mbit/s": 10**6 / 8, "Gbit/s": 10**9 / 8},
    "steps": {"steps": 1},
    "share": {"share": 1, "%": 0.01},
}  # fmt: skip

# Dimensions whose bare number could be anything: the unit is what people get wrong.
_ASKED = ("bytes", "parameters", "seconds", "bytes/s", "share")

# The unit of the other kind that a reader mixes up with this one: GB for GiB, and so on.
TWIN = dict(zip([*_DECIMAL, *_BINARY], [*_BINARY, *_DECIMAL], strict=True))

# Other spellings, in lower case. Gb and Mb (capital, then small b) are handled apart: they may mean bits.
_SPELLINGS = {
    "bytes": {"b": "bytes", "byte": "bytes", "bytes": "bytes", "gigabytes": "GB", "gigabyte": "GB",
              "megabytes": "MB", "terabytes": "TB", "gibibytes": "GiB", "gigs": "GB",
              **{unit.lower(): unit for unit in (*_DECIMAL, *_BINARY)}},
    "bytes/parameter": {"bytes/parameter": "bytes/parameter", "bytes/param": "bytes/parameter",
                        "b/param": "bytes/parameter", "b/parameter": "bytes/parameter",
                        "bytes": "bytes/parameter", "byte": "bytes/parameter", "b": "bytes/parameter",
                        "bits": "bits/parameter", "bits/parameter": "bits/parameter",
                        "bits/param": "bits/parameter"},
    "parameters": {"parameters": "parameters", "params": "parameters", "k": "thousand",
                   "thousand": "thousand", "m": "million", "million": "million", "b": "billion",
                   "bn": "billion", "billion": "billion", "t": "trillion", "trillion": "trillion"},
    "times": {"times": "times", "x": "times", "×": "times"},
    "seconds": {"s": "s", "sec": "s", "second": "s", "seconds": "s", "ms": "ms", "msec": "ms",
                "millisecond": "ms", "milliseconds": "ms", "µs": "µs", "μs": "µs", "us": "µs",
                "microsecond": "µs", "microseconds": "µs"},
    # All in lower case "gb/s" is taken as bytes; "Gb/s" and "gbps" are bits (below, and here).
    "bytes/s": {"bytes/s": "bytes/s", "byte/s": "bytes/s", "b/s": "bytes/s", "mb/s": "MB/s", "gb/s": "GB/s",
                "tb/s": "TB/s", "gib/s": "GiB/s", "mbit/s": "Mbit/s", "gbit/s": "Gbit/s", "mbits/s": "Mbit/s",
                "gbits/s": "Gbit/s", "mbps": "Mbit/s", "gbps": "Gbit/s"},
    "steps": {"steps": "steps", "step": "steps"},
    "share": {"share": "share", "%": "%", "percent": "%", "per cent": "%"},
}  # fmt: skip

_POWER = r"\s*[x×*·⋅]\s*10\s*(?:\^|\*\*)\s*"
_SPACE = " \u00a0\u202f"  # a space, one that does not break, and a narrow one of that kind
_NUMBER = re.compile(rf"[+-]?(?:\d[\d.,_'{_SPACE}]*|[.,]\d+)(?:e[+-]?\d+|{_POWER}[+-]?\d+)?", re.I)
_LARGEST = 1e30
_SHORT = 60  # characters of a reader's own words that are repeated back


@dataclass(frozen=True)
class Quantity:
    """A number with its unit; `base` is its size in the base unit of its dimension."""

    value: float
    unit: str
    dimension: str

    @property
    def base(self) -> float:
        return self.value * UNITS[self.dimension][self.unit]

    def __str__(self) -> str:
        return show(self.base, self.unit, self.dimension)


def parse(answer: object, dimension: str, default: str, decimal_comma: bool = False) -> Quantity:
    """Read {"value": "12.5", "unit": "GB"} or "12.5 GB". A bare number is taken in the unit `default`, except
    where units are what people get wrong: sizes, rates, seconds, shares and counts of parameters say theirs.

    "1,024" is 1024, or with `decimal_comma` 1.024: nothing in the text tells.
    Raises ValueError, one line that says what would be right.
    """
    example = f"write a number and a unit, such as {_example(default)}"
    text, unit = _parts(answer, example)
    match = _NUMBER.match(text)
    if not match:
        raise ValueError(f"{text[:_SHORT]!r} does not start with a number: {example}" if text
                         else f"there is no number yet: {example}")  # fmt: skip
    value, written = _number(match.group(), example, decimal_comma), text[match.end() :].strip()
    if re.match(r"[-+*/×·⋅^(]|x\s*\d", written):
        raise ValueError(f"write the result, not the sum {text[:_SHORT]!r}: {example}")
    if not (written or unit) and dimension in _ASKED:
        others = [name for name in UNITS[dimension]
                  if name in (default, TWIN.get(default), "million", "s", "Gbit/s", "share")]  # fmt: skip
        number = match.group()[:_SHORT].strip()
        raise ValueError(f"{number} of what? Choose a unit: use {' or '.join(others)}")
    return Quantity(value, unit_named(written or unit or default, dimension), dimension)


def unit_named(written: str, dimension: str) -> str:
    """The unit that `written` spells. Raises ValueError that lists the units when it spells none."""
    units = UNITS[dimension]
    if written in units:
        return written
    if dimension == "bytes" and re.fullmatch(r"[KMGTP]b|[KMGTPkmgtp]?[Bb]its?", written):
        raise ValueError(f"{written} reads as bits: memory is counted in bytes (8 bits), so use GB or GiB")
    if dimension == "bytes/s" and re.fullmatch(r"[MG]b/s(?:ec(?:ond)?)?", written):
        return f"{written[0]}bit/s"
    short = re.sub(r"\s*(?:/|\bper\b|\bfor each\b)\s*", "/", written.lower().rstrip("."))
    short = re.sub("/sec(?:onds?)?$|/second$", "/s", short)
    short = re.sub(r"^([kmgtp]i?)\s?bytes?$", r"\1b", short)  # GBytes
    if dimension == "bytes" and re.fullmatch("[kmgtp]i?", short):
        decimal, binary = ((short[0].upper() if short[0] != "k" else "k") + "B", short[0].upper() + "iB")
        raise ValueError(f"{written} of what? Choose a unit: use {decimal} ({_DECIMAL[decimal]:,} bytes) or "
                         f"{binary} ({_BINARY[binary]:,} bytes)")  # fmt: skip
    known = _SPELLINGS[dimension].get(short)
    if known is None:
        raise ValueError(f"{written[:_SHORT]!r} is not a unit here: use {', '.join(units)}")
    return known


def show(base: float, unit: str, dimension: str) -> str:
    """A size in base units as words, in `unit`: four digits are enough to compare by."""
    number = base / UNITS[dimension][unit]
    if number and not 1e-3 <= abs(number) < 1e6:
        digits = f"{number:.3g}"
    elif abs(number) >= 1000:
        digits = f"{number:,.0f}"
    else:
        digits = f"{number:.4g}"
    return f"{digits} {unit}"


def _example(unit: str) -> str:
    return {"bytes": "1.2e10 bytes"}.get(unit, f"12.5 {unit}")


def _parts(answer: object, example: str) -> tuple[str, str]:
    """The text of the number and, where it was given apart, of the unit."""
    unit = ""
    if isinstance(answer, dict):
        if "value" not in answer:
            raise ValueError(f'the answer has no "value": {example}')
        answer, unit = answer["value"], answer.get("unit") or ""
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not isinstance(unit, str):
        raise ValueError(f"the answer is a {type(answer).__name__}, not a number: {example}")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise ValueError(f"{answer} is not a size: {example}")
    if isinstance(answer, int) and abs(answer) > _LARGEST:
        raise ValueError(f"that is larger than anything measured: {example}")
    return str(answer).strip().replace("−", "-").lstrip("~≈= "), unit.strip()


def _number(text: str, example: str, decimal_comma: bool) -> float:
    text = re.sub(_POWER, "e", text.strip(), flags=re.I)
    digits, _, power = re.sub(rf"[_'{_SPACE}]", "", text).lower().rstrip(".,").partition("e")
    try:
        value = float(f"{_plain(digits, decimal_comma)}e{power or 0}")
    except ValueError:
        raise ValueError(f"{text[:_SHORT]!r} is not one number: {example}") from None
    if value < 0:
        raise ValueError(f"a size is not negative: {example}")
    if value > _LARGEST:
        raise ValueError(f"that is larger than anything measured: {example}")
    return value


def _plain(digits: str, decimal_comma: bool) -> str:
    """Digits with a point for decimals and nothing between thousands.

    Of two kinds of mark the last is the decimal one. A mark that comes twice parts thousands, and so does one
    comma before exactly three digits (not after a 0) unless `decimal_comma`.
    """
    if "." in digits and "," in digits:
        point = max(digits.rfind("."), digits.rfind(","))
        return re.sub(r"[.,]", "", digits[:point]) + "." + digits[point + 1 :]
    if decimal_comma and digits.count(",") == 1:
        return digits.replace(",", ".")
    if re.fullmatch(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+|[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}", digits):
        return re.sub(r"[.,]", "", digits)
    return digits.replace(",", ".")
