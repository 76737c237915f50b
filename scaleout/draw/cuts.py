"""A matrix multiplication split by columns and by rows over two ranks, and QKV split by heads over four."""

from __future__ import annotations

from scaleout.draw import ramp, sheets, svg
from scaleout.draw.sheets import Sheet

Side = tuple[float, float]  # of a sheet: width and height
INPUT, WEIGHT, OUTPUT = (44.0, 56.0), (60.0, 44.0), (60.0, 56.0)
GAP, ROW = 26.0, 68.0  # between two sheets, for a sign; from one rank to the next
PANEL = INPUT[0] + WEIGHT[0] + OUTPUT[0] + 2 * GAP + 52
HEAD, FOOT = 56.0, 34.0

WAYS = {
    "columns": ("Split by columns", "each rank has half of the output's columns"),
    "rows": ("Split by rows", "two partial sums, to be added"),
}


def product(width: float) -> str:
    """Both ways, beside each other where there is room."""
    wide = svg.broad(width)
    panel = HEAD + 2 * ROW + FOOT
    step = (width - 2 * PANEL) / 3
    places = (
        {"columns": (step, 0.0), "rows": (2 * step + PANEL, 0.0)}
        if wide
        else {"columns": ((width - PANEL) / 2, 0.0), "rows": ((width - PANEL) / 2, panel)}
    )
    body = "".join(svg.group(x, y, _panel(way)) for way, (x, y) in places.items())
    label = "A matrix multiplication on two ranks: split by columns, and split by rows"
    return svg.figure(width, panel if wide else 2 * panel - 8, body, label)


def _panel(way: str) -> str:
    """One way: a row for each rank, input times weight is output."""
    title, result = WAYS[way]
    left = 52.0
    middle = left + INPUT[0] + GAP
    right = middle + WEIGHT[0] + GAP
    marks = [svg.text(0, 16, title, bold=True, size=15)]
    marks += [
        svg.text(x + wide / 2, HEAD - 12, name, anchor="middle", fill="muted", size=svg.SMALL)
        for x, (wide, _), name in ((left, INPUT, "input"), (middle, WEIGHT, "weights"), (right, OUTPUT, "output"))
    ]
    for rank in range(2):
        centre = HEAD + ROW * rank + ROW / 2 - 6
        marks.append(svg.text(0, centre + 4, f"rank {rank}", size=svg.SMALL))
        marks += [
            svg.text(x, centre + 6, sign, anchor="middle", fill="muted", size=16)
            for x, sign in ((middle - GAP / 2, "·"), (right - GAP / 2, "="))
        ]
        half = {"columns": ("whole", "across", "across"), "rows": ("across", "down", "sum")}[way]
        marks += [
            _sheet(f"{way}-{x:g}-{rank}", x, centre, side, fill, part, rank)
            for x, side, fill, part in zip(
                (left, middle, right), (INPUT, WEIGHT, OUTPUT), ("c3", "c1", "c3"), half, strict=True
            )
        ]
    y = HEAD + 2 * ROW + 12
    marks.append(svg.text(right + OUTPUT[0], y, result, anchor="end", size=svg.SMALL))
    return "".join(marks)


def _sheet(name: str, x: float, centre: float, side: Side, fill: str, part: str, rank: int) -> str:
    """A sheet of which a rank has the whole, a half across or down, or an addend of everything."""
    parts = 2 if part in ("across", "down") else 1
    return sheets.draw(
        Sheet(
            name,
            x,
            centre - side[1] / 2,
            *side,
            fill,
            parts,
            "rows" if part == "down" else "columns",
            partial=part == "sum",
            lit=rank if parts == 2 else 0,
        )
    )


HEADS, RANKS = {"Q": 8, "K": 2, "V": 2}, 4  # a small model with grouped key-value heads


def heads(width: float) -> str:
    """The columns of Q, K and V by head, in the colour of the rank that holds them; a head of K or V is on two."""
    high, gap, top = 96.0, 26.0, 40.0
    strip = min(38.0, (width - 2 * gap) / sum(HEADS.values()))
    x = (width - sum(HEADS.values()) * strip - 2 * gap) / 2
    marks = [_ranks(width)]
    for name, count in HEADS.items():
        wide = count * strip
        words = f"{name}: {count} heads" if name == "Q" else f"{name}: {count}"
        marks.append(svg.text(x + wide / 2, top - 8, words, anchor="middle", bold=True, size=14))
        for head in range(count):
            owners = [
                rank
                for rank in range(RANKS)
                if rank * count // RANKS <= head < max((rank + 1) * count // RANKS, rank * count // RANKS + 1)
            ]
            for copy, rank in reversed(list(enumerate(owners))):  # copies stand behind each other
                shift, inset = 7 * copy, 7 * (len(owners) - 1)
                marks.append(
                    f'<rect x="{svg.num(x + head * strip + shift)}" y="{svg.num(top + inset - shift)}" '
                    f'width="{svg.num(strip - 2 - inset)}" height="{svg.num(high - inset)}" '
                    f'fill="{ramp.colour(rank, RANKS)}" stroke="{svg.colour("paper")}"/>'
                )
        x += wide + gap
    label = (
        "Q, K and V split by heads: eight heads of Q on four ranks, two each; two heads of K and V, each on two ranks"
    )
    return svg.figure(width, top + high + 34, "".join(marks), label)


def _ranks(width: float) -> str:
    """Whose colour is whose."""
    pitch, y = 70.0, 160.0
    x = (width - RANKS * pitch) / 2
    return "".join(
        f'<rect x="{svg.num(x + rank * pitch)}" y="{svg.num(y - 10)}" width="12" height="12" '
        f'fill="{ramp.colour(rank, RANKS)}"/>'
        + svg.text(x + rank * pitch + 17, y, f"rank {rank}", size=svg.SMALL, fill="muted")
        for rank in range(RANKS)
    )
