"""The picture of the view `pipeline`: what each rank computes when, above what `beneath` draws on the same axis."""

from __future__ import annotations

from itertools import pairwise

from scaleout.draw import pipeline_lanes, svg
from scaleout.draw.labels import cut, fitting
from scaleout.draw.plot import Axis, Plane
from scaleout.views.pipeline import beneath, record, words, yours
from scaleout.views.pipeline.frame import ABOVE, LEFT, OWN, Frame
from scaleout.views.pipeline.setting import YOURS

HAND = 22  # CSS pixels, at least, of what a hand presses


def picture(setting, look, values: dict, width: int, own: dict | None) -> str:
    """A step in a picture. values: of the view; own: a reader's run."""
    frame = Frame(setting, look, width, own is not None)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    detail = pipeline_lanes.detail(frame.rows, lanes)
    slots, parts = values["slots"], [frame.caption(_caption(frame, detail), 14)]
    if setting.waits:
        parts += [
            beneath.sorted_time(frame, values),
            _timeline(frame, lanes, detail),
            _framed(frame, lanes),
            _ring(frame),
        ]
    else:
        parts += [
            pipeline_lanes.waiting(frame.rows, slots),
            beneath.sorted_time(frame, values),
            _timeline(frame, lanes, detail),
            _hops(frame, lanes),
            _framed(frame, lanes),
            beneath.held(frame, lanes, detail, values),
            beneath.cover(frame, values),
            frame.finish(slots, words.number(slots)),
        ]
    if own:
        parts.append(_own(frame, own))
    step = f"a step of {svg.quantity(slots)} slots, {values['bubble_percent']:.0f}% of it waiting"
    found = "ranks wait for one another for ever" if setting.waits else f"{step}; beneath, what each rank holds"
    many = f"{setting.ranks} ranks with {setting.micro_batches} micro-batches"
    return frame.figure(parts, f"{setting.label} on {many}: {found}.")


def _own(frame: Frame, run: dict) -> str:
    """Where a reader's run ended, if it is of what is set, and what it was."""
    step, low, out = record.of(run, frame.setting), frame.height - OWN + 10, []
    if step:
        plane = Plane(LEFT, ABOVE - 8, frame.rows.width, frame.axis - ABOVE + 8, Axis(0, frame.rows.until), Axis(0, 1))
        at = plane.at_x(step[4])
        out = [svg.line(at, plane.top, at, frame.rows.bottom, "key", 2, "5 4"), plane.own(step[4], 0, "your run's end")]
    for n, said in enumerate(record.words(run, step, frame.setting)):
        out.append(svg.text(6, low + 16 * n, cut(said, frame.width - 12), fill="key", size=svg.SMALL, bold=not n))
    return "".join(out)


def asked(setting, look, width: int) -> str:
    """GPipe's step, without a number of slots."""
    frame = Frame(setting, look, width)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    values = {"moment_slots": setting.slots, "slots": setting.slots}
    parts = [
        frame.caption(_caption(frame, "blocks"), 14),
        pipeline_lanes.waiting(frame.rows, setting.slots),
        beneath.sorted_time(frame, values),
        _timeline(frame, lanes, "blocks"),
        _hops(frame, lanes),
        beneath.held(frame, lanes, "blocks", values),
        frame.finish(setting.slots, ""),
    ]
    return frame.figure(parts, "GPipe's step on each rank, and what it holds meanwhile; when 1F1B's ends is asked.")


# --- what each rank computes -------------------------------------------------------------------------------------


def _caption(frame: Frame, detail: str) -> str:
    setting = frame.setting
    if setting.schedule == YOURS:
        return "Drag a block along its row, or press arrow keys on it."
    some = "" if len(frame.ranks) == setting.ranks else f"{len(frame.ranks)} of {setting.ranks} ranks; "
    kinds = f"{some}forward faint, backward solid{', weights grey' * setting.splits}"
    column = f", a column: {words.amount(_column(frame))} slots" if detail == "shares" else ", waiting hatched"
    lit = f"; micro-batch {frame.lit} in colour"
    room = frame.width - LEFT - 4
    return fitting([kinds + column + lit, kinds + column, kinds, f"{some}forward faint"], room)


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
    bodies, numbers = pipeline_lanes.blocks(on, lanes, frame.lit, wide >= HAND)
    if wide >= HAND:
        bodies = {
            micro: svg.press(
                body,
                (on.at(micro * setting.piece), frame.sorted - 1, wide, 26),
                "lit",
                micro,
                f"micro-batch {micro}{', in colour' * (micro == frame.lit)}",
                f"micro{micro}",
            )
            for micro, body in bodies.items()
        }
    return "".join(bodies.values()) + numbers + pipeline_lanes.strips(on, lanes)


def _hops(frame: Frame, lanes) -> str:
    """The messages of the micro-batch that is followed, where both ends are drawn."""
    on, hop, out = frame.rows, frame.setting.hop, []
    found = [
        (kind != "F", stage if kind == "F" else -stage, row, start, end)
        for row, lane in enumerate(lanes)
        for kind, stage, start, end in lane.of(frame.lit)
        if kind != "W"
    ]
    for (back, stage, row, _, end), (_, nearby, other, start, _) in pairwise(sorted(found)):
        if row != other:
            came = end + hop if abs(nearby - stage) == 1 else start  # else ranks between are not drawn
            ends = (on.at(end), on.top(row) + on.bar / 2, on.at(came), on.top(other) + on.bar / 2)
            out.append(svg.line(*ends, "c4", 2.5, mark=f"hop{'B' if back else 'F'}{abs(stage)}"))
    return f'<g pointer-events="none">{"".join(out)}</g>'


def _framed(frame: Frame, lanes) -> str:
    """A frame around what is on the critical path, or in a ring that waits; one where actions follow each other."""
    on, boxes, setting = frame.rows, [], frame.setting
    if setting.waits:
        found = {one.action for one in setting.waits}
    elif frame.look.path and setting.framed:
        found = {run.action for run in setting.timeline.critical}
    else:
        return ""
    for row, lane in enumerate(lanes):
        spans: list[list[float]] = []
        for *action, start, end in lane.actions:
            if tuple(action) not in found:
                continue
            if spans and start - spans[-1][1] < 1e-9:
                spans[-1][1] = end
            else:
                spans.append([start, end])
        for start, end in spans:
            wide = f"{max(1.0, (end - start) * on.scale - 2):.1f}"
            boxes.append(f"M{on.at(start) + 1:.1f} {on.top(row) + 1:.1f}h{wide}v{on.bar - 2:.1f}h-{wide}z")
    stroke = svg.colour("accent" if setting.waits else "ink")
    return f'<path d="{"".join(boxes)}" fill="none" stroke="{stroke}" stroke-width="2" pointer-events="none"/>'


def _ring(frame: Frame) -> str:
    """Which ranks wait for what, of a step that never ends."""
    said = [
        f"rank {one.rank} waits at {words.name(one.action)} for {words.name(one.for_action)} of rank {one.of_rank}"
        for one in frame.setting.waits
    ]
    lines = ["it never ends:", *said]
    return "".join(
        svg.text(LEFT if frame.wide else 6, frame.held.y + 18 * n, line, fill="accent", bold=not n, size=svg.SMALL)
        for n, line in enumerate(lines)
    )
