"""Below the timeline of the view `pipeline`, on its axis: rank 0's time, sorted into work and idle time, and the
micro-batches that each rank has in flight; and what of all this lies after the moment that is shown."""

from __future__ import annotations

from scaleout.draw import hatch, pipeline_held, svg
from scaleout.draw.labels import fitting
from scaleout.views.pipeline import words
from scaleout.views.pipeline.frame import LEFT, SORTED, Frame

PIECE = 5  # CSS pixels that a piece of sorted time needs to be seen as one

# --- one rank's time, sorted -------------------------------------------------------------------------------------


def sorted_time(frame: Frame, values: dict, counted: bool = True) -> str:
    """Rank 0's work by micro-batch, and its idle time; `counted` says in words how much of each."""
    setting, rows, y = frame.setting, frame.rows, frame.sorted
    tall, count, forward, piece = SORTED[frame.width], setting.micro_batches, setting.forward, setting.piece
    backward, busy = piece - forward, piece * count
    drawn = count if piece * rows.scale >= PIECE else 1
    paths: dict[str, list[str]] = {"grid": [], "compute": [], "c3": [], "c6": []}
    for n in range(drawn):
        start_slots, lit = n * busy / drawn, n == frame.lit and drawn > 1
        for fill, start, slots in (
            ("grid", start_slots, forward),
            ("compute", start_slots + forward * count / drawn, backward),
        ):
            wide = slots * count / drawn * rows.scale - (1 if drawn > 1 else 0)
            name = {"grid": "c3", "compute": "c6"}[fill] if lit else fill
            paths[name].append(f"M{rows.at(start) + 0.5:.1f} {y}h{wide:.1f}v{tall}h-{wide:.1f}z")
    parts = [
        f'<path d="{"".join(boxes)}" fill="{svg.colour(fill)}" data-mark="sorted-{fill}"/>'
        for fill, boxes in paths.items()
        if boxes
    ]
    if backward * rows.scale >= 18 and drawn > 1:
        parts += [
            svg.text(
                rows.at(n * piece + forward + backward / 2),
                y + tall / 2 + 4,
                str(n),
                anchor="middle",
                fill="ink" if n == frame.lit else "paper",
                size=svg.SMALLEST,
                halo=n == frame.lit,
            )
            for n in range(count)
        ]
    wait = values["slots"] - busy
    if wait > 0.005:
        parts += [
            svg.rect(rows.at(busy), y, wait * rows.scale, tall, "accent", opacity=hatch.PALE, mark="idle-ground"),
            hatch.hatched(rows.at(busy), y, wait * rows.scale, tall, "accent", "idle"),
        ]
    return "".join([*parts, *_sorted_words(frame, wait, values["slots"], counted)])


def _sorted_words(frame: Frame, wait: float, slots: float, counted: bool) -> list[str]:
    """Above the sorted time: what it is, as far as there is room, and how much of it is idle."""
    end, y = frame.rows.at(slots) - 4, frame.sorted - 5
    if frame.setting.waits:
        return [svg.text(LEFT, y, "in order, without times", fill="accent", bold=True, size=svg.SMALL)]
    idle = words.idle(frame.setting, wait) if counted else "idle"
    count = frame.setting.micro_batches
    ways = [
        f"rank 0, sorted: work for m = {count} micro-batches",
        f"rank 0, sorted: m = {count} micro-batches",
        f"rank 0, sorted: m = {count}",
        "rank 0, sorted",
        "sorted",
    ]
    room = end - svg.measure(idle, svg.SMALL, bold=True) - 8 - LEFT
    return [
        frame.caption(fitting(ways, room), y),
        svg.text(end, y, idle, anchor="end", fill="accent", bold=True, size=svg.SMALL, halo=True),
    ]


# --- what each rank holds ----------------------------------------------------------------------------------------


def held_picture(frame: Frame, lanes, detail: str, values: dict) -> str:
    """Micro-batches in flight on each rank, one over the other; at the right the most, or how many now."""
    setting, rows, moment = frame.setting, frame.held, values["moment_slots"]
    peaks = setting.peaks
    most_held = max(peaks)
    all_of = setting.micro_batches  # what GPipe holds on every rank
    gpipe_shown = all_of <= 2.5 * most_held
    unit = (rows.bar - 1) / max(most_held, all_of if gpipe_shown else 0)
    dotted = f"; dotted: GPipe's {all_of}" if frame.own and gpipe_shown else ""
    ways = [
        f"in flight: activations stored from forward to end of backward{dotted}",
        f"in flight, from forward to end of backward{dotted}",
        f"micro-batches in flight{dotted}",
    ]
    room = frame.width - LEFT - 4
    parts = [frame.caption(fitting(ways if detail == "blocks" else ways[2:], room), rows.y - 7)]
    for row in range(len(rows.ranks)):
        floor = rows.top(row) + rows.bar
        parts.append(svg.line(rows.x, floor, rows.at(setting.slots), floor, mark=f"floor{rows.ranks[row]}"))
        if gpipe_shown:
            if not row and (all_of - most_held) * unit > 14 and setting.schedule != "gpipe":
                parts.append(
                    svg.text(
                        rows.at(setting.slots) - 4,
                        floor - all_of * unit + 12,
                        f"GPipe: {all_of}",
                        anchor="end",
                        size=svg.SMALLEST,
                        fill="muted",
                    )
                )
            top = floor - all_of * unit
            parts.append(
                svg.line(rows.x, top, rows.at(setting.slots), top, "c3", 1, "2 3", mark=f"all{rows.ranks[row]}")
            )
    ended = moment >= setting.slots - 1e-9
    if detail == "blocks":
        parts.append(pipeline_held.lives(rows, lanes, unit / setting.chunks, frame.lit))
    else:
        parts.append(pipeline_held.amounts(rows, lanes, unit / setting.chunks, setting.slots))
    for row, lane in enumerate(lanes):
        count = peaks[lane.rank] if ended else pipeline_held.in_flight(lane, [moment])[0] / setting.chunks
        parts.append(
            svg.text(
                rows.at(setting.slots) + 6,
                rows.top(row) + rows.bar - 1,
                words.amount(count),
                bold=True,
                size=14 if rows.pitch > 20 else svg.FONT,
                mark=f"held{lane.rank}",
            )
        )
    return "".join(parts)


# --- time that has not come yet ----------------------------------------------------------------------------------


def cover(frame: Frame, values: dict) -> str:
    """What lies after the moment that is shown is pale; of the sorted time, what rank 0 has not done or waited yet."""
    moment, slots, rows, low = values["moment_slots"], values["slots"], frame.rows, frame.held
    if moment >= slots - 1e-9:
        return ""
    busy, done_slots = frame.setting.piece * frame.setting.micro_batches, values["done_slots"]
    y, tall = frame.sorted - 1, SORTED[frame.width] + 2
    boxes = [
        (moment, slots, rows.y - 2, rows.bottom - rows.y + 4),
        (moment, slots, low.y - 2, low.bottom - low.y + 4),
        *([] if frame.own else [(done_slots, busy, y, tall), (busy + moment - done_slots, slots, y, tall)]),
    ]
    pale = "".join(
        svg.rect(
            rows.at(start), top, max(0.0, end - start) * rows.scale + 1, high, "paper", opacity=0.86, mark=f"later{n}"
        )
        for n, (start, end, top, high) in enumerate(boxes)
    )
    heads = "".join(
        svg.line(rows.at(moment), part.y - 4, rows.at(moment), part.bottom, "ink", 1.5, mark=f"head{n}")
        for n, part in enumerate((rows, low))
    )
    return f'<g pointer-events="none">{pale}{heads}</g>'
