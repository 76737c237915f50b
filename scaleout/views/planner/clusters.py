"""How the answer changes with the cluster: the same batch on other numbers of GPUs, and what if one thing changes.

Two pictures beneath the view `planner`.
"""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.labels import fitting
from scaleout.spec.devices import DEVICES
from scaleout.timing.plan import Plan
from scaleout.views.planner import words
from scaleout.views.planner.bars import spent, stretch
from scaleout.views.planner.setting import MOST_GPUS, Question, Setting, answer, best_of, cuts_of, job_of, kept

# Rows under the columns: a name, and what a plan has of it.
ROWS = (
    ("tp", lambda plan: str(plan.layout.tp)),
    ("cp", lambda plan: str(plan.layout.cp)),
    ("pp", lambda plan: str(plan.layout.pp)),
    ("shard", lambda plan: words.SHARDS[plan.layout.zero].replace("ZeRO-", "Z") or "–"),
    ("recompute", lambda plan: {"none": "–", "selective": "part", "full": "all"}[plan.checkpointing]),
)
CHANGES = ("network half as fast", "network twice as fast", "links in a node half as fast", "half the sequences",
           "twice the sequences", "sequences twice as long", "a GPU of 141 GB", "nodes of 64 GPUs")  # fmt: skip
Gain = tuple[str, float | None, float | None, Plan | None]  # as `gains` gives them


def counts(gpus: int) -> list[int]:
    """Numbers of GPUs: doublings, and how many there are now."""
    return sorted({gpus, *(2**k for k in range(MOST_GPUS.bit_length()))})


def questions(setting: Setting) -> list[Question]:
    """The questions of the strip."""
    return [setting.question._replace(gpus=gpus) for gpus in counts(setting.question.gpus)]


def columns(setting: Setting) -> list[tuple[int, Plan | None, float]]:
    """(GPUs, the best plan there or None, its MFU)."""
    results = []
    for gpus in counts(setting.question.gpus):
        moved = setting.asking(gpus=gpus)
        best = best_of(moved.question)
        results.append((gpus, best, best.mfu if best else 0.0))
    return results


def strip(setting: Setting) -> dict:
    """The same batch on other clusters."""
    results = columns(setting)
    pictures = [_strip(setting, results, width) for width in (svg.WIDE, svg.NARROW)]
    text = "Each column is the step time of the best layout by part, in the colors above. Press a column to choose it."
    return {"title": "The same batch on other clusters", "blocks": [("words", text), ("pictures", *pictures)]}


def _strip(setting: Setting, results: list[tuple[int, Plan | None, float]], width: int) -> str:
    wide = width == svg.WIDE
    if not wide:  # a phone has room for eight: those around the reader's own
        chosen = counts(setting.question.gpus).index(setting.question.gpus)
        first = min(max(0, chosen - 4), len(results) - 8)
        results = results[first : first + 8]
    left = 66.0
    pitch = (width - left - 2) / len(results)
    tall, top = 110, 6
    low = top + tall
    parts = []
    for i, (gpus, plan, mfu) in enumerate(results):
        x, long = left + i * pitch + 1, pitch - 2
        parts.append(_column(setting, gpus, plan, mfu, (x, top, long, tall)))
    rows = [("GPUs", [_count(gpus) for gpus, _, _ in results])]
    rows += [(name, [cell(plan) if plan else "" for _, plan, _ in results]) for name, cell in ROWS]
    rows.append(("MFU %", [f"{100 * mfu:.0f}" if plan else "" for _, plan, mfu in results]))
    rows.append(("step", [_seconds(plan.seconds) if plan else "" for _, plan, _ in results]))
    for k, (name, cells) in enumerate(rows):
        y = low + 17 + 19 * k
        parts.append(svg.text(0, y, name, fill="muted", size=svg.SMALLEST))
        parts.append(_cells(cells, left, pitch, y, merged=0 < k < 6))
    height = low + 17 + 19 * len(rows) - 8
    lit = next(i for i, (gpus, _, _) in enumerate(results) if gpus == setting.question.gpus)
    parts.append(svg.frame(left + lit * pitch - 0.5, top - 4, pitch + 1, height - top + 2, "key", 2, rounded=5))
    label = "The best layout on each number of GPUs: " + "; ".join(
        f"{gpus:,}: {words.layout(plan)}, {100 * mfu:.0f}% MFU" if plan else f"{gpus:,}: nothing fits"
        for gpus, plan, mfu in results
    )
    return svg.figure(width, height, "".join(parts), label)


