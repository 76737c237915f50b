"""What a billion tokens take, at the bottom of the view `capstone`: bars by number of GPUs, on one scale for both
panels. Hours fall by thousands, and are points on a logarithmic one."""

from __future__ import annotations

from math import log10

from scaleout.draw import labels, svg
from scaleout.draw.plot import Plane
from scaleout.timing.price import EXAMPLE
from scaleout.views.capstone.frame import Frame
from scaleout.words.amounts import quantity, took

NAMES = {
    "price": f"price per billion tokens, {EXAMPLE.currency}",
    "hours": "time per billion tokens",
    "energy": "kWh per billion tokens",
    "mfu": "MFU, %",
}
SHORT = {"price": f"{EXAMPLE.currency} per billion tokens", "hours": "per billion tokens",
         "energy": "kWh per billion tokens", "mfu": "MFU, %"}  # fmt: skip
THICK = 13  # bars side by side, at most


def draw(plane: Plane, frame: Frame, charts: dict[str, list], kind: str, lower_kind: str, world: int) -> str:
    """charts: (GPUs, amount) by panel. The chosen number's is dark, and said beside one GPU's."""
    sizes, left = charts[kind], frame.panels[kind == "weak"].x
    amounts = [amount for chart in charts.values() for _, amount in chart]
    y = plane.bottom + frame.price
    base = y + 20 + frame.bars
    if not max(amounts):
        words = labels.fitting(
            (f"{NAMES[lower_kind]}: 0", f"{SHORT[lower_kind]}: 0"), frame.panels[0].width, frame.small
        )
        return svg.text(left, y, words, size=frame.small, fill="muted")
    by_gpus, ends = dict(sizes), (min(amounts), max(amounts))
    words = labels.fitting((NAMES[lower_kind], SHORT[lower_kind]), frame.panels[0].width, frame.small)
    parts = [svg.text(left, y, words, fill="muted", size=frame.small)]
    chosen_text = _amount_text(by_gpus[world], lower_kind)
    alone = _amount_text(charts["strong"][0][1], lower_kind)  # one reference for both panels
    parts.append(
        svg.text(
            plane.left,
            y + 16,
            chosen_text
            if world == 1
            else labels.fitting(
                (f"{chosen_text}; one GPU alone {alone}", f"{chosen_text}, alone {alone}"),
                plane.width,
                frame.small,
                True,
            )
            or chosen_text,
            bold=True,
            size=frame.small,
        )
    )
    thick = 0.7 * plane.width / THICK
    for n, amount in sizes:
        x, part = plane.at_x(n), _part(amount, ends, lower_kind) * frame.bars
        fill, mark = ("ink", f"{kind} chosen") if n == world else ("muted", f"{kind} {n}")
        title = f"{n:,} GPUs: {_amount_text(amount, lower_kind)}"
        x = min(max(x - thick / 2, plane.left), plane.right - thick)
        if lower_kind == "hours":
            parts.append(svg.rect(x + thick / 2 - 2.5, base - part - 2.5, 5, 5, fill, title=title, mark=mark))
        else:
            parts.append(
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
    return "".join([*parts, svg.line(plane.left, base, plane.right, base, "muted")])


def _amount_text(amount: float, lower_kind: str) -> str:
    if lower_kind == "hours":
        return took(3600 * amount)
    return f"{quantity(amount)}{'%' if lower_kind == 'mfu' else ''}"


def _part(amount: float, ends: tuple[float, float], lower_kind: str) -> float:
    """Of the height: 0 for nothing; of hours, 0 for the fewest."""
    low, high = ends
    if lower_kind == "hours":
        return 0.05 + 0.9 * log10(amount / low) / log10(high / low) if high > low else 0.5
    return amount / high
