"""The picture of the view `precision`: a histogram of gradients above the strip of a format, and what `beneath` and
`windows` draw."""

from __future__ import annotations

import math

from scaleout.draw import guess, svg
from scaleout.draw.labels import fitting
from scaleout.draw.ruler import Clear, bars, outline, power, raised, strip, two
from scaleout.numerics.formats import FORMATS
from scaleout.views.precision import beneath, windows
from scaleout.views.precision.frame import Axes
from scaleout.views.precision.parts import spoken
from scaleout.views.precision.setting import Setting
from scaleout.words.amounts import percent

SHOWN = ("fp16", "bf16", "e5m2", "e4m3", "e2m1")
PALE = 0.45  # of bars that keep fewer bits


def picture(setting: Setting, width: int) -> str:
    """The whole picture."""
    axes = Axes(setting, width)
    body = [_title(axes), _bars(axes, True), axes.ruler.axis(axes.places.bars[1], axes.places.tick_octaves)]
    if setting.shares:
        body += [windows.named(axes), windows.rows(axes), windows.keys(axes)]
    else:
        body += [
            _strips(axes),
            _ends(axes),
            _marks(axes),
            beneath.course(axes) if setting.searches else beneath.parts(axes),
        ]
    body += [beneath.shares(axes), mark(axes)]
    label = (
        f"Gradients of {spoken(setting.recorded)}, one bar per power of two, above a strip for {setting.format}: as "
        f"wide "
        "as its range, as high as its significant bits. Bars beyond either end are lost."
    )
    return svg.figure(width, axes.places.height, "".join(body), label)


def locked(setting: Setting, width: int) -> str:
    """The gradients as they are, above the format's normal numbers alone."""
    axes = Axes(setting, width)
    f, (top, foot), ruler = setting.f, axes.places.strip, axes.ruler
    left, right = ruler.x(f.lowest_octave), ruler.x(math.log2(f.largest))
    words = (f"{f.name}'s normal numbers", f"{f.digits} bits, from {two(f.lowest_octave)} up")
    body = [
        _title(axes),
        _bars(axes, False),
        ruler.axis(axes.places.bars[1], axes.places.tick_octaves),
        svg.text(ruler.left, top - 8, fitting(TITLES["asked"], width - 8), fill="muted", size=svg.SMALL),
        svg.rect(left, foot - f.digits * axes.bit, right - left, f.digits * axes.bit, "compute", opacity=0.22),
        svg.line(ruler.left, foot + 0.5, ruler.right, foot + 0.5, "muted"),
        *(
            raised(svg.text((left + right) / 2, (top + foot) / 2 + drop, line, anchor="middle", size=svg.SMALL))
            for line, drop in zip(words, (-4, 14), strict=True)
        ),
        svg.text((ruler.at(f.lowest_octave - 6)), (top + foot) / 2 + 6, "?", anchor="middle", bold=True, size=16),
        beneath.parts(axes, False),
        beneath.shares(axes, False),
        mark(axes),
    ]
    label = (
        f"Gradients of {spoken(setting.recorded)}, one bar per power of two, above the normal numbers of {f.name}, "
        f"from "
        f"{power(f.lowest_octave)} up. The numbers below them are not drawn."
    )
    return svg.figure(width, axes.places.height, "".join(body), label)


TITLES = {
    "asked": ("how far does the format go below its normal numbers?", "how far down does it go?"),
    "strip": ("the strip of {}: as wide as its range, as high as its significant bits",
              "{}: wide as its range, high as its bits"),
}  # fmt: skip


def _title(axes: Axes) -> str:
    s = axes.setting
    kind = "gradients of the weights of" if s.kind == "weights" else "gradients that come back to"
    ways = (
        f"{kind} {spoken(s.recorded)}, {s.moment}: one bar per power of two",
        f"{spoken(s.recorded)}, {s.moment}: one bar per power of two",
        f"{spoken(s.recorded)}, {s.moment}",
    )
    return svg.text(axes.ruler.left, axes.places.title, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL)


# --- the histogram --------------------------------------------------------------------------------------------------


