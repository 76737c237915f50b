"""Where the parts of the view `pipeline` lie, for one width, with the axis that they share."""

from __future__ import annotations

from scaleout.draw import guess, svg
from scaleout.draw.pipeline_lanes import Rows
from scaleout.draw.plot import TICK
from scaleout.views.pipeline.setting import YOURS, shown
from scaleout.words.amounts import short

LEFT = 50  # of the names of ranks
RIGHT = {svg.WIDE: 34, svg.NARROW: 28}  # of what they hold
BEYOND = 1.1  # of the axis over the longer of this step and GPipe's, so that a guess beyond them can be drawn
ABOVE = 34  # the caption, and the words of a guess
CAPTION, SORTED = 19, {svg.WIDE: 24, svg.NARROW: 20}  # between the parts; a row of sorted time
# By width: the rows of the timeline together, at most, one of them at most, and the same of what is held
TALL = {svg.WIDE: (162, 31, 206, 50), svg.NARROW: (136, 28, 148, 44)}
RUN_HEIGHT = 34  # for what is said of a reader's run
DOOR = 30  # for the button that leads to the reader's own order
GOAL, BUTTONS, RIVAL = 12, 42, 17  # of the reader's own: a line more above; buttons beneath the rows; a row of a rival
GAP = 4  # between rows


class Frame:
    """Where the parts lie, for one width: rows of the timeline, sorted time, the axis, rows of what is in flight."""

    def __init__(self, setting, look, width: int, with_run: bool = False, run_slots: float = 0.0) -> None:
        self.setting, self.look, self.width, self.wide = setting, look, width, width == svg.WIDE
        self.lit = min(look.lit, setting.micro_batches - 1)
        self.ranks = shown(setting.ranks)
        # a run that took longer is on the axis too, up to twice as long; beyond it words say so
        ends = max(setting.slots, setting.gpipe.slots)
        self.has_run = 0 < run_slots <= 2 * ends
        inner_width, until = width - LEFT - RIGHT[width], BEYOND * max(ends, run_slots * self.has_run)
        tall, highest, low, lowest = TALL[width]
        pitch = min(highest, tall // len(self.ranks))
        self.own = setting.schedule == YOURS
        self.above = ABOVE + GOAL * self.own
        self.rows = Rows(LEFT, self.above, inner_width, until, pitch, pitch - (GAP if pitch > 22 else 3), self.ranks)
        self.sorted = self.rows.bottom + (BUTTONS if self.own else CAPTION)
        self.axis = self.sorted + (RIVAL * (1 + len(setting.rivals)) if self.own else SORTED[width] + 5)
        pitch = min(lowest, (low - (RUN_HEIGHT if with_run else DOOR)) // len(self.ranks))
        self.held = Rows(LEFT, self.axis + TICK + 6 + CAPTION, inner_width, until, pitch, pitch - GAP, self.ranks)
        self.height = self.held.bottom + 6 + RUN_HEIGHT * with_run + DOOR * (not self.own)

    def figure(self, parts: list[str], label: str) -> str:
        row_groups = (self.rows,) if self.setting.waits else (self.rows, self.held)
        names = "".join(self._names(rows) for rows in row_groups)
        return svg.figure(self.width, self.height, "".join([self._axis(), names, *parts, self._mark()]), label)

    def _names(self, rows: Rows) -> str:
        middle = rows.bar / 2 + 4
        return "".join(
            svg.text(LEFT - 6, rows.top(row) + middle, f"rank {rank}", anchor="end", size=svg.SMALL)
            for row, rank in enumerate(rows.ranks)
        )

    def _axis(self) -> str:
        rows, parts = self.rows, [svg.line(LEFT, self.axis, LEFT + self.rows.width, self.axis)]
        marks = svg.ticks(rows.until, 6)
        for value in marks:
            words = short(value) + (" slots" if value == marks[-1] else "")
            end = self.width - svg.measure(words, svg.SMALL) / 2 - 2  # words at the axis' end stay in the picture
            parts.append(
                svg.text(
                    min(rows.at(value), end),
                    self.axis + TICK,
                    words,
                    fill="muted",
                    size=svg.SMALL,
                    anchor="start" if value == 0 else "middle",
                )
            )
        return "".join(parts)

    def _mark(self) -> str:
        rows = self.rows
        return guess.mark([(0.0, rows.x), (rows.until, rows.x + rows.width)], (ABOVE - 12, self.axis), "x", ABOVE - 8)

    def finish(self, slots: float, words: str) -> str:
        """The end of the step, through everything that time runs in."""
        x, low = self.rows.at(slots), self.above - 8
        return svg.line(x, low, x, self.axis, "ink", 2, mark="finish") + (
            svg.text(x + 5, self.sorted - 5, words, bold=True, size=14, halo=True, mark="end") if words else ""
        )

    def caption(self, words: str, y: float) -> str:
        return svg.text(LEFT, y, words, fill="muted", size=svg.SMALL)
