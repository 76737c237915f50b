"""One number in the bits of two formats, and on the line beside the numbers that each of them has."""

from __future__ import annotations

import math

from scaleout.draw import svg
from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.rounding import rounded

NUMBER = 1000.3
SHOWN = ("fp16", "bf16")
LO, HI = 995.2, 1004.8  # of the line: bf16 has three numbers there
LEFT, RIGHT = 44.0, 62.0  # for names, and for what the bits stand for
HIGH, ROW = 22.0, 84.0  # of a bit, and from one format to the next
FILLS = {"sign": 0.12, "exponent": 0.5, "mantissa": 0.22}  # opacities


def fields(x: float, f: Format) -> dict[str, str]:
    """{field: its bits} of a normal number above 0, once rounded to the format. ValueError for any other number."""
    y = rounded(x, f)
    octave = math.frexp(y)[1] - 1 if math.isfinite(y) and y > 0 else None
    if octave is None or octave < f.lowest_octave:
        raise ValueError(f"{x!r} is no normal number above 0 of {f.name}")
    steps = step(x, f)
    return {"sign": "0", "exponent": f"{octave + f.bias:0{f.exponent}b}", "mantissa": f"{steps:0{f.mantissa}b}"}


def step(x: float, f: Format) -> int:
    """How many steps above the beginning of its octave the number lies to which x is rounded."""
    y = rounded(x, f)
    return round(math.ldexp(y, f.mantissa - math.frexp(y)[1] + 1)) - 2**f.mantissa


def bits(width: float) -> str:
    """The bits of either format with what they say, and under them both on one line."""
    marks = [_bits(FORMATS[name], 6 + ROW * i, width) for i, name in enumerate(SHOWN)]
    y = 6 + ROW * len(SHOWN)
    marks.append(_line(y, width))
    readings = "; ".join(
        f"{name}: {' '.join(fields(NUMBER, FORMATS[name]).values())}, which is {rounded(NUMBER, FORMATS[name]):,g}"
        for name in SHOWN
    )
    return svg.figure(width, y + 92, "".join(marks), f"The number {NUMBER:,} in 16 bits. {readings}")


def _bits(f: Format, y: float, width: float) -> str:
    """A cell for each bit; what a field is above, what it says here beneath."""
    cell, wide = min(26.0, (width - LEFT - RIGHT) / 16), svg.broad(width)
    start = 2.0 ** (math.frexp(NUMBER)[1] - 1)
    spacing = math.ldexp(start, -f.mantissa)
    says = {
        "sign": "",
        "exponent": f"from {start:,.0f} on",
        "mantissa": f"step {step(NUMBER, f):,} of {2**f.mantissa:,}" + f", {spacing:g} apart" * wide,
    }
    x, top = LEFT, y + 18
    marks = [svg.text(0, top + 16, f.name, bold=True)]
    for name, ones in fields(NUMBER, f).items():
        right = x + cell * len(ones)
        edge, anchor = (right, "end") if name == "sign" else ((x + right) / 2, "middle")
        marks += [
            svg.text(edge, top - 6, name, anchor=anchor, fill="muted", size=svg.SMALL),
            svg.text((x + right) / 2, top + HIGH + 15, says[name], anchor="middle", size=svg.SMALL),
        ]
        for bit in ones:
            mark = f"{f.name} {name}"
            marks += [
                svg.rect(x + 0.5, top, cell - 1.5, HIGH, "compute", opacity=FILLS[name], mark=mark),
                svg.text(x + cell / 2, top + 15.5, bit, anchor="middle", size=svg.SMALL),
            ]
            x += cell
        x += 1.5
    marks.append(svg.text(x + 6, top + 16, f"{rounded(NUMBER, f):,g}", bold=True))
    return "".join(marks)


def _line(y: float, width: float) -> str:
    """The neighbourhood of the number: ticks where a format has one, a dot on the nearest."""

    def x_of(value: float) -> float:
        return LEFT + (value - LO) / (HI - LO) * (width - LEFT - 4)

    x, marks = x_of(NUMBER), []
    for f, high in zip((FORMATS[name] for name in SHOWN), (y + 34, y + 64), strict=True):
        spacing, nearest = math.ldexp(2.0 ** (math.frexp(NUMBER)[1] - 1), -f.mantissa), rounded(NUMBER, f)
        marks += [svg.text(0, high + 4, f.name, bold=True), svg.line(LEFT, high, width - 4, high, "muted")]
        marks += [
            svg.line(x_of(i * spacing), high - 5, x_of(i * spacing), high + 5, "ink", mark=f"{f.name} tick")
            for i in range(math.ceil(LO / spacing), math.floor(HI / spacing) + 1)
        ]
        marks.append(f'<circle cx="{svg.num(x_of(nearest))}" cy="{svg.num(high)}" r="4.5" fill="{svg.colour("key")}"/>')
    marks += [
        svg.line(x, y + 20, x, y + 64, "ink", 1, "3 2"),
        svg.text(x - 5, y + 22, f"{NUMBER:,}", anchor="end", bold=True, halo=True),
    ]
    marks += [
        svg.text(x_of(number), y + 84, f"{number:,}", anchor="middle", fill="muted", size=svg.SMALL)
        for number in (996, 1000, 1004)
    ]
    nearest = rounded(NUMBER, FORMATS[SHOWN[0]])
    marks.append(svg.text(x_of(nearest) + 4, y + 22, f"{nearest:,g}", size=svg.SMALL, halo=True))
    return "".join(marks)
