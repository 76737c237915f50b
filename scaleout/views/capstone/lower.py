"""What a billion tokens take, at the bottom of the view `capstone`: bars by number of GPUs, on one scale for both
panels. Hours fall by thousands, and are points on a logarithmic one."""

from __future__ import annotations

from math import log10

from scaleout.draw import labels, svg
from scaleout.draw.plot import Plane
from scaleout.timing.price import EXAMPLE
from scaleout.views.capstone.frame import Frame

NAMES = {
    "price": f"price of a billion tokens, {EXAMPLE.currency}",
    "hours": "time for a billion tokens",
    "energy": "kWh for a billion tokens",
    "mfu": "MFU, %",
}
SHORT = {"price": f"{EXAMPLE.currency} a billion tokens", "hours": "a billion tokens take",
         "energy": "kWh a billion tokens", "mfu": "MFU, %"}  # fmt: skip
THICK = 13  # bars side by side, at most


def draw(plane: Plane, frame: Frame, charts: dict[str, list], kind: str, under: str, world: int) -> str:
    """charts: (GPUs, amount) by panel. The chosen number's is dark, and said beside one GPU's."""
    sizes, left = charts[kind], frame.panels[kind == "weak"].x
    every = [amount for chart in charts.values() for _, amount in chart]
    y = plane.bottom + frame.price
    base = y + 20 + frame.bars
    if not max(every):
        words = labels.fitting((f"{NAMES[under]}: 0", f"{SHORT[under]}: 0"), frame.panels[0].width, frame.small)
        return svg.text(left, y, words, size=frame.small, fill="muted")
    found, ends = dict(sizes), (min(every), max(every))
    words = labels.fitting((NAMES[under], SHORT[under]), frame.panels[0].width, frame.small)
    out = [svg.text(left, y, words, fill="muted", size=frame.small)]
    here, alone = _said(found[world], under), _said(charts["strong"][0][1], under)  # one reference for both panels
    out.append(
        svg.text(
            plane.left,
            y + 16,
            here
            if world == 1
            else labels.fitting(
                (f"{here}; one GPU alone {alone}", f"{here}, alone {alone}"), plane.width, frame.small, True
            )
            or here,
            bold=True,
            size=frame.small,
        )
    )
    thick = 0.7 * plane.width / THICK
    for n, amount in sizes:
        x, part = plane.at_x(n), _part(amount, ends, under) * frame.bars
        fill, mark = ("ink", f"{kind} chosen") if n == world else ("muted", f"{kind} {n}")
        title = f"{n:,} GPUs: {_said(amount, under)}"
        x = min(max(x - thick / 2, plane.left), plane.right - thick)
        if under == "hours":
            out.append(svg.rect(x + thick / 2 - 2.5, base - part - 2.5, 5, 5, fill, title=title, mark=mark))
        else:
            out.append(
                svg.rect(
                    x,
                    base - part,
                    thick,
                    part,
                    fill,
                    title=title,
                    opacity=1 if n == world else 0.5,
                    mark=mark,
                )
            )
    return "".join([*out, svg.line(plane.left, base, plane.right, base, "muted")])


def _said(amount: float, under: str) -> str:
    if under == "hours":
        return labels.took(3600 * amount)
    return f"{svg.quantity(amount)}{'%' if under == 'mfu' else ''}"


def _part(amount: float, ends: tuple[float, float], under: str) -> float:
    """Of the height: 0 for nothing; of hours, 0 for the fewest."""
    low, high = ends
    if under == "hours":
        return 0.05 + 0.9 * log10(amount / low) / log10(high / low) if high > low else 0.5
    return amount / high