def _count(gpus: int) -> str:
    return f"{gpus // 1024}K" if gpus >= 1024 else str(gpus)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


def _column(setting: Setting, gpus: int, plan: Plan | None, mfu: float, box: tuple[float, float, float, float]) -> str:
    """A GPU's time, as a button that goes there."""
    x, y, long, tall = box
    if plan is None:
        body = svg.rect(x, y, long, tall, "grid", opacity=0.25)
        body += svg.text(x + long / 2, y + tall / 2 + 4, "×", anchor="middle", fill="muted")
    else:
        parts, low = [], y + tall
        for part, size in spent(plan).items():
            high = tall * size / plan.seconds
            low -= high
            if high > 0.3:
                parts.append(stretch(part, x, low, long, high))
        body = "".join(parts)
    if gpus == setting.question.gpus:
        return body
    text = f"{words.layout(plan)}: {100 * mfu:.0f}% MFU" if plan else "× nothing fits"
    return svg.press(body, box, "gpus", gpus, f"{gpus:,} GPUs: {text}", f"column {gpus}")


def _cells(cells: list[str], left: float, pitch: float, y: float, merged: bool) -> str:
    """Words under columns; equal neighbours share one cell."""
    parts, start = [], 0
    for i in range(1, len(cells) + 1):
        if i < len(cells) and merged and cells[i] == cells[start]:
            continue
        x, long = left + start * pitch, (i - start) * pitch
        if cells[start] and merged:
            parts.append(svg.rect(x + 1, y - 12, long - 2, 16, "grid", opacity=0.4))
        text = fitting((cells[start], cells[start].removesuffix(" s")), long + 2, svg.SMALLEST)
        parts.append(svg.text(x + long / 2, y, text, anchor="middle", size=svg.SMALLEST))
        start = i
    return "".join(parts)


# --- what if ----------------------------------------------------------------------------------------------------


