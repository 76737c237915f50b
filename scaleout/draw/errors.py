"""Predictions beside what was measured: a lane a group, a dot a run, left where the prediction is too fast."""

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
    left = 190 if width > 500 else 20
    top, below = 24, 34
    head = 0 if width > 500 else 18  # a phone has a lane's name above it
    pitch = LANE + head
    right, bottom = width - 22, top + pitch * len(lanes)
    middle = (left + right) / 2

    def x(error: float) -> float:
        return middle + (right - left) / 2 * max(-1.0, min(1.0, error / limit))

    out = [
        svg.text(left, 12, "too fast", fill="muted", size=svg.SMALL),
        svg.text(right, 12, "too slow", anchor="end", fill="muted", size=svg.SMALL),
    ]
    for step in range(-4, 5):
        at = x(step * limit / 4)
        out.append(svg.line(at, top, at, bottom, "muted" if not step else "grid"))
        if width > 500 or not step % 2:
            words = f"{100 * step * limit / 4:+.0f}%" if step else "as measured"
            out.append(svg.text(at, bottom + 16, words, anchor="middle", fill="muted", size=svg.SMALL))
    for i, lane in enumerate(lanes):
        base = top + pitch * i + head + LANE / 2
        out += _lane(lane, base, left, x, width > 500)
    return svg.figure(width, bottom + below + 18, "".join([*out, _keys(keys, left, bottom + below)]), _label(lanes))


def _lane(lane: Lane, base: float, left: float, x, wide: bool) -> list[str]:
    out = [svg.rect(x(-lane.band), base - 25, x(lane.band) - x(-lane.band), 50, "grid", opacity=0.45)]
    if wide:
        out += [svg.text(0, base - 1, lane.name), svg.text(0, base + 15, lane.words, fill="muted", size=svg.SMALL)]
    else:
        out.append(svg.text(left - 14, base - 31, f"{lane.name}: {lane.words}", size=svg.SMALL))
    taken: list[tuple[float, float]] = []
    for dot in sorted(lane.dots, key=lambda one: one.error):
        at, rise = x(dot.error), 0.0
        for rise in (0.0, *(way * k * SPREAD for k in (1, 2, 3, 4) for way in (1, -1))):
            if all((at - a) ** 2 + (rise - b) ** 2 > (2 * DOT - 1) ** 2 for a, b in taken[-24:]):
                break
        taken.append((at, rise))
        out.append(
            f'<circle cx="{svg.num(at)}" cy="{svg.num(base + rise)}" r="{svg.num(DOT)}" '
            f'fill="{svg.colour(dot.colour)}" fill-opacity="0.85"><title>{escape(dot.title)}</title></circle>'
        )
    return out


def _keys(keys: Sequence[tuple[str, str]], left: float, y: float) -> str:
    out, at = [], left
    for colour, words in keys:
        out.append(svg.rect(at, y - 8, 10, 10, colour))
        out.append(svg.text(at + 15, y + 1, words, fill="muted", size=svg.SMALL))
        at += 30 + svg.measure(words, svg.SMALL)
    return "".join(out)


def _label(lanes: Sequence[Lane]) -> str:
    return "Errors of predictions: " + "; ".join(f"{lane.name}, {lane.words}" for lane in lanes)
