"""Beneath the timeline of the view `pipeline`, on its axis: rank 0's time, sorted into work and waiting, and the
activations that each rank holds; and what of all this lies after the moment that is shown."""

from __future__ import annotations

from scaleout.draw import hatch, pipeline_held, svg
from scaleout.draw.labels import fitting
from scaleout.views.pipeline import words
from scaleout.views.pipeline.frame import LEFT, SORTED, Frame

PIECE = 5  # CSS pixels that a piece of sorted time needs to be seen as one

# --- one rank's time, sorted -------------------------------------------------------------------------------------


def sorted_time(frame: Frame, values: dict) -> str:
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
    out = [
        f'<path d="{"".join(some)}" fill="{svg.colour(fill)}" data-mark="sorted-{fill}"/>'
        for fill, some in paths.items()
        if some
    ]
    if back * on.scale >= 18 and drawn > 1:
        out += [
            svg.text(
                on.at(n * piece + forward + back / 2),
                y + tall / 2 + 4,
                str(n),
                anchor="middle",
                fill="ink" if n == frame.lit else "paper",
                size=svg.SMALLEST,
                halo=n == frame.lit,
            )
            for n in range(many)
        ]
    wait = values["slots"] - busy
    if wait > 0.005:
        out.append(svg.rect(on.at(busy), y, wait * on.scale, tall, "accent", opacity=hatch.PALE, mark="idle-ground"))
        out.append(hatch.hatched(on.at(busy), y, wait * on.scale, tall, "accent", "idle"))
    return "".join([*out, *_said(frame, wait, values["slots"])])


def _said(frame: Frame, wait: float, slots: float) -> list[str]:
    """Above the sorted time: what it is, as far as there is room, and what of it is waiting."""
    end, y = frame.rows.at(slots) - 4, frame.sorted - 5
    if frame.setting.waits:
        return [svg.text(LEFT, y, "in order, without times", fill="accent", bold=True, size=svg.SMALL)]
    idle = words.idle(frame.setting, wait)
    many = frame.setting.micro_batches
    ways = [f"rank 0, sorted: m = {many} pieces of work", f"rank 0, sorted: {many} pieces", "rank 0, sorted", "sorted"]
    room = end - svg.measure(idle, svg.SMALL, bold=True) - 8 - LEFT
    return [
        frame.caption(fitting(ways, room), y),
        svg.text(end, y, idle, anchor="end", fill="accent", bold=True, size=svg.SMALL, halo=True),
    ]


# --- what each rank holds ----------------------------------------------------------------------------------------


def held(frame: Frame, lanes, detail: str, values: dict) -> str:
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
                out.append(
                    svg.text(
                        on.at(setting.slots) - 4,
                        floor - all_of * unit + 12,
                        f"GPipe holds {all_of}",
                        anchor="end",
                        size=svg.SMALLEST,
                        fill="muted",
                    )
                )
            top = floor - all_of * unit
            out.append(svg.line(on.x, top, on.at(setting.slots), top, "c3", 1, "2 3", mark=f"all{on.ranks[row]}"))
    ended = now >= setting.slots - 1e-9
    if detail == "blocks":
        out.append(pipeline_held.lives(on, lanes, unit / setting.chunks, frame.lit))
    else:
        out.append(pipeline_held.amounts(on, lanes, unit / setting.chunks, setting.slots))
    for row, lane in enumerate(lanes):
        count = peaks[lane.rank] if ended else pipeline_held.in_flight(lane, [now])[0] / setting.chunks
        out.append(
            svg.text(
                on.at(setting.slots) + 6,
                on.top(row) + on.bar - 1,
                words.amount(count),
                bold=True,
                size=14 if on.pitch > 20 else svg.FONT,
                mark=f"held{lane.rank}",
            )
        )
    return "".join(out)


# --- time that has not come yet ----------------------------------------------------------------------------------


def cover(frame: Frame, values: dict) -> str:
    """What lies after the moment that is shown is pale; of the sorted time, what rank 0 has not done or waited yet."""
    now, slots, on, low = values["moment_slots"], values["slots"], frame.rows, frame.held
    if now >= slots - 1e-9:
        return ""
    busy, done = frame.setting.piece * frame.setting.micro_batches, values["done_slots"]
    y, tall = frame.sorted - 1, SORTED[frame.width] + 2
    boxes = [
        (now, slots, on.y - 2, on.bottom - on.y + 4),
        (now, slots, low.y - 2, low.bottom - low.y + 4),
        (done, busy, y, tall),
        (busy + now - done, slots, y, tall),
    ]
    pale = "".join(
        svg.rect(on.at(start), top, max(0.0, end - start) * on.scale + 1, high, "paper", opacity=0.86, mark=f"later{n}")
        for n, (start, end, top, high) in enumerate(boxes)
    )
    heads = "".join(
        svg.line(on.at(now), part.y - 4, on.at(now), part.bottom, "ink", 1.5, mark=f"head{n}")
        for n, part in enumerate((on, low))
    )
    return f'<g pointer-events="none">{pale}{heads}</g>'
