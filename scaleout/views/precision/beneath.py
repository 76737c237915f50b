"""Beneath the strip of the view `precision`: what becomes zero in each part, or the scaler's search step by step; and
what becomes of the part's gradients in shares."""

from __future__ import annotations

import math

from scaleout.draw import hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.ruler import raised, two
from scaleout.views.precision.frame import Axes
from scaleout.views.precision.parts import spoken
from scaleout.views.precision.setting import HEADS, PARTS, STEPS
from scaleout.words.amounts import count, percent

SHORT = {"queries and keys": "Q, K", "values and output": "V, O", "MLP": "MLP"}
TINY = {"queries and keys": "QK", "values and output": "VO", "MLP": "MLP"}
HIGH = 27  # CSS pixels of a cell: what a finger finds


# --- by part --------------------------------------------------------------------------------------------------------


def parts(axes: Axes, alive: bool = True) -> str:
    """What becomes zero in each part, as cells that fill; pressing one shows its gradients. Not alive: empty cells."""
    s, (top, foot) = axes.setting, axes.places.panel
    ways: tuple[str, ...] = (
        f"percent that become zero in {s.format}, by part: press one to see it",
        "percent zero, by part: press one",
    )
    ways = ways if alive else ("percent that become zero, by part",)
    left, right = axes.ruler.left - 1, axes.ruler.right + 1
    pitch = (right - left) / (len(PARTS) + 1)
    pieces = [svg.text(axes.ruler.left, top - 8, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL)]
    pieces += [_cell(axes, part, left + i * pitch, top, pitch, alive) for i, part in enumerate((*PARTS, HEADS[s.kind]))]
    for i in range(4):
        x = left + (3 * i + 1.5) * pitch
        pieces.append(svg.text(x, foot, f"block {i + 1}", anchor="middle", fill="muted", size=svg.SMALLEST))
    head = fitting((HEADS[s.kind], HEADS[s.kind][:5] + "."), 1.7 * pitch, svg.SMALLEST)
    pieces.append(svg.text(right, foot, head, anchor="end", fill="muted", size=svg.SMALLEST))
    return "".join(pieces)


def _cell(axes: Axes, part: str, x: float, y: float, wide: float, alive: bool) -> str:
    s = axes.setting
    value = "head" if part in HEADS.values() else part
    mine, inner = s.part == value, wide - 2
    body, frame = (
        [svg.rect(x + 1, y, inner, HIGH, "grid", opacity=0.4)],
        svg.frame(x + 1, y, inner, HIGH, "ink", 2, mark="chosen"),
    )
    kind = (SHORT if wide > 34 else TINY).get(part.partition(", ")[2], "")
    caption = (
        svg.text(
            x + wide / 2,
            y + HIGH + 12,
            kind,
            anchor="middle",
            fill="ink" if mine else "muted",
            bold=mine,
            size=svg.SMALLEST,
        )
        if kind
        else ""
    )
    if not alive:
        return "".join([*body, frame * mine, caption])
    share = s.zeros[part]
    body += [
        svg.rect(x + 1, y + HIGH * (1 - share), inner, HIGH * share, "accent", opacity=0.42, mark=f"zero {part}"),
        svg.text(x + wide / 2, y + HIGH / 2 + 4, _figure(share), anchor="middle", bold=mine, size=svg.SMALL),
        frame * mine,
    ]
    label = f"Show {spoken(part)}: {percent(share)} of its gradients become zero{', shown now' if mine else ''}"
    # Its rounded figure is no part of the button's name, which says it more exactly
    return "".join(body) + svg.press("", (x, y, wide, HIGH), "part", value, label, f"cell {part}") + caption


def _figure(share: float) -> str:
    """Percent in two letters."""
    value = 100 * share
    return "0" if not value else "<1" if value < 0.5 else f"{value:.0f}"


# --- the search -----------------------------------------------------------------------------------------------------


