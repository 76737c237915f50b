"""The picture of the view `pipeline`: what each rank computes when, above what `beneath` draws on the same axis."""

from __future__ import annotations

import re
from itertools import pairwise

from scaleout.draw import pipeline_lanes, svg
from scaleout.draw.labels import cut, fitting
from scaleout.draw.plot import Axis, Plane
from scaleout.views.pipeline import beneath, puzzle, record, words, yours
from scaleout.views.pipeline.frame import ABOVE, LEFT, Frame
from scaleout.views.pipeline.setting import YOURS
from scaleout.words.amounts import quantity

HAND = 22  # CSS pixels, at least, of what a hand presses


def picture(setting, look, values: dict, width: int, run: dict | None) -> str:
    """A step in a picture. values: of the view; run: a reader's."""
    step = record.matching_step(run, setting)
    frame = Frame(setting, look, width, run is not None, step[4] if step else 0.0)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    detail = pipeline_lanes.detail(frame.rows, lanes)
    slots = values["slots"]
    parts = [puzzle.above(frame)] if frame.own else [frame.caption(_caption(frame, detail), 14)]
    summary = puzzle.compared(frame) if frame.own else beneath.sorted_time(frame, values)
    if setting.waits:
        parts += [
            summary,
            _timeline(frame, lanes, detail),
            _framed(frame, lanes),
            _ring(frame),
        ]
    else:
        parts += [
            pipeline_lanes.waiting(frame.rows, slots),
            summary,
            _timeline(frame, lanes, detail),
            _hops(frame, lanes),
            _framed(frame, lanes),
            beneath.held_picture(frame, lanes, detail, values),
            beneath.cover(frame, values),
            frame.finish(slots, "" if frame.own else words.number(slots)),
        ]
    parts.append(puzzle.buttons(frame) if frame.own else puzzle.door(frame))
    if run:
        parts.append(_run_parts(frame, run, step))
    length = f"a step of {quantity(slots)} slots, {values['bubble_percent']:.0f}% of it idle"
    outcome = "ranks wait for each other forever" if setting.waits else f"{length}; below, what is in flight"
    counts = f"{setting.ranks} ranks with {setting.micro_batches} micro-batches"
    return frame.figure(parts, f"{setting.label} on {counts}: {outcome}.")


def _run_parts(frame: Frame, run: dict, step: list | None) -> str:
    """Where a reader's run ended, if a step of it is of what is set, and what it was."""
    low, parts = frame.held.bottom + 16, []
    if step and frame.has_run:
        plane = Plane(LEFT, ABOVE - 8, frame.rows.width, frame.axis - ABOVE + 8, Axis(0, frame.rows.until), Axis(0, 1))
        end_x = plane.at_x(step[4])
        parts = [
            svg.line(end_x, plane.top, end_x, frame.rows.bottom, "key", 2, "5 4"),
            plane.own(step[4], 0, "your run's end"),
        ]
    for n, line in enumerate(record.words(run, step, frame.setting)):
        line += ", off this scale" * (n == 0 and step is not None and not frame.has_run)
        parts.append(svg.text(6, low + 16 * n, cut(line, frame.width - 12), fill="key", size=svg.SMALL, bold=not n))
    return "".join(parts)


def locked(setting, look, width: int) -> str:
    """GPipe's step, without a number of slots."""
    frame = Frame(setting, look, width)
    lanes = [setting.lane(rank) for rank in frame.ranks]
    values = {"moment_slots": setting.slots, "slots": setting.slots}
    parts = [
        frame.caption(_caption(frame, "blocks"), 14),
        pipeline_lanes.waiting(frame.rows, setting.slots),
        beneath.sorted_time(frame, values, counted=False),
        _timeline(frame, lanes, "blocks"),
        _hops(frame, lanes),
        beneath.held_picture(frame, lanes, "blocks", values),
        frame.finish(setting.slots, ""),
    ]
    return frame.figure(
        parts, "GPipe's step on each rank, and what is in flight; the question is when 1F1B's step ends."
    )


# --- what each rank computes -------------------------------------------------------------------------------------


