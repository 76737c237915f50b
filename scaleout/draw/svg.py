"""Marks for the book's pictures: functions that return SVG as strings.

Coordinates are CSS pixels: a view draws itself twice, WIDE and NARROW, so that text keeps its size. Colours are names
of CSS variables ("c1" to "c8", "ink", "muted", "grid", "accent"), so that one picture serves light mode, dark mode
and print; the value after the comma is what a viewer without the book's style sheet sees. Numbers are printed with
fixed digits: the same parameters give the same bytes in the kernel and on the page. A mark with a name (`mark`) is
the same thing in the next picture: the front end moves it from where it was. `press` and `movable` make controls of
marks.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

# Okabe and Ito's palette, safe for the common forms of colour blindness (jfly.uni-koeln.de/color, 2008),
# with the yellow darkened and a grey in place of black so that all eight read on white and on near-black.
FALLBACK = {
    "c1": "#0072b2", "c2": "#e69f00", "c3": "#009e73", "c4": "#cc79a7",
    "c5": "#56b4e9", "c6": "#d55e00", "c7": "#b8a200", "c8": "#8a8a8a",
    "ink": "#222222", "muted": "#666666", "grid": "#d0d0d0", "accent": "#b3261e", "paper": "#ffffff",
    "key": "#1d5a94", "compute": "#4b5a6b", "c4-words": "#9a4477",
}  # fmt: skip

_CSS = {name: f"var(--{name}, {fallback})" for name, fallback in FALLBACK.items()}

WIDE, NARROW = 600, 358  # the two widths a view is drawn at: beside its controls, and on a phone
FONT, SMALL, SMALLEST = 13, 12, 11  # sizes of text; none in any picture is above 16
BROAD = 500  # a picture that is wider has its parts beside each other, and words that a phone has no room for

# Named, with what bare systems have last: there `system-ui` can be a face a tenth wider than the others.
FACE = (
    "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, Cantarell, 'Noto Sans', 'DejaVu Sans Condensed', "
    "system-ui, sans-serif"
)


def colour(name: str) -> str:
    """The CSS value of a palette name, with its fallback."""
    return _CSS[name]


# A slider's next picture has most words and numbers of the one before.
escape = lru_cache(maxsize=2048)(html.escape)


class Sized:
    """What lays out a picture of one of the two widths, WIDE and NARROW."""

    width: int
    height: Any

    @cached_property
    def wide(self) -> bool:
        return self.width == WIDE

    def figure(self, label: str, *parts: Callable[[Any], str]) -> str:
        """The whole picture: what each part draws of this layout."""
        return figure(self.width, self.height, "".join(part(self) for part in parts), label)


def either(wide: object, narrow: object) -> Any:
    """A size of a `Sized` that is different at the two widths."""
    return cached_property(lambda sized: wide if sized.wide else narrow)


def broad(width: float) -> bool:
    """Whether a picture so wide is read on more than a phone."""
    return width > BROAD


@lru_cache(maxsize=4096)
def num(value: float) -> str:
    """A coordinate with at most two decimals and no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


# Widths of characters in ems, of DejaVu Sans Condensed, as wide as Segoe UI and wider than San Francisco and Roboto.
_EMS = {
    **dict.fromkeys("iljI.,:;|!' ", 0.3), **dict.fromkeys("ftr()-/", 0.37),
    **dict.fromkeys("mwMW%@−×÷→ABCDEFGHKNOPQRSTUVXYZ", 0.78),
}  # fmt: skip
_MEAN = 0.56  # of all others


@lru_cache(maxsize=2048)
def measure(words: str, size: float = FONT, bold: bool = False) -> float:
    """The width of a text in CSS pixels, a little above what common faces take: for keeping labels apart."""
    return math.fsum([_EMS.get(character, _MEAN) for character in words]) * size * (1.08 if bold else 1.0)


HALO = f' stroke="{colour("paper")}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'