def course(axes: Axes) -> str:
    """The loss scale of each step so far as stairs, under what the step allows; a cross where it was too large."""
    s, (top, foot) = axes.setting, axes.places.panel
    bears = [math.log2(s.f.largest / step.largest * step.scale) for step in s.course]
    scales = [math.log2(step.scale) for step in s.course]
    lo, hi = math.floor(min([*bears, *scales])) - 0.3, math.ceil(max([*bears, *scales])) + 0.3
    left = axes.ruler.left + 32
    pitch = (axes.ruler.right - left) / STEPS

    def y(size: float) -> float:
        return foot - (foot - top) * (size - lo) / (hi - lo)

    interval = max(1, math.ceil((hi - lo) / 4))
    parts = [
        svg.text(axes.ruler.left, top - 8, fitting(_course_words(s), axes.width - 8), fill="muted", size=svg.SMALL)
    ]
    for n in range(math.ceil(lo), math.floor(hi) + 1, interval):
        parts += [
            svg.line(left, y(n), axes.ruler.right, y(n)),
            raised(svg.text(left - 5, y(n) + 5, two(n), anchor="end", fill="muted", size=svg.SMALLEST)),
        ]
    stairs = "".join(
        f"L{svg.num(pitch * i)} {svg.num(y(step) - top)}L{svg.num(pitch * (i + 1))} {svg.num(y(step) - top)}"
        for i, step in enumerate(scales)
    )
    line = (
        f'<path d="M{stairs[1:]}" fill="none" stroke="{svg.colour("ink")}" stroke-width="2" stroke-linejoin="round"/>'
    )
    bear = " ".join(f"{svg.num(left + pitch * (i + 0.5))},{svg.num(y(step))}" for i, step in enumerate(bears))
    parts += [
        f'<polyline points="{bear}" fill="none" stroke="{svg.colour("c6")}" stroke-width="1.5" '
        'stroke-dasharray="2 2"/>',
        f'<svg x="{svg.num(left)}" y="{svg.num(top)}" width="{svg.num(pitch * s.step - 1)}" '
        f'height="{svg.num(foot - top + 2)}" data-mark="so far">{line}</svg>',
    ]
    parts += [_cross(left + pitch * (i + 0.5), y(scales[i])) for i in range(s.step) if s.course[i].skipped]
    fill = "accent" if s.current.skipped else "ink"
    parts.append(svg.circle(left + pitch * (s.step - 0.5), y(scales[s.step - 1]), 4, fill, mark="now"))
    return "".join(parts)


def _cross(x: float, y: float) -> str:
    d = f"M{svg.num(x - 4)} {svg.num(y - 4)}l8 8m0 -8l-8 8"
    return f'<path d="{d}" stroke="{svg.colour("accent")}" stroke-width="2.5" fill="none"/>'


def _course_words(s) -> list[str]:
    skipped = sum(step.skipped for step in s.course[: s.step])
    left = f"{skipped} of {count(s.step, 'step')} skipped"
    return [
        f"loss scale by step; dotted: the largest without overflow; {left}",
        f"loss scale by step, and its limit; {left}",
        f"loss scale by step; {left}",
    ]


# --- shares ---------------------------------------------------------------------------------------------------------


def shares(axes: Axes, alive: bool = True) -> str:
    """What becomes of the gradients: a bar of shares, and each in words; not alive: empty."""
    s, (y, high), ruler = axes.setting, axes.places.shares, axes.ruler
    result = s.shared_fate if s.shares else s.fate
    beyond = s.shared_fate.clipped if s.shares else s.fate.beyond
    rows = [
        ("zero", result.zero, "accent", 1.0, "become zero", "zero"),
        ("few", result.few, "c6", 0.45, "keep fewer bits", "fewer bits"),
        ("whole", result.whole, "c6", 1.0, f"keep all {s.f.digits} bits", f"all {s.f.digits} bits"),
        (
            "beyond",
            beyond,
            "accent",
            1.0,
            "are clipped" if s.f.saturates or s.shares else "are infinite",
            "clipped" if s.f.saturates or s.shares else "infinite",
        ),
    ]
    pieces, x, full = [], ruler.left, ruler.right - ruler.left
    if not alive:
        pieces.append(svg.rect(x, y, full, high, "grid", opacity=0.4))
    for name, share, fill, strong, *_ in rows if alive else ():
        pieces.append(svg.rect(x, y, full * share, high, fill, opacity=strong, mark=f"share {name}"))
        if fill == "accent":
            pieces.append(hatch.hatched(x, y, full * share, high, "paper", f"stripes {name}"))
        x += full * share
    pitch = full / 4
    for i, (name, share, fill, strong, *ways) in enumerate(rows):
        left = ruler.left + i * pitch
        words = fitting(ways, pitch - 14, svg.SMALLEST)
        pieces.append(svg.rect(left, y + high + 8, 8, 8, fill, opacity=strong))
        figure = percent(share, brief=True) if alive else "?"
        pieces += [
            svg.text(left + 12, y + high + 17, figure, bold=True, size=15 if axes.wide else 14, mark=f"figure {name}"),
            svg.text(left + 12, y + high + 31, words, fill="muted", size=svg.SMALLEST),
        ]
    return "".join(pieces)
