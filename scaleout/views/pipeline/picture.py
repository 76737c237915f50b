"""The picture of the view `pipeline`: what each rank computes when, one rank's time sorted, and beneath, on the same
axis, the activations that each holds."""

from __future__ import annotations

from itertools import pairwise

from scaleout.draw import guess, hatch, pipeline_held, pipeline_lanes, svg
from scaleout.draw.labels import cut, short
from scaleout.draw.pipeline_lanes import Rows
from scaleout.draw.plot import TICK, Axis, Plane
from scaleout.views.pipeline import record, words, yours
from scaleout.views.pipeline.setting import YOURS

LEFT = 50  # of the names of ranks
RIGHT = {svg.WIDE: 34, svg.NARROW: 28}  # of what they hold
DRAWN = 8  # ranks at most
BEYOND = 1.1  # of the axis over the longer of this step and GPipe's, so that a guess beyond them can be drawn
ABOVE = 34  # the caption, and the words of a guess
CAPTION, SORTED = 19, {svg.WIDE: 24, svg.NARROW: 20}  # between the parts; a row of sorted time
# By width: the rows of the timeline together, at most, one of them at most, and the same of what is held
TALL = {svg.WIDE: (162, 31, 206, 50), svg.NARROW: (136, 28, 148, 44)}
OWN = 34  # for what is said of a reader's run
GAP = 4  # between rows
HAND = 22  # and, at least, that a hand needs to press it
PIECE = 5  # CSS pixels that a piece of sorted time needs to be seen as one


def shown(ranks: int) -> tuple[int, ...]:
    """The ranks that are drawn: all, or DRAWN of them from the first to the last."""
    count = min(ranks, DRAWN)
    return tuple(round(row * (ranks - 1) / (count - 1)) for row in range(count))