def _bars(axes: Axes, alive: bool) -> str:
    """One bar per power of two; alive: colored by what becomes of the numbers."""
    s, (top, foot) = axes.setting, axes.places.bars
    shift, f = s.octaves if alive else 0, s.f
    rows = s.h.items()
    tallest = max(n for _, n in rows)
    fills = []
    for octave, _ in rows:
        v = octave + shift
        lost = v < s.zero_below or v > f.highest_octave
        subnormal = v < f.lowest_octave
        plain = not alive or s.shares
        fills.append(("c6", 1.0) if plain else ("accent", 1.0) if lost else ("c6", PALE if subnormal else 1.0))
    total = sum(s.h.counts)
    drawn = [(e, (foot - top) * n / tallest, f"{power(e)}: {percent(n / total)}" if alive else "") for e, n in rows]
    return bars(axes.ruler, drawn, shift, foot, fills)


def _ends(axes: Axes) -> str:
    """Where zero begins and where the format ends."""
    s, ruler, parts = axes.setting, axes.ruler, []
    f, y, (_, foot), (top, low) = s.f, axes.places.ends, axes.places.bars, axes.places.strip
    for name, octave in (("zero", s.zero_below), ("top", math.log2(f.largest))):
        x = ruler.x(octave)
        shown = 1.0 if ruler.holds(octave) else 0.0
        lines = svg.line(x, y + 4, x, foot, "accent", 1.5, mark=f"{name} line") + svg.line(
            x, top, x, low, "accent", 1.5, mark=f"{name} end"
        )
        parts.append(f'<g opacity="{svg.num(shown)}">{lines}</g>')
    if ruler.holds(s.zero_below):
        x = ruler.at(s.zero_below)
        parts.append(
            raised(
                svg.text(
                    x - 5,
                    y,
                    fitting((f"zero below {two(s.zero_below)}", two(s.zero_below)), x - 8 - ruler.left),
                    anchor="end",
                    fill="accent",
                    bold=True,
                    size=svg.SMALL,
                    mark="zero words",
                )
            )
        )
    else:
        parts.append(
            raised(
                svg.text(
                    ruler.left, y, f"◂ zero below {two(s.zero_below)}", fill="muted", size=svg.SMALL, mark="zero words"
                )
            )
        )
    if ruler.holds(math.log2(f.largest)):
        parts.append(_top(axes, ruler.at(math.log2(f.largest))))
    else:
        parts.append(
            raised(
                svg.text(
                    ruler.right,
                    y,
                    f"infinite from {two(f.highest_octave + 1)} ▸",
                    anchor="end",
                    fill="muted",
                    size=svg.SMALL,
                    mark="top words",
                )
            )
        )
    return "".join(parts)


def _top(axes: Axes, x: float) -> str:
    """Words at the upper end: right of it where they fit, else left of it."""
    f, ruler = axes.setting.f, axes.ruler
    say = "clipped to" if f.saturates else "infinite above"
    words = f"{say} {f.largest:,.0f}"
    right = svg.measure(words, svg.SMALL, bold=True) < ruler.right - x - 6
    return svg.text(
        x + 5 if right else x - 5,
        axes.places.ends,
        words,
        anchor="start" if right else "end",
        fill="accent",
        bold=True,
        size=svg.SMALL,
        mark="top words",
    )


def _marks(axes: Axes) -> str:
    """The largest gradient of the part, and of all that share its loss scale."""
    s, ruler, foot, parts = axes.setting, axes.ruler, axes.places.bars[1], []
    of_all = s.peak[0] + s.octaves
    words = f"largest of step {s.step}" if s.searches else "largest of all"
    rows = [("all", of_all, words, 34)]
    if of_all - s.largest > 0.01:
        rows.append(("part", s.largest, "largest here", 18))
    for name, size, words, high in rows:
        overflowing = name == "all" and s.overflows
        x, fill = ruler.x(size), "accent" if overflowing else "ink"
        half = svg.measure(words, svg.SMALLEST) / 2
        middle = min(max(x, ruler.left + half), ruler.right - half)
        parts += [
            svg.line(x, foot - high + 3, x, foot, fill, 2 if overflowing else 1.5, mark=f"largest {name}"),
            svg.text(
                middle,
                foot - high,
                words,
                anchor="middle",
                fill=fill,
                bold=overflowing,
                size=svg.SMALLEST,
                halo=True,
                mark=f"largest words {name}",
            ),
        ]
    return "".join(parts)


