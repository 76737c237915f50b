"""Predictions compared with measurements: one lane per group, one dot per run, to the left if predicted too fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from scaleout.draw import svg

LANE = 56  # CSS pixels of a lane
DOT = 3.2
SPREAD = 5.6  # CSS pixels by which dots that would cover one another step aside


@dataclass(frozen=True)
class Dot:
    """A run. error: predicted by measured, less one; title: what is said of it."""

    error: float
    colour: str
    title: str


@dataclass(frozen=True)
class Lane:
    """A group of runs: its name, what is said beneath it, and the half of a band that nine of ten lie within."""

    name: str
    words: str
    band: float
    dots: tuple[Dot, ...]


def draw(width: float, lanes: Sequence[Lane], limit: float, keys: Sequence[tuple[str, str]]) -> str:
    """The lanes on one axis from -limit to limit; what lies beyond stands at its edge. keys: (colour, words)."""
    left = 190 if svg.broad(width) else 20
    top, below = 24, 34
    head = 0 if svg.broad(width) else 18  # a phone has a lane's name above it
    pitch = LANE + head
    right, bottom = width - 22, top + pitch * len(lanes)
    middle = (left + right) / 2

    def x(error: float) -> float:
        return middle + (right - left) / 2 * max(-1.0, min(1.0, error / limit))

    marks = [
        svg.text(left, 12, "too fast", fill="muted", size=svg.SMALL),
        svg.text(right, 12, "too slow", anchor="end", fill="muted", size=svg.SMALL),
    ]
    for step in range(-4, 5):
        tick = x(step * limit / 4)
        marks.append(svg.line(tick, top, tick, bottom, "muted" if not step else "grid"))
        if svg.broad(width) or not step % 2:
            words = f"{100 * step * limit / 4:+.0f}%" if step else "as measured"
            marks.append(svg.text(tick, bottom + 16, words, anchor="middle", fill="muted", size=svg.SMALL))
    for i, lane in enumerate(lanes):
        base = top + pitch * i + head + LANE / 2
        marks += _lane(lane, base, left, x, svg.broad(width))
    label = "Errors of predictions: " + "; ".join(f"{lane.name}, {lane.words}" for lane in lanes)
    return svg.figure(width, bottom + below + 18, "".join([*marks, _keys(keys, left, bottom + below)]), label)


def _lane(lane: Lane, base: float, left: float, x, wide: bool) -> list[str]:
    marks = [svg.rect(x(-lane.band), base - 25, x(lane.band) - x(-lane.band), 50, "grid", opacity=0.45)]
    if wide:
        marks += [svg.text(0, base - 1, lane.name), svg.text(0, base + 15, lane.words, fill="muted", size=svg.SMALL)]
    else:
        marks.append(svg.text(left - 14, base - 31, f"{lane.name}: {lane.words}", size=svg.SMALL))
    placed: list[tuple[float, float]] = []
    for dot in sorted(lane.dots, key=lambda item: item.error):
        centre, rise = x(dot.error), 0.0
        for rise in (0.0, *(way * k * SPREAD for k in (1, 2, 3, 4) for way in (1, -1))):
            if all((centre - a) ** 2 + (rise - b) ** 2 > (2 * DOT - 1) ** 2 for a, b in placed[-24:]):
                break
        placed.append((centre, rise))
        marks.append(
            f'<circle cx="{svg.num(centre)}" cy="{svg.num(base + rise)}" r="{svg.num(DOT)}" '
            f'fill="{svg.colour(dot.colour)}" fill-opacity="0.85"><title>{escape(dot.title)}</title></circle>'
        )
    return marks


def _keys(keys: Sequence[tuple[str, str]], left: float, y: float) -> str:
    marks, x = [], left
    for colour, words in keys:
        marks += [
            svg.rect(x, y - 8, 10, 10, colour),
            svg.text(x + 15, y + 1, words, fill="muted", size=svg.SMALL),
        ]
        x += 30 + svg.measure(words, svg.SMALL)
    return "".join(marks)