class Frame:
    """Where the parts lie, for one width: rows of the timeline, sorted time, the axis, rows of what is held."""

    def __init__(self, setting, look, width: int, own: bool = False) -> None:
        self.setting, self.look, self.width, self.wide = setting, look, width, width == svg.WIDE
        self.lit = min(look.lit, setting.micro_batches - 1)
        self.ranks = shown(setting.ranks)
        across, until = width - LEFT - RIGHT[width], BEYOND * max(setting.slots, setting.gpipe.slots)
        tall, most, low, lowest = TALL[width]
        pitch = min(most, tall // len(self.ranks))
        self.rows = Rows(LEFT, ABOVE, across, until, pitch, pitch - (GAP if pitch > 22 else 3), self.ranks)
        self.sorted = self.rows.bottom + CAPTION
        self.axis = self.sorted + SORTED[width] + 5
        pitch = min(lowest, (low - OWN * own) // len(self.ranks))
        self.held = Rows(LEFT, self.axis + TICK + 6 + CAPTION, across, until, pitch, pitch - GAP, self.ranks)
        self.height = self.held.bottom + 6 + OWN * own

    def figure(self, parts: list[str], label: str) -> str:
        both = (self.rows,) if self.setting.waits else (self.rows, self.held)
        names = "".join(self._names(rows) for rows in both)
        return svg.figure(self.width, self.height, "".join([self._axis(), names, *parts, self._mark()]), label)

    def _names(self, rows: Rows) -> str:
        middle = rows.bar / 2 + 4
        return "".join(
            svg.text(LEFT - 6, rows.top(row) + middle, f"rank {rank}", anchor="end", size=svg.SMALL)
            for row, rank in enumerate(rows.ranks)
        )

    def _axis(self) -> str:
        on, out = self.rows, [svg.line(LEFT, self.axis, LEFT + self.rows.width, self.axis)]
        marks = svg.ticks(on.until, 6)
        for value in marks:
            words = short(value) + (" slots" if value == marks[-1] else "")
            out.append(svg.text(on.at(value), self.axis + TICK, words, fill="muted", size=svg.SMALL,
                                anchor="start" if value == 0 else "middle"))  # fmt: skip
        return "".join(out)

    def _mark(self) -> str:
        on = self.rows
        return guess.mark([(0.0, on.x), (on.until, on.x + on.width)], (ABOVE - 12, self.axis), "x")

    def finish(self, slots: float, words: str) -> str:
        """The end of the step, through everything that time runs in."""
        at, low = self.rows.at(slots), ABOVE - 8
        return svg.line(at, low, at, self.axis, "ink", 2, mark="finish") + (
            svg.text(at + 5, self.sorted - 5, words, bold=True, size=14, halo=True, mark="end") if words else ""
        )

    def caption(self, words: str, y: float) -> str:
        return svg.text(LEFT, y, words, fill="muted", size=svg.SMALL)


def picture(setting, look, values: dict, width: int, own: dict | None) -> str:
    """A step in a picture. values: of the view; own: a reader's run."""
    frame = Frame(setting, look, width, own is not None)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    detail = pipeline_lanes.detail(frame.rows, lanes)
    slots = values["slots"]
    parts = [
        frame.caption(_caption(frame, detail), 14), "" if setting.waits else pipeline_lanes.waiting(frame.rows, slots),
        _sorted(frame, values), _timeline(frame, lanes, detail), "" if setting.waits else _hops(frame, lanes),
        _framed(frame, lanes), _ring(frame) if setting.waits else _held(frame, lanes, detail, values),
        "" if setting.waits else _cover(frame, values) + frame.finish(slots, words.number(slots)),
    ]  # fmt: skip
    if own:
        parts.append(_own(frame, own))
    label = (
        f"{setting.label} on {setting.ranks} ranks with {setting.micro_batches} micro-batches: a step of "
        f"{svg.quantity(slots)} slots, {values['bubble_percent']:.0f}% of it waiting; beneath, what each rank holds."
    )
    return frame.figure(parts, label)


def _own(frame: Frame, run: dict) -> str:
    """Where a reader's run ended, if it is of what is set, and what it was."""
    step, low, out = record.of(run, frame.setting), frame.height - OWN + 10, []
    if step:
        plane = Plane(LEFT, ABOVE - 8, frame.rows.width, frame.axis - ABOVE + 8, Axis(0, frame.rows.until), Axis(0, 1))
        at = plane.at_x(step[4])
        out = [svg.line(at, plane.top, at, plane.bottom, "key", 2, "5 4"), plane.own(step[4], 0, "your run's end")]
    for n, said in enumerate(record.words(run, step)):
        out.append(svg.text(6, low + 16 * n, cut(said, frame.width - 12), fill="key", size=svg.SMALL, bold=not n))
    return "".join(out)


def asked(setting, look, width: int) -> str:
    """GPipe's step, without a number of slots."""
    frame = Frame(setting, look, width)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    values = {"moment_slots": setting.slots, "slots": setting.slots}
    parts = [
        frame.caption(_caption(frame, "blocks"), 14), pipeline_lanes.waiting(frame.rows, setting.slots),
        _sorted(frame, values), _timeline(frame, lanes, "blocks"), _hops(frame, lanes),
        _held(frame, lanes, "blocks", values), frame.finish(setting.slots, ""),
    ]  # fmt: skip
    return frame.figure(parts, "GPipe's step on each rank, and what it holds meanwhile; when 1F1B's ends is asked.")


# --- what each rank computes -------------------------------------------------------------------------------------


def _caption(frame: Frame, detail: str) -> str:
    setting = frame.setting
    some = "" if len(frame.ranks) == setting.ranks else f"{len(frame.ranks)} of {setting.ranks} ranks; "
    kinds = f"{some}forward pale, backward dark{', weights grey' * setting.splits}"
    column = f", a column: {words.amount(_column(frame))} slots" if detail == "shares" else ", waiting red"
    lit = f"; micro-batch {frame.lit} in colour"
    room = frame.width - LEFT - 4
    return _fitting([kinds + column + lit, kinds + column, kinds, f"{some}forward pale"], room)


def _fitting(ways: list[str], room: float) -> str:
    """The first of these words that fit so many CSS pixels."""
    return next((one for one in ways if svg.measure(one, svg.SMALL) <= room), "")


def _column(frame: Frame) -> float:
    return pipeline_lanes.column(frame.rows, (1 + frame.setting.backward) / frame.setting.chunks)


def _timeline(frame: Frame, lanes, detail: str) -> str:
    on, setting = frame.rows, frame.setting
    if detail == "bars":
        return pipeline_lanes.bars(on, lanes) + pipeline_lanes.followed(on, lanes, frame.lit)
    if detail == "shares":
        coarse = pipeline_lanes.shares(on, lanes, setting.slots, _column(frame))
        return coarse + pipeline_lanes.followed(on, lanes, frame.lit)
    if setting.schedule == YOURS:
        return yours.blocks(on, lanes, frame.lit)
    wide = setting.piece * on.scale
    bodies = pipeline_lanes.blocks(on, lanes, frame.lit, wide >= HAND)
    if wide >= HAND:
        bodies = {micro: svg.press(body, (on.at(micro * setting.piece), frame.sorted - 1, wide, 26), "lit", micro,
                                   f"micro-batch {micro}{', in colour' * (micro == frame.lit)}", f"micro{micro}")
                  for micro, body in bodies.items()}  # fmt: skip
    return "".join(bodies.values()) + pipeline_lanes.strips(on, lanes)


def _hops(frame: Frame, lanes) -> str:
    """The messages of the micro-batch that is followed, where both ends are drawn."""
    on, hop, out = frame.rows, frame.setting.hop, []
    found = [(kind != "F", stage if kind == "F" else -stage, row, start, end) for row, lane in enumerate(lanes)
             for kind, stage, micro, start, end in lane.actions if micro == frame.lit and kind != "W"]  # fmt: skip
    for (back, stage, row, _, end), (_, nearby, other, start, _) in pairwise(sorted(found)):
        if row != other:
            came = end + hop if abs(nearby - stage) == 1 else start  # else ranks between are not drawn
            ends = (on.at(end), on.top(row) + on.bar / 2, on.at(came), on.top(other) + on.bar / 2)
            out.append(svg.line(*ends, "c4", 2.5, mark=f"hop{'B' if back else 'F'}{abs(stage)}"))
    return f'<g pointer-events="none">{"".join(out)}</g>'


def _framed(frame: Frame, lanes) -> str:
    """A frame around each action of the critical path, or of a ring that waits."""
    on, boxes, setting = frame.rows, [], frame.setting
    if setting.waits:
        found = {one.action for one in setting.waits}
    elif frame.look.path and setting.framed:
        found = {run.action for run in setting.timeline.critical}
    else:
        return ""
    for row, lane in enumerate(lanes):
        for kind, stage, micro, start, end in lane.actions:
            if (kind, stage, micro) in found:
                wide = f"{(end - start) * on.scale - 2:.1f}"
                boxes.append(f"M{on.at(start) + 1:.1f} {on.top(row) + 1:.1f}h{wide}v{on.bar - 2:.1f}h-{wide}z")
    stroke = svg.colour("accent" if setting.waits else "ink")
    return f'<path d="{"".join(boxes)}" fill="none" stroke="{stroke}" stroke-width="2.5" pointer-events="none"/>'


# --- one rank's time, sorted -------------------------------------------------------------------------------------


def _sorted(frame: Frame, values: dict) -> str:
    """Rank 0's work as pieces of a micro-batch each, and what it waits."""
    setting, on, y = frame.setting, frame.rows, frame.sorted
    tall, many, forward, piece = SORTED[frame.width], setting.micro_batches, setting.forward, setting.piece
    back, busy = piece - forward, piece * many
    drawn = many if piece * on.scale >= PIECE else 1
    paths = {"grid": [], "compute": [], "c3": [], "c6": []}
    for n in range(drawn):
        at, lit = n * busy / drawn, n == frame.lit and drawn > 1
        for fill, start, slots in (("grid", at, forward), ("compute", at + forward * many / drawn, back)):
            wide = slots * many / drawn * on.scale - (1 if drawn > 1 else 0)
            name = {"grid": "c3", "compute": "c6"}[fill] if lit else fill
            paths[name].append(f"M{on.at(start) + 0.5:.1f} {y}h{wide:.1f}v{tall}h-{wide:.1f}z")
    out = [f'<path d="{"".join(some)}" fill="{svg.colour(fill)}" data-mark="sorted-{fill}"/>'
           for fill, some in paths.items() if some]  # fmt: skip
    if back * on.scale >= 18 and drawn > 1:
        out += [svg.text(on.at(n * piece + forward + back / 2), y + tall / 2 + 4, str(n), anchor="middle",
                         fill="paper", size=svg.SMALLEST) for n in range(many)]  # fmt: skip
    wait = values["slots"] - busy
    if wait > 0.005:
        out.append(svg.rect(on.at(busy), y, wait * on.scale, tall, "accent", opacity=hatch.PALE, mark="idle-ground"))
        out.append(hatch.hatched(on.at(busy), y, wait * on.scale, tall, "accent", "idle"))
    return "".join([*out, *_said(frame, wait, values["slots"])])


def _said(frame: Frame, wait: float, slots: float) -> list[str]:
    """Above the sorted time: what it is, as far as there is room, and what of it is waiting."""
    end, y = frame.rows.at(slots) - 4, frame.sorted - 5
    idle = words.idle(frame.setting, wait)
    many = frame.setting.micro_batches
    ways = [f"rank 0, sorted: m = {many} pieces of work", f"rank 0, sorted: {many} pieces", "rank 0, sorted", "sorted"]
    room = end - svg.measure(idle, svg.SMALL, bold=True) - 8 - LEFT
    return [frame.caption(_fitting(ways, room), y),
            svg.text(end, y, idle, anchor="end", fill="accent", bold=True, size=svg.SMALL, halo=True)]  # fmt: skip


def _ring(frame: Frame) -> str:
    """Which ranks wait for what, of a step that never ends."""
    said = [f"rank {one.rank} waits at {words.name(one.action)} for {words.name(one.for_action)} of rank {one.of_rank}"
            for one in frame.setting.waits]  # fmt: skip
    lines = ["it never ends:", *said]
    return "".join(
        svg.text(LEFT if frame.wide else 6, frame.held.y + 18 * n, line, fill="accent", bold=not n, size=svg.SMALL)
        for n, line in enumerate(lines)
    )


# --- what each rank holds ----------------------------------------------------------------------------------------


def _held(frame: Frame, lanes, detail: str, values: dict) -> str:
    """Micro-batches whose activations a rank holds, one over the other; at the right the most, or how many now."""
    setting, on, now = frame.setting, frame.held, values["moment_slots"]
    peaks = setting.peaks
    most = max(peaks)
    all_of = setting.micro_batches  # what GPipe holds on every rank
    over = all_of <= 2.5 * most
    unit = (on.bar - 1) / max(most, all_of if over else 0)
    said = "held: forward to the end of backward" if detail == "blocks" else "micro-batches' activations held"
    out = [frame.caption(f"activations {said}" if frame.wide and detail == "blocks" else said, on.y - 7)]
    for row in range(len(on.ranks)):
        floor = on.top(row) + on.bar
        out.append(svg.line(on.x, floor, on.at(setting.slots), floor, mark=f"floor{on.ranks[row]}"))
        if over:
            if not row and (all_of - most) * unit > 14 and setting.schedule != "gpipe":
                out.append(svg.text(on.at(setting.slots) - 4, floor - all_of * unit + 12, f"GPipe holds {all_of}",
                                    anchor="end", size=svg.SMALLEST, fill="muted"))  # fmt: skip
            top = floor - all_of * unit
            out.append(svg.line(on.x, top, on.at(setting.slots), top, "c3", 1, "2 3", mark=f"all{on.ranks[row]}"))
    if detail == "blocks":
        out.append(pipeline_held.lives(on, lanes, unit / setting.chunks, frame.lit))
    else:
        out.append(pipeline_held.amounts(on, lanes, unit / setting.chunks, setting.slots))
    ended = now >= setting.slots - 1e-9
    for row, lane in enumerate(lanes):
        alive = pipeline_held.held_at(*pipeline_held.times(lane), now) / setting.chunks
        count = peaks[lane.rank] if ended else alive
        out.append(svg.text(on.at(setting.slots) + 6, on.top(row) + on.bar - 1, words.amount(count), bold=True,
                            size=14 if on.pitch > 20 else svg.FONT, mark=f"held{lane.rank}"))  # fmt: skip
    return "".join(out)


# --- time that has not come yet ----------------------------------------------------------------------------------


def _cover(frame: Frame, values: dict) -> str:
    """What lies after the moment that is shown is pale; of the sorted time, what rank 0 has not done or waited yet."""
    now, slots, on, low = values["moment_slots"], values["slots"], frame.rows, frame.held
    if now >= slots - 1e-9:
        return ""
    busy, done = frame.setting.piece * frame.setting.micro_batches, values["done_slots"]
    y, tall = frame.sorted - 1, SORTED[frame.width] + 2
    boxes = [
        (now, slots, on.y - 2, on.bottom - on.y + 4), (now, slots, low.y - 2, low.bottom - low.y + 4),
        (done, busy, y, tall), (busy + now - done, slots, y, tall),
    ]  # fmt: skip
    pale = "".join(
        svg.rect(on.at(start), top, max(0.0, end - start) * on.scale + 1, high, "paper", opacity=0.86, mark=f"later{n}")
        for n, (start, end, top, high) in enumerate(boxes)
    )
    heads = "".join(
        svg.line(on.at(now), part.y - 4, on.at(now), part.bottom, "ink", 1.5, mark=f"head{n}")
        for n, part in enumerate((on, low))
    )
    return f'<g pointer-events="none">{pale}{heads}</g>'