def mark(axes: Axes) -> str:
    """A guess of what becomes zero: where this share of the gradients lies below."""
    s, ruler, seen, stops = axes.setting, axes.ruler, 0, []
    total = sum(s.h.counts)
    for octave, n in s.h.items():
        if n:
            stops.append((100 * seen / total, ruler.x(octave + s.octaves)))
            seen += n
    stops.append((100.0, ruler.x(s.h.items()[-1][0] + 1 + s.octaves)))
    return guess.mark(
        stops, (axes.places.ends - 4, axes.places.bars[1]), "x", axes.places.ends - 4
    )  # beneath it stand words


# --- the strip ------------------------------------------------------------------------------------------------------


def _strips(axes: Axes) -> str:
    """The format's own, filled; of the others, outlines; and how high the middle gradient stands on it."""
    s, ruler, (top, foot), bit = axes.setting, axes.ruler, axes.places.strip, axes.bit
    words = fitting([title.format(s.format) for title in TITLES["strip"]], axes.width - 8)
    parts = [svg.text(ruler.left, top - 8, words, fill="muted", size=svg.SMALL)]
    ghosts = [name for name in SHOWN if name != s.format]
    parts += [outline(strip(ruler, FORMATS[name], foot, bit), "", 0, "muted", 1, "3 3") for name in ghosts]
    parts += [
        outline(strip(ruler, s.f, foot, bit), "compute", 0.3, "ink", 1.5, mark="strip"),
        svg.line(ruler.left, foot + 0.5, ruler.right, foot + 0.5, "muted"),
    ]
    clear = Clear(ruler.left, ruler.right, foot + 1)
    clear.take(ruler.left, ruler.left + svg.measure(words, svg.SMALL), top - 8, svg.SMALL)
    x, y = _point(axes, parts, clear)
    words = f"the median keeps {s.kept_bits}" if axes.wide else f"median: {s.kept_bits}"
    word_places = [
        (x + side * 9, y + rise, anchor)
        for rise in (16, -6, -21, 30, -36)
        for side, anchor in ((1, "start"), (-1, "end"))
    ]
    parts += [
        clear.words(words, word_places, mark="middle words"),
        clear.words(
            f"{s.format}: {s.f.digits} bits", _name(axes, s.format), bold=True, size=svg.FONT, mark="strip words"
        ),
    ]
    parts += [clear.words(name, _name(axes, name, True)) for name in ghosts]
    return "".join(parts)


def _point(axes: Axes, parts: list[str], clear: Clear) -> tuple[float, float]:
    """The middle gradient: beneath its bar, and a point on the strip; where that is."""
    s, ruler, (top, foot) = axes.setting, axes.ruler, axes.places.strip
    x, y = ruler.x(s.middle + 0.5), foot - s.kept_bits * axes.bit
    parts += [
        svg.line(x, axes.places.bars[1], x, axes.places.bars[1] + 5, "ink", 3, mark="middle tick"),
        svg.line(x, top - 3, x, y, "ink", 1, "2 3", mark="middle line"),
        svg.circle(x, y, 4.5, "c6", "ink", mark="middle"),
    ]
    clear.take(x - 6, x + 6, y + 4, 12)
    return x, y


def _name(axes: Axes, name: str, ghost: bool = False) -> list[tuple[float, float, str]]:
    """Places for the name of a strip: under its upper edge, at its ends or in the middle, else beside it."""
    f, ruler = FORMATS[name], axes.ruler
    left, right = ruler.x(f.lowest_octave), ruler.x(math.log2(f.largest))
    y = axes.places.strip[1] - f.digits * axes.bit + 13
    words, size = (name, svg.SMALLEST) if ghost else (f"{name}: {f.digits} bits", svg.FONT)
    drop, middle = 0 if ghost else 4, (left + right) / 2
    ends = [(right - 5 - drop, y + drop, "end"), (left + 5 + drop, y + drop, "start")]
    inside = ends if ghost else [(middle, y + 4, "middle"), *ends, (middle, y + 24, "middle")]
    if not ghost and f.digits < 5:  # too low for words beside a point
        inside = [(right, y - 19, "end"), (middle, y - 19, "middle"), (left, y - 19, "start")]
    elif svg.measure(words, size, bold=not ghost) > right - left:
        inside = []
    return [*inside, (right + 5, y, "start"), (left - 5, y, "end"), (right + 5, y - 15, "start")]