def _caption(frame: Frame, detail: str) -> str:
    setting = frame.setting
    shown_ranks = "" if len(frame.ranks) == setting.ranks else f"{len(frame.ranks)} of {setting.ranks} ranks; "
    kinds = f"{shown_ranks}forward faint, backward solid{', weight gradient grey' * setting.splits}"
    column = f", one column: {words.amount(_column(frame))} slots" if detail == "shares" else ", idle hatched"
    lit = f"; micro-batch {frame.lit} in color"
    room = frame.width - LEFT - 4
    return fitting([kinds + column + lit, kinds + column, kinds, f"{shown_ranks}forward faint"], room)


def _column(frame: Frame) -> float:
    return pipeline_lanes.column(frame.rows, (1 + frame.setting.backward) / frame.setting.chunks)


def _timeline(frame: Frame, lanes, detail: str) -> str:
    rows, setting = frame.rows, frame.setting
    if detail == "bars":
        return pipeline_lanes.bars(rows, lanes) + pipeline_lanes.followed(rows, lanes, frame.lit)
    if detail == "shares":
        coarse = pipeline_lanes.shares(rows, lanes, setting.slots, _column(frame))
        return coarse + pipeline_lanes.followed(rows, lanes, frame.lit)
    if setting.schedule == YOURS:
        return yours.blocks(rows, lanes, frame.lit)
    wide = setting.piece * rows.scale
    bodies, numbers = pipeline_lanes.blocks(rows, lanes, frame.lit, wide >= HAND)
    if wide >= HAND:
        bodies = {
            micro: svg.press(
                body,
                (rows.at(micro * setting.piece), frame.sorted - 1, wide, 26),
                "lit",
                micro,
                f"micro-batch {micro}{', in color' * (micro == frame.lit)}",
                f"micro{micro}",
            )
            for micro, body in bodies.items()
        }
    return "".join(bodies.values()) + numbers + pipeline_lanes.strips(rows, lanes)


def _hops(frame: Frame, lanes) -> str:
    """The messages of the micro-batch that is followed, where both ends are drawn."""
    rows, hop, parts = frame.rows, frame.setting.hop, []
    blocks = [
        (kind != "F", stage if kind == "F" else -stage, row, start, end)
        for row, lane in enumerate(lanes)
        for kind, stage, start, end in lane.of(frame.lit)
        if kind != "W"
    ]
    for (backward, stage, row, _, end), (_, nearby, next_row, start, _) in pairwise(sorted(blocks)):
        if row != next_row:
            came = end + hop if abs(nearby - stage) == 1 else start  # else ranks between are not drawn
            ends = (rows.at(end), rows.top(row) + rows.bar / 2, rows.at(came), rows.top(next_row) + rows.bar / 2)
            parts.append(svg.line(*ends, "c4", 2.5, mark=f"hop{'B' if backward else 'F'}{abs(stage)}"))
    return f'<g pointer-events="none">{"".join(parts)}</g>'


def _framed(frame: Frame, lanes) -> str:
    """A frame around what is on the critical path, or in a ring that waits; one where actions follow each other."""
    rows, boxes, setting = frame.rows, [], frame.setting
    if setting.waits:
        actions = {item.action for item in setting.waits}
    elif frame.look.path and setting.framed:
        actions = {run.action for run in setting.timeline.critical}
    else:
        return ""
    for row, lane in enumerate(lanes):
        spans: list[list[float]] = []
        for *action, start, end in lane.actions:
            if tuple(action) not in actions:
                continue
            if spans and start - spans[-1][1] < 1e-9:
                spans[-1][1] = end
            else:
                spans.append([start, end])
        for start, end in spans:
            wide = f"{max(1.0, (end - start) * rows.scale - 2):.1f}"
            boxes.append(f"M{rows.at(start) + 1:.1f} {rows.top(row) + 1:.1f}h{wide}v{rows.bar - 2:.1f}h-{wide}z")
    stroke = svg.colour("accent" if setting.waits else "ink")
    return f'<path d="{"".join(boxes)}" fill="none" stroke="{stroke}" stroke-width="2" pointer-events="none"/>'


def _ring(frame: Frame) -> str:
    """What is wrong with an order that never ends, and which ranks wait for what."""
    wrong, waits = words.stuck(frame.setting)
    if not frame.wide:  # in two lines each
        waits = [part for wait in waits for part in re.split(" (?=before |for )", wait)]
    lines = [f"{wrong}: the step never ends.", *waits]
    return "".join(
        svg.text(LEFT if frame.wide else 6, frame.held.y + 18 * n, line, fill="accent", bold=not n, size=svg.SMALL)
        for n, line in enumerate(lines)
    )