def figure(width: float, height: float, body: str, label: str) -> str:
    """A whole picture. `label` says in words what the picture shows, for readers who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {num(width)} {num(height)}" role="img" '
        f'aria-label="{escape(label, quote=True)}" font-family="{FACE}" font-size="{FONT}">'
        f"{body}</svg>"
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    fill: str = "ink",
    bold: bool = False,
    size: float = FONT,
    halo: bool = False,
    mark: str = "",
) -> str:
    """Words with their baseline at (x, y); anchor is start, middle or end. `halo` clears what lies behind them."""
    weight = ' font-weight="600"' if bold else ""
    scale = "" if size == FONT else f' font-size="{num(size)}"'
    if halo:
        weight += HALO
    return (
        f'<text x="{num(x)}" y="{num(y)}" text-anchor="{anchor}" fill="{colour(fill)}"{weight}{scale}{_marked(mark)}>'
        f"{escape(words)}</text>"
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    title: str = "",
    opacity: float = 1.0,
    mark: str = "",
) -> str:
    """A filled rectangle; `title` is what a pointer over it shows."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    faded = "" if opacity == 1.0 else f' fill-opacity="{num(opacity)}"'
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" '
        f'fill="{colour(fill)}"{faded}{_marked(mark)}>{inner}</rect>'
    )


def frame(
    x: float,
    y: float,
    width: float,
    height: float,
    stroke: str = "muted",
    thick: float = 1,
    dash: str = "",
    *,
    fill: str = "none",
    rounded: float = 0,
    mark: str = "",
) -> str:
    """The edge of a rectangle, `thick` wide; fill: a palette's name."""
    corners = f' rx="{num(rounded)}"' if rounded else ""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"{corners} '
        f'fill="{_CSS.get(fill, fill)}"{_stroke(stroke, thick, dash)}{_marked(mark)}/>'
    )


def circle(
    x: float,
    y: float,
    radius: float,
    fill: str = "none",
    stroke: str = "",
    thick: float = 1,
    dash: str = "",
    *,
    title: str = "",
    mark: str = "",
) -> str:
    """A disc, or a ring `thick` wide."""
    inner = f"><title>{escape(title)}</title></circle>" if title else "/>"
    return (
        f'<circle cx="{num(x)}" cy="{num(y)}" r="{num(radius)}" fill="{_CSS.get(fill, fill)}"'
        f"{_stroke(stroke, thick, dash) if stroke else ''}{_marked(mark)}{inner}"
    )


