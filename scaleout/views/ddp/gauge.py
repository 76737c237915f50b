"""Under the lanes of the view `ddp`: the tokens per micro-batch next to those that would hide the communication, and a
row of GPUs, filled up to the work that they do."""

from __future__ import annotations

from math import floor, log10

from scaleout.draw import hatch, labels, svg
from scaleout.views.ddp import record
from scaleout.words.amounts import quantity

Place = tuple[float, float, float]  # x, y, width: of the first line of words

BAR, SIDE, ROW = 20, 16, 24
CREW = 16  # squares at most
ENDS = (1, 1.5, 2, 3, 5, 7, 10)  # of the gauge, in a decade: it keeps its scale while a slider moves a little


def draw(setting, values: dict, place: Place, run: dict | None) -> tuple[str, float]:
    """Both gauges, and the y at which they end. run: a reader's, which gets a row of its own."""
    x, y, width = place
    does = f"{setting.ranks} GPU{'s do' if setting.ranks > 1 else ' does'} the work of {quantity(values['speed_up'])}"
    rows = [(does, setting.ranks, values["efficiency"], "compute")]
    if run is not None:
        ranks, share, words = record.point(run)
        rows.append((words, ranks, share, "key"))
    top, parts = y + BAR + 34, [_tokens(setting, values, place)]
    for n, (words, ranks, share, fill) in enumerate(rows):
        parts.append(_crew(x, top, width, words, ranks, share, fill, n))
        top += _tall(width, n)
    return "".join(parts), top - 8


def empty(place: Place) -> tuple[str, float]:
    """The frames of both, empty."""
    x, y, width = place
    top = y + BAR + 34
    words = svg.text(x, y, "Tokens per GPU and pass that hide it: ?", size=svg.SMALL, bold=True)
    frame = svg.line(x, y + 8 + BAR, x + width, y + 8 + BAR, "muted", 1, "3 4")
    crew = _crew(x, top, width, "GPUs do the work of how many?", CREW, 0.0, "", 0)
    return words + frame + crew, top + _tall(width, 0) - 8


def _tokens(setting, values: dict, place: Place) -> str:
    """The tokens that there are, and those that are needed, on one scale."""
    x, y, width = place
    have, need = values["tokens_per_gpu"], values["tokens_needed"]
    parts = [svg.text(x, y, f"Tokens per GPU and pass: {have:,}", size=svg.SMALL, bold=True)]
    if not need:
        return "".join([*parts, _bar(x, y + 8, width, width * 0.5, 0.0)])
    axis_end = 1.08 * max(have, need)
    decade = 10.0 ** floor(log10(axis_end))
    scale = width / next(unit * decade for unit in ENDS if unit * decade >= axis_end)
    end, line = have * scale, x + need * scale
    tokens = quantity(need)
    words = labels.fitting(
        (f"{tokens} would hide all but the last bucket", f"{tokens} would hide it", f"{tokens}"),
        width - svg.measure(f"Tokens per GPU and pass: {have:,}", svg.SMALL, True) - 12,
    )
    return "".join(
        [
            *parts,
            svg.text(x + width, y, words, anchor="end", size=svg.SMALL, fill="accent" if need > have else "muted"),
            _bar(x, y + 8, width, end, line - x - end),
            svg.line(line, y + 4, line, y + 12 + BAR, "ink", 2, mark="need"),
        ]
    )


def _bar(x: float, y: float, width: float, end: float, lacking: float) -> str:
    lacking_box = hatch.box(x + end, y, lacking, BAR) if lacking > 0.5 else ""
    frame = svg.line(x, y + BAR, x + width, y + BAR, "muted")
    return svg.rect(x, y, end, BAR, "compute", mark="have") + lacking_box + frame


def _tall(width: float, row: int) -> float:
    """Of a row: on a phone the words stand above it, and those of a reader's run everywhere."""
    return ROW if width > 400 and not row else 2 * ROW - 6


def _crew(x: float, y: float, width: float, words: str, ranks: int, share: float, fill: str, row: int) -> str:
    """Squares from left to right, filled up to the share that works."""
    roomy, count = width > 400 and not row, min(ranks, CREW)
    left, top = (x + 222, y - 12) if roomy else (x, y + 6)
    pitch = min(ROW, (width - left + x) / CREW)
    words = labels.cut(words, 214 if roomy else width, bold=True)
    parts = [svg.text(x, y, words, size=svg.SMALL, bold=True, fill="key" if row else "ink")]
    idle: list[hatch.Box] = []
    for n in range(count):
        square_x, part = left + n * pitch, min(1.0, max(0.0, share * count - n))
        if part and fill:
            parts.append(svg.rect(square_x, top, SIDE * part, SIDE, fill, mark=f"crew{row}.{n}"))
        if part < 1:
            idle.append((square_x + SIDE * part, top, SIDE * (1 - part), SIDE))
    return "".join(parts) + (hatch.area(idle) if fill else _outlines(idle))


def _outlines(boxes: list[hatch.Box]) -> str:
    corners = "".join(f"M{svg.num(x)} {svg.num(y)}h{svg.num(w)}v{svg.num(h)}h-{svg.num(w)}z" for x, y, w, h in boxes)
    return f'<path d="{corners}" fill="none" stroke="{svg.colour("muted")}" stroke-dasharray="3 3"/>'