def changed(question: Question, change: str) -> Question | None:
    """The question with one change; None where that is the same question."""
    if change in ("half the sequences", "twice the sequences"):
        return question._replace(sequences=question.sequences * 2 if "twice" in change else question.sequences // 2)
    if change == "a GPU of 141 GB" and DEVICES[question.device].memory_bytes >= DEVICES["h200"].memory_bytes:
        return None
    if question.gpus <= 8 and change.startswith(("network", "nodes")):
        return None
    if change == "nodes of 64 GPUs" and question.gpus > 64 and question.gpus % 64:
        return None
    if change == "sequences twice as long" and (question.sequences < 2 or not _room_for_twice(question)):
        return None
    return question._replace(change=change)


def _room_for_twice(question: Question) -> bool:
    """Whether the model has positions for sequences twice as long."""
    job = job_of(question).job
    return job.shape.positions != "learned" or 2 * job.seq <= job.shape.max_seq


def what_questions(setting: Setting) -> list[Question]:
    """The questions of what if."""
    return list(filter(None, (changed(setting.question, change) for change in CHANGES))) if setting.best else []


def gains(setting: Setting) -> list[Gain]:
    """(The change, tokens per second of the kept layout by the best's now, and of the plan then; None where it
    cannot be or does not fit; the plan then). A kept layout that is equal to the fastest then is that plan."""
    if setting.best is None:
        return []
    results = []
    rate = setting.rate(setting.best)
    for change in CHANGES:
        question = changed(setting.question, change)
        if question is None:
            continue
        same_layout, (best, limit) = kept(question, setting.best), answer(question)
        stays = None
        if isinstance(same_layout, Plan) and same_layout.fits and not same_layout.cannot:
            stays = setting.rate(same_layout) / rate - 1
            best = same_layout if same_layout.seconds <= limit else best
        results.append((change, stays, setting.rate(best) / rate - 1 if best else None, best))
    return results


def what_if(setting: Setting) -> dict:
    """The effect of one change, with the same layout and with the best layout after the change."""
    if setting.best is None:
        return {
            "title": "What if",
            "blocks": [("words", "Nothing fits. See above how many GPUs are needed.")],
        }
    results = gains(setting)
    pictures = [_gains(setting, results, width) for width in (svg.WIDE, svg.NARROW)]
    text = "Change in tokens/s: ○ with this layout, ● with the best layout then, if this one is outside the band."
    return {"title": "What if", "blocks": [("words", text), ("pictures", *pictures)]}


def _gains(setting: Setting, results: list[Gain], width: int) -> str:
    wide = width == svg.WIDE
    row, left, right = 23 if wide else 36, 176.0 if wide else 6.0, 380.0 if wide else width - 6.0
    ends = [gain for _, stays, replanned, _ in results for gain in (stays, replanned) if gain is not None]
    low, high = min(-0.05, *ends), max(0.05, *ends)
    room = 74.0 if wide else 80.0  # for the figures on either side

    def at_x(value: float) -> float:
        return left + room / 2 + (right - left - room - room / 2) * (value - low) / (high - low)

    parts = [svg.line(at_x(0), 2, at_x(0), row * len(results) + 2, "muted")]
    for i, (change, stays, replanned, best) in enumerate(results):
        y = i * row + (16 if wide else 28)
        parts.append(svg.text(0, y if wide else y - 14, change, size=svg.SMALL))
        if replanned is None or best is None:
            parts.append(svg.text(at_x(0) + 8, y, "nothing fits", fill="accent", size=svg.SMALL))
            continue
        parts.append(svg.line(at_x(0), y - 4, at_x(replanned), y - 4, "compute", 2.5))
        if stays is not None and abs(at_x(stays) - at_x(replanned)) > 3:
            parts.append(_dot(at_x(stays), y - 4, hollow=True))
        parts.append(_dot(at_x(replanned), y - 4))
        right_end = max(at_x(0), at_x(replanned), at_x(stays) if stays is not None else 0.0)
        percents = (
            f"{_percent(stays)} → {_percent(replanned)}" if stays is not None and abs(stays - replanned) > 0.005 else ""
        )
        parts.append(svg.text(right_end + 9, y, percents or _percent(replanned), size=svg.SMALLEST, bold=True))
        text = _layout_then(setting.best, best)
        x, anchor = (width - 210.0, "start") if wide else (width - 2.0, "end")
        parts.append(
            svg.text(
                x,
                y if wide else y - 14,
                fitting((text, text.split(", ZeRO")[0]), 210 if wide else 190, svg.SMALLEST),
                anchor=anchor,
                fill="muted",
                size=svg.SMALLEST,
            )
        )
    label = "What if: " + "; ".join(
        f"{name} {_percent(replanned)}" for name, _, replanned, _ in results if replanned is not None
    )
    return svg.figure(width, row * len(results) + 8, "".join(parts), label)


def _layout_then(now: Plan | None, then: Plan) -> str:
    """The best layout after a change, in words."""
    if now is None or cuts_of(then) != cuts_of(now):
        return words.layout(then, dp=False)
    chunks = then.layout.chunks
    more = f", {chunks} chunk{'s' * (chunks > 1)} per stage" if chunks != now.layout.chunks else ""
    return f"the same layout{more}"


def _percent(share: float) -> str:
    return f"{100 * share:+.0f}%".replace("-", "−").replace("+0%", "±0%").replace("−0%", "±0%")


def _dot(x: float, y: float, hollow: bool = False) -> str:
    inside = "paper" if hollow else "compute"
    return svg.circle(x, y, 4.5, inside, "compute", 1.6)