def _stroke(stroke: str, thick: float, dash: str) -> str:
    width = "" if thick == 1 else f' stroke-width="{num(thick)}"'
    return f' stroke="{colour(stroke)}"{width}' + (f' stroke-dasharray="{dash}"' if dash else "")


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    stroke: str = "grid",
    width: float = 1,
    dash: str = "",
    mark: str = "",
) -> str:
    """A straight line; `dash` as in stroke-dasharray."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{num(x1)}" y1="{num(y1)}" x2="{num(x2)}" y2="{num(y2)}" '
        f'stroke="{colour(stroke)}" stroke-width="{num(width)}"{dashes}{_marked(mark)}/>'
    )


def group(x: float, y: float, body: str, mark: str = "", opacity: float = 1.0) -> str:
    """Marks moved to (x, y), as one."""
    faded = "" if opacity == 1.0 else f' opacity="{num(opacity)}"'
    return f'<g transform="translate({num(x)} {num(y)})"{faded}{_marked(mark)}>{body}</g>'


def press(
    body: str,
    box: tuple[float, float, float, float],
    control: str,
    value: object,
    label: str,
    mark: str,
    **settings: object,
) -> str:
    """Marks that are a button: it sets a control of the view to `value`, and those in `settings` to theirs. `box`
    (x, y, width, height) is what a finger finds: 27 or more each way, which a phone shows as 24. `label` says to who
    does not see it what the button does, and how things stand.

    Where no script runs it is a picture like any other. No view draws one for a control that is off.
    """
    assignments = "&".join(
        f"{name}={str(setting).lower() if isinstance(setting, bool) else setting}"
        for name, setting in {control: value, **settings}.items()
    )
    return f"<g{_marked(mark)}{_hand('press', assignments, label)}>{body}{_hit(*box)}</g>"


def movable(
    x: float,
    y: float,
    body: str,
    size: tuple[float, float],
    control: str,
    row: int,
    item: str,
    label: str,
    mark: str,
) -> str:
    """Marks moved to (x, y), as one, that a hand drags along their row: `item` is in row `row` (from 0) of the control
    `control`, an `arrange`. `size` is the body's, from (0, 0); `label` names it to who does not see it.
    """
    hand = _hand("move", f"{control}:{row}:{item}", label)
    return f'<g transform="translate({num(x)} {num(y)})"{_marked(mark)}{hand}>{body}{_hit(0, 0, *size)}</g>'


def nudge(body: str, box: tuple[float, float, float, float], by: int, label: str, mark: str) -> str:
    """Marks that are a button, as `press` makes them: it moves the movable mark that was taken or focused last by so
    many places along its row. For hands without a keyboard, and marks too small to be dragged by a finger.
    """
    return f"<g{_marked(mark)}{_hand('nudge', str(by), label)}>{body}{_hit(*box)}</g>"


def _hand(kind: str, data: str, label: str) -> str:
    return f' data-{kind}="{escape(data, quote=True)}" data-label="{escape(label, quote=True)}"'


def _hit(x: float, y: float, width: float, height: float) -> str:
    """Where a finger finds it, and the ring of the focus is."""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" rx="4" fill="transparent" '
        'class="live-hit"/>'
    )


def _marked(mark: str) -> str:
    return f' data-mark="{escape(mark, quote=True)}"' if mark else ""


def stacked_bar(
    x: float,
    y: float,
    height: float,
    scale: float,
    parts: Sequence[tuple[str, float, str]],
    *,
    opacity: float = 1.0,
) -> str:
    """Parts side by side from x on. Each part is (colour name, amount, title); `scale` is user units per amount."""
    marks = []
    for fill, amount, title in parts:
        width = amount * scale
        if width > 0:
            marks.append(rect(x, y, width, height, fill, title=title, opacity=opacity))
        x += width
    return "".join(marks)


def legend(x: float, y: float, width: float, items: list[tuple[str, str]], columns: int = 3) -> tuple[str, float]:
    """Swatches with words, row by row. Returns the marks and the height they take."""
    pitch, row = width / columns, FONT * 1.7
    marks = []
    for i, (fill, words) in enumerate(items):
        left, top = x + pitch * (i % columns), y + row * (i // columns)
        marks += [
            rect(left, top, FONT * 0.8, FONT * 0.8, fill),
            text(left + FONT * 1.2, top + FONT * 0.8, words),
        ]
    return "".join(marks), row * math.ceil(len(items) / columns)


def ticks(top: float, count: int = 5) -> list[float]:
    """Round numbers from 0 up to at most `top`: steps of 1, 2 or 5 times a power of ten, about `count` of them."""
    if not (math.isfinite(top) and top > 0):
        raise ValueError(f"an axis needs a positive finite end, not {top!r}")
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999999)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def axis_x(x: float, y: float, width: float, top: float, unit: str, grid_to: float) -> str:
    """A horizontal axis from 0 to `top` at height y, with grid lines up to `grid_to` and the unit at its end."""
    marks = ticks(top)
    lines = []
    for value in marks:
        tick = x + width * value / top
        lines.append(line(tick, y, tick, grid_to))
        label = f"{value:,g}" + (f" {unit}" if value == marks[-1] else "")
        # the first and the last label stay inside the figure
        anchor = "start" if value == 0 else "end" if tick > x + width * 0.93 else "middle"
        lines.append(text(tick, y + FONT * 1.15, label, anchor=anchor, fill="muted", size=FONT * 0.92))
    return "".join(lines)
