"""Quantities as a reader writes them: '12.5 GB', '12,5 GB', '1.2e10 bytes', '2 * 70 GB', 'about 5 billion'.

A quantity has a dimension (what it measures) and a unit of that dimension. The base unit of every dimension
has the factor 1: bytes, bytes per parameter, parameters, times, seconds, bytes/s, steps, sequences, share. GB is 10^9
bytes, GiB is 2^30 bytes. The number itself is read by `scaleout.exercises.engine.arithmetic`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from scaleout.exercises.engine import arithmetic

_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}

UNITS: dict[str, dict[str, float]] = {
    "bytes": {"bytes": 1, **_DECIMAL, **_BINARY},
    "bytes/parameter": {"bytes/parameter": 1, "bits/parameter": 1 / 8},
    "parameters": {"parameters": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9,
                   "trillion": 10**12},
    "times": {"times": 1},
    "seconds": {"s": 1, "ms": 1e-3, "µs": 1e-6, "min": 60, "h": 3600},
    "bytes/s": {"bytes/s": 1, "kB/s": 10**3, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12, "MiB/s": 2**20,
                "GiB/s": 2**30, "Mbit/s": 10**6 / 8, "Gbit/s": 10**9 / 8, "Tbit/s": 10**12 / 8},
    "steps": {"steps": 1},
    "sequences": {"sequences": 1},
    "share": {"share": 1, "%": 0.01},
}  # fmt: skip

# Dimensions whose bare number could be anything: the unit is what people get wrong.
_UNIT_NEEDED = ("bytes", "parameters", "seconds", "bytes/s", "share")

# From here on a bare number is written out: nobody means so many millions, or gigabytes.
_WRITTEN_OUT = {"parameters": 10**4, "bytes": 10**6}

# The unit of the other kind that a reader mixes up with this one: GB for GiB, and so on.
TWIN = dict(zip([*_DECIMAL, *_BINARY], [*_BINARY, *_DECIMAL], strict=True))

_NAMED = {"kilo": "kB", "mega": "MB", "giga": "GB", "tera": "TB", "peta": "PB",
          "kibi": "KiB", "mebi": "MiB", "gibi": "GiB", "tebi": "TiB", "pebi": "PiB"}  # fmt: skip
_COUNTED = {"thousand": "kB", "million": "MB", "billion": "GB", "bn": "GB", "trillion": "TB"}
_RATES = UNITS["bytes/s"]

# Other spellings, in lower case and with "/" for "per". Gb and GBps (where the case of the b tells bits from bytes)
# are handled apart.
_SPELLINGS = {
    "bytes": {"b": "bytes", "byte": "bytes", "bytes": "bytes", "gigs": "GB",
              **{unit.lower(): unit for unit in TWIN}, **{f"{unit.lower()}s": unit for unit in TWIN},
              **{f"{prefix}byte{end}": unit for prefix, unit in _NAMED.items() for end in ("", "s")},
              **{f"{count} {byte}": unit for count, unit in _COUNTED.items() for byte in ("b", "bytes")}},
    "bytes/parameter": {f"{size}{per}": f"{kind}/parameter"
                        for kind, sizes in {"bytes": ("bytes", "byte", "b"), "bits": ("bits", "bit")}.items()
                        for size in sizes for per in ("", "/parameter", "/param", "/weight")},
    "parameters": {"parameters": "parameters", "params": "parameters", "k": "thousand",
                   "thousand": "thousand", "m": "million", "mn": "million", "million": "million", "b": "billion",
                   "bn": "billion", "billion": "billion", "t": "trillion", "trillion": "trillion"},
    "times": {"times": "times", "x": "times", "fold": "times"},
    "seconds": {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "msec": "ms", "msecs": "ms",
                "millisecond": "ms", "milliseconds": "ms", "μs": "µs", "us": "µs", "usec": "µs",
                "microsecond": "µs", "microseconds": "µs", "m": "min", "mins": "min", "minute": "min",
                "minutes": "min", "hr": "h", "hrs": "h", "hour": "h", "hours": "h"},
    # All in lower case "gb/s" is taken as bytes, and "gbps" as bits.
    "bytes/s": {"byte/s": "bytes/s", "b/s": "bytes/s", **{unit.lower(): unit for unit in _RATES},
                **{unit.lower().replace("bit/s", end): unit for unit in _RATES if "bit" in unit
                   for end in ("bits/s", "bps")},
                **{f"{count} {byte}/s": f"{unit}/s" for count, unit in _COUNTED.items() for byte in ("b", "bytes")},
                **{f"{prefix}byte{end}/s": f"{unit}/s" for prefix, unit in _NAMED.items() for end in ("", "s")
                   if f"{unit}/s" in _RATES},
                **{f"{prefix}bit{end}/s": unit for prefix, unit in {"mega": "Mbit/s", "giga": "Gbit/s",
                                                                    "tera": "Tbit/s"}.items() for end in ("", "s")}},
    "steps": {"steps": "steps", "step": "steps", "rounds": "steps", "messages": "steps", "halving": "steps",
              "halvings": "steps"},
    "sequences": {"sequences": "sequences", "sequence": "sequences", "seqs": "sequences", "seq": "sequences",
                  "samples": "sequences"},
    "share": {"share": "share", "%": "%", "percent": "%", "per cent": "%", "pct": "%"},
}  # fmt: skip

# Numbers as words, and what they are parts of: "a quarter", "two thirds".
_COUNT = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "eleven": 11, "twelve": 12}  # fmt: skip
_PART = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
         "eighth": 8, "ninth": 9, "tenth": 10}  # fmt: skip
_FRACTION = re.compile(rf"(?:(an?|{'|'.join(_COUNT)})[\s-]+)?({'|'.join(_PART)})s?(?:\s+of\s.+)?", re.I)
_THOUSANDS = re.compile(rf"({'|'.join(arithmetic.WORDS)})\b\s*", re.I)
_WORDS_OF_ITS_OWN = ("bytes", "bytes/s", "parameters")  # dimensions that have them among their units' spellings
# Of parameters, as in 70B × 2 and in 2 × 70B.
_BILLIONS = {"m": "e6", "b": "e9", "t": "e12"}
_OF_MANY = re.compile(r"(?<=\d)[MTBb](?=\s*(?:[*/^]|x\s*[\d(]|bytes?\b))")
_LAST_OF = re.compile(r"([*x]\s*[\d.,]+)[Bb]$")

# What people write before the number, and after the unit, that says nothing of its size.
_LEAD_IN = re.compile(
    r"(?:[^\d=]*:)?\s*(?:(?:it is|it's|i think|i get|we get|every|about|approximately|approx\.?|around"
    r"|roughly|some|circa|ca?\.?|nearly|almost|exactly)\s+)*",
    re.I,
)
_TRAILING = re.compile(
    r"\s*(?:\b(?:(?:per|on each|for each|for every|of each|each|every)\s+(?:gpu|rank|device|card|node"
    r"|process|server|step)|each|in total|in all|total|altogether|of memory|or so)"
    r"|(?<=[%t])\s+(?:efficiency|mfu)"
    r"|(?<=[a-z]{2})(?:\s+|(?<!sqrt|ceil)(?<!loor)(?<!max|min)(?<!ln))\([^()]*\)|[.!?;,])\s*$",
    re.I,
)
_SHORT = 60  # characters of a reader's own words that are repeated back


@dataclass(frozen=True)
class Quantity:
    """A number with its unit; `base` is its size in the base unit of its dimension. `halves` and `lone` say how
    exactly it was written, as in `scaleout.exercises.engine.arithmetic.Figure`, in base units."""

    value: float
    unit: str
    dimension: str
    halves: tuple[float, ...] = ()
    lone: float = 0.0

    @property
    def base(self) -> float:
        return self.value * UNITS[self.dimension][self.unit]

    def __str__(self) -> str:
        return show(self.base, self.unit, self.dimension)


def parse(
    answer: object,
    dimension: str,
    default: str,
    accepted_units: tuple[str, ...] = (),
    unit_given: bool = False,
) -> Quantity:
    """Read {"value": "12.5", "unit": "GB"} or "12.5 GB". A bare number is taken in the unit `default` where
    the question names it (`unit_given`), and else unless units are what people get wrong: sizes below a million, rates,
    seconds and counts of parameters below 10,000 say theirs. Of shares one that is at most 1 needs none. Who leaves the
    unit out is asked to choose among `accepted_units`.

    Raises ValueError, one line that says what would be right.
    """
    size = "1.2e10 bytes" if default == "bytes" else f"12.5 {default}"
    example = f"write a number and a unit, such as {size}"
    text, unit = _parts(answer, example)
    text = _worded(_terms(text), dimension)
    if not text:
        raise ValueError(f"there is no number yet: {example}")
    if ends := arithmetic.range_in(text):
        raise ValueError(f"{ends[:_SHORT]} is a range, and one number is asked for: {example}")
    if dimension == "seconds" and (times := _times(text)):
        return Quantity(sum(parse(time, dimension, default).base for time in times), "s", dimension)
    try:
        figure, written = arithmetic.read(text)
    except ValueError as error:
        raise ValueError(f"{str(error)[:_SHORT]}: {example}") from None
    if dimension not in _WORDS_OF_ITS_OWN and (word := _THOUSANDS.match(written)):
        figure, written = figure * 10 ** arithmetic.WORDS[word[1].lower()], written[word.end() :]
    written = written.lstrip("-") or unit
    named = unit_named(written, dimension) if written else _unwritten(figure.value, dimension)
    if not named and not unit_given and dimension in _UNIT_NEEDED:
        raise ValueError(_which_unit(text, dimension, default, accepted_units))
    in_base = figure * UNITS[dimension][named or default]
    return Quantity(figure.value, named or default, dimension, in_base.halves, in_base.lone)


def unit_named(written: str, dimension: str) -> str:
    """The unit that `written` spells. Raises ValueError that lists the units when it spells none."""
    units = UNITS[dimension]
    if written in units:
        return written
    if dimension == "bytes" and re.fullmatch(r"[KMGTP]b|[KMGTPkmgtp]?[Bb]its?|(?:kilo|mega|giga|tera)bits?", written):
        raise ValueError(f"{written} reads as bits: memory is counted in bytes (8 bits), so use GB or GiB")
    if dimension == "bytes/s" and (rate := re.fullmatch(r"([kKMGT]i?)([bB])(?:/s(?:ec(?:ond)?)?|ps)", written)):
        prefix = rate[1].replace("K", "k")
        return unit_named(f"{prefix}bit/s" if rate[2] == "b" else f"{prefix}B/s", dimension)
    if dimension == "bytes/s" and re.fullmatch("[KMGT]BPS", written):
        raise ValueError(f"{written} may be bits or bytes: use {written[0]}bit/s or {written[0]}B/s")
    if (short := _short(written, dimension)) in _SPELLINGS[dimension]:
        return _SPELLINGS[dimension][short]
    if dimension == "bytes" and re.fullmatch("[kmgtp]i?", short):
        decimal, binary = ((short[0].upper() if short[0] != "k" else "k") + "B", short[0].upper() + "iB")
        raise ValueError(
            f"{written} of what? Choose a unit: use {decimal} ({_DECIMAL[decimal]:,} bytes) or "
            f"{binary} ({_BINARY[binary]:,} bytes)"
        )
    if dimension == "bytes" and short in _COUNTED:
        raise ValueError(f"{written} of what? Choose a unit: use GB or GiB, or write {written} bytes")
    if dimension == "bytes/s" and written in UNITS["bytes"]:
        raise ValueError(f"{written} is a size, not a rate: use {written}/s")
    raise ValueError(f"{written[:_SHORT]!r} is not a unit here: use {', '.join(units)}")


def _short(written: str, dimension: str) -> str:
    """A spelling in lower case, with "/" for "per" and nothing that only says what is counted."""
    short = " ".join(written.lower().split())
    if short in _SPELLINGS[dimension]:
        return short
    short = re.sub(r"\s*(?:/|\bper\b|\bfor each\b|\ba\b)\s*", "/", short)
    short = re.sub(r"/sec(?:onds?)?$|/second$", "/s", short)
    short = re.sub(r"^([kmgtp]i?)\s?bytes?(?=$|/)", r"\1b", short)  # GBytes
    return re.sub(r"\s+(?:param(?:eter)?|weight)s$", "", short) if dimension == "parameters" else short


def show(base: float, unit: str, dimension: str) -> str:
    """A size in base units as words, in `unit`: four digits are enough to compare by."""
    number = base / UNITS[dimension][unit]
    if number and not 1e-3 <= abs(number) < 1e6:
        digits = f"{number:.3g}"
    elif abs(number) >= 1000:
        digits = f"{number:,.0f}"
    else:
        digits = f"{number:.4g}"
    if digits == "1":
        unit = re.sub("^(byte|parameter|step|sequence)s", r"\1", unit)
    return f"{digits} {unit}"


def _unwritten(number: float, dimension: str) -> str:
    """The unit of a bare number that tells enough; "" for any other."""
    if dimension == "share" and number <= 1:
        return "share"
    return dimension if number >= _WRITTEN_OUT.get(dimension, math.inf) else ""


def _which_unit(text: str, dimension: str, default: str, accepted_units: tuple[str, ...]) -> str:
    """What is said to a number that could be in any unit."""
    units = [
        name
        for name in UNITS[dimension]
        if name in (default, TWIN.get(default), "million", "s", "Gbit/s", "share")
        and (name in accepted_units or not accepted_units)
    ]
    return f"{text[:_SHORT]} of what? Choose a unit: use {' or '.join(units)}"


def _parts(answer: object, example: str) -> tuple[str, str]:
    """The text from the number on and, where it was given apart, the unit. Of "2 * 70 = 140 GB" what is behind
    the last sign of equality."""
    unit = ""
    if isinstance(answer, dict):
        if "value" not in answer:
            raise ValueError(f'the answer has no "value": {example}')
        unit, answer = answer.get("unit") or "", answer["value"]
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not isinstance(unit, str):
        raise ValueError(f"the answer is a {type(answer).__name__}, not a number: {example}")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise ValueError(f"{answer} is not a size: {example}")
    if isinstance(answer, int) and abs(answer) > arithmetic.LARGEST:
        raise ValueError(f"that is larger than anything measured: {example}")
    written = re.sub(r"×\s*$", "x", str(answer))  # "2 ×" are times, "2 *" lacks a number
    sides = [side for side in re.split("[=≈≃~]", arithmetic.plain(written)) if side.strip()]
    text = _LEAD_IN.sub("", sides[-1].strip(), count=1) if sides else ""
    while (shorter := _TRAILING.sub("", text)) != text:
        text = shorter
    return text.strip(), unit.strip()


def _terms(text: str) -> str:
    """ "100 ms + 260 ms" with its unit only at the end."""
    unit = re.search("[a-zµ%][a-z/%]*$", text, re.I)
    return re.sub(rf"(?<=[\d.)])\s*{re.escape(unit[0])}\s*(?=[-+])", " ", text) if unit else text


def _worded(text: str, dimension: str) -> str:
    """A text whose number is a word, or has billions of parameters in a sum, in digits."""
    if dimension == "share" and (part := _FRACTION.fullmatch(text)):
        return f"{_COUNT.get((part[1] or 'a').lower(), 1)}/{_PART[part[2].lower()]}"
    text = re.sub(rf"^({'|'.join(_COUNT)})\b", lambda word: str(_COUNT[word[0].lower()]), text, flags=re.I)
    if dimension not in ("bytes", "parameters"):
        return text
    return _LAST_OF.sub(r"\1e9", _OF_MANY.sub(lambda word: _BILLIONS[word[0].lower()], text))


def _times(text: str) -> list[str]:
    """The parts of "12 min 39 s"; [] where there is one time only."""
    parts = re.findall(r"(?<![\d.,])[\d.,]+(?:e[+-]?\d+)?\s*[a-zµμ]+", text, re.I)
    joined = re.sub(r"\s|\band\b", "", text)
    return parts if len(parts) > 1 and re.sub(r"\s", "", "".join(parts)) == joined else []
