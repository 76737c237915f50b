"""The picture of the view `finetune`: what fits by sequence length and micro-batch, and memory by method and kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import hatch, labels, svg
from scaleout.draw.field import field
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, bar, sizes
from scaleout.views.finetune import words
from scaleout.views.finetune.setting import BATCHES, METHODS, SEQS, Cell, Setting
from scaleout.words.amounts import amount, quantity

FAINT, STRONG = 0.08, 0.5  # opacity of the slowest and of the fastest cell
SHOWN = 2.4  # times the memory of the card that a bar is drawn long at most
TITLE = "tokens/s where it fits; hatched: it may fit"
HINT = "point at a cell: what it takes; press: choose it"


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels."""

    setting: Setting
    width: int

    left = 42.0
    top = 24.0

    @property
    def right(self) -> float:
        return self.width - 4.0

    @property
    def across(self) -> float:
        """From one column to the next."""
        return (self.right - self.left) / len(SEQS)

    @property
    def down(self) -> float:
        """From one row to the next."""
        return 28.0 if self.wide else 21.0

    @property
    def bottom(self) -> float:
        return self.top + self.down * len(BATCHES)

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        return self.left + column * self.across, self.bottom - (row + 1) * self.down, self.across, self.down

    @property
    def bars_y(self) -> float:
        """The top of the bars."""
        return self.bottom + (74.0 if self.wide else 80.0)

    @property
    def pitch(self) -> float:
        """From one bar to the next."""
        return 29.0 if self.wide else 28.0

    @property
    def high(self) -> float:
        return 19.0 if self.wide else 16.0

    @property
    def bars_left(self) -> float:
        return 54.0

    @cached_property
    def most(self) -> float:
        """Bytes at the right end of the bars: a longer one is cut."""
        card = self.setting.card.memory_bytes
        longest = max(one.peak for one in self.setting.methods.values())
        return min(max(longest, 1.05 * card), SHOWN * card)

    @property
    def scale(self) -> float:
        """CSS pixels per byte."""
        return (self.right - 66.0 - self.bars_left) / self.most

    @property
    def limit(self) -> float:
        """Where usable memory ends."""
        return self.bars_left + self.setting.usable * self.scale

    @property
    def keys_y(self) -> float:
        return self.bars_y + 3 * self.pitch + 4

    @property
    def height(self) -> float:
        return self.keys_y + (18.0 if self.wide else 36.0)


def picture(setting: Setting, width: int) -> str:
    """Both parts at one of the two widths."""
    frame = Frame(setting, width)
    parts = (_grid(frame), _chosen(frame), _bars(frame), _keys(frame), _field(frame))
    return svg.figure(width, frame.height, "".join(parts), words.label(setting))


# --- the grid -------------------------------------------------------------------------------------------------------


def _grid(frame: Frame) -> str:
    cells, columns = frame.setting.cells, len(SEQS)
    fastest = max((cell.rate for cell in cells), default=0.0)
    parts = [
        svg.text(4, 13, "▴ micro-batch", size=svg.SMALL, fill="muted"),
        svg.text(frame.right, 13, TITLE, anchor="end", size=svg.SMALL, fill="muted"),
        svg.text(frame.right, frame.bottom + 31, "tokens per sequence ▸", anchor="end", size=svg.SMALL, fill="muted"),
    ]
    for place, cell in enumerate(cells):
        parts.append(_cell(frame.box(place // columns, place % columns), cell, fastest))
    for row, batch in enumerate(BATCHES):
        _, y, _, high = frame.box(row, 0)
        parts.append(svg.text(frame.left - 8, y + high / 2 + 4, str(batch), anchor="end", size=svg.SMALL, fill="muted"))
    for column, seq in enumerate(SEQS):
        x, _, wide, _ = frame.box(0, column)
        text = f"{seq:,}" if frame.wide or seq < 1024 else f"{seq // 1024}k"
        parts.append(svg.text(x + wide / 2, frame.bottom + 15, text, anchor="middle", size=svg.SMALL, fill="muted"))
    return "".join(parts)


def _cell(box: tuple[float, float, float, float], cell: Cell, fastest: float) -> str:
    """Colored by tokens per second; empty where it does not fit."""
    x, y, wide, high = box
    inside = x + 1, y + 1, wide - 2, high - 2
    name = f"cell {cell.seq} {cell.batch}"
    if not cell.rate:
        return svg.rect(*inside, "grid", opacity=0.18 if cell.verdict else 0.06, mark=name)
    share = cell.rate / fastest
    if cell.verdict == "fits":
        mark = svg.rect(*inside, "key", opacity=round(FAINT + (STRONG - FAINT) * share**2, 2), mark=name)
    else:
        mark = hatch.area([inside], "key")
    text = brief(cell.rate)
    return mark + svg.text(
        x + wide / 2, y + high / 2 + 4, text, anchor="middle", size=svg.SMALLEST, halo=cell.verdict != "fits"
    )


def brief(rate: float) -> str:
    """Tokens per second in at most four characters."""
    if rate < 999.5:
        return quantity(rate, 2) if rate < 99.5 else f"{rate:.0f}"
    return f"{quantity(rate / 1e3, 2)}k" if rate < 99_500 else f"{rate / 1e3:,.0f}k"


def _chosen(frame: Frame) -> str:
    """A frame around the cell that is looked at."""
    setting = frame.setting
    if setting.tokens not in SEQS:
        return ""
    box = frame.box(BATCHES.index(setting.batch), SEQS.index(setting.tokens))
    return svg.frame(*box, "ink", 2, rounded=3, mark="chosen")


def _field(frame: Frame) -> str:
    """The control over the grid: pressing sets sequence length and micro-batch."""
    columns, points = len(SEQS), []
    for place, cell in enumerate(frame.setting.cells):
        x, y, wide, high = frame.box(place // columns, place % columns)
        points.append((x + wide / 2, y + high / 2, (cell.seq, cell.batch), _remark(cell)))
    box = frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top
    label = f"{len(points)} cells: sequence length to the right, micro-batch upward. Arrow keys move, Enter chooses."
    hint = (frame.left, frame.bottom + 31, HINT) if frame.wide else (4, frame.bottom + 47, HINT)
    return field(box, ("seq", "batch"), points, hint, label, columns, frame.across / 2)


def _remark(cell: Cell) -> str:
    size = f"{cell.seq:,} tokens × {cell.batch}"
    if not cell.verdict:
        return f"{size}: the model has no positions for it"
    return f"{size}: {cell.verdict}" + (f", {quantity(cell.rate)} tokens/s" if cell.rate else "")


# --- the bars -------------------------------------------------------------------------------------------------------


def _bars(frame: Frame) -> str:
    """A row for each method, cut where it is too long, with usable memory as a line."""
    setting = frame.setting
    room = f"dashed: the {amount(setting.usable)} that are usable"
    size = f"{setting.tokens:,} tokens × {setting.batch}"
    ways = [f"memory of each GPU at its peak, {size}; {room}", f"GPU memory, {size}; {room}",
            f"GPU memory, {size}; dashed: usable"]  # fmt: skip
    parts = [svg.text(4, frame.bars_y - 10, fitting(ways, frame.width - 8, svg.SMALL), size=svg.SMALL, fill="muted")]
    bars = [_bar(frame, row, method, one) for row, (method, one) in enumerate(setting.methods.items())]
    end = frame.bars_y + 3 * frame.pitch - 4
    limit = svg.line(frame.limit, frame.bars_y - 4, frame.limit, end, "accent", 2, "4 2", mark="limit")
    return "".join([*parts, *(bar for bar, _ in bars), limit, *(size for _, size in bars)])


def _bar(frame: Frame, row: int, method: str, one: Setting) -> tuple[str, str]:
    """The bar, as a button that chooses the method, and the bytes behind it."""
    x, y, now = frame.bars_left, frame.bars_y + row * frame.pitch, method == frame.setting.method
    kinds, left = {}, frame.most
    for part, size in sizes(BYTES, one.account.peak).items():
        kinds[part] = min(size, left)
        left -= kinds[part]
    body, end = bar((x, y, frame.high, frame.scale), kinds, amount, method)
    body += svg.text(x - 8, y + frame.high - 5, METHODS[method], anchor="end", size=svg.SMALL, bold=now)
    over = one.verdict == "does not fit"
    if over and end > frame.limit:
        body += hatch.excess(frame.limit, y, end - frame.limit, frame.high, f"over {method}")
    if one.peak > frame.most:
        body += svg.line(end - 7, y - 2, end - 3, y + frame.high + 2, "paper", 3)
    gb, fill = f"{words.gb(one.peak)} GB", "accent" if over else "ink"
    at = end + 5
    if at - 2 < frame.limit < at + svg.measure(gb, svg.SMALL, now) + 2:  # the line would go through the figure
        at = frame.limit + 5
    text = svg.text(at, y + frame.high - 5, gb, size=svg.SMALL, bold=now, fill=fill, halo=True)
    if now:
        return body + svg.frame(x - 1, y - 1, end - x + 2, frame.high + 2, "ink", 1.5, mark="now"), text
    box = 2.0, y - 5, frame.width - 4.0, frame.pitch - 1
    label = f"{words.WAYS[method]}: {amount(one.peak)}, {one.verdict}"
    return svg.press(body, box, "method", method, label, method), text


def _keys(frame: Frame) -> str:
    return labels.keys(4, frame.keys_y, frame.width - 8, [(part.colour, part.name) for part in BYTES])[0]
