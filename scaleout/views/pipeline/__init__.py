"""A pipeline's schedule: what each rank computes when, where it is idle, and what it has in flight."""

from __future__ import annotations

from math import fsum

from scaleout.spec.pipeline import SCHEDULES
from scaleout.views import arrange, guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.pipeline import levers, picture, record, words, yours
from scaleout.views.pipeline.setting import (
    CHUNKS,
    MOMENTS,
    MOST_MICRO_BATCHES,
    RANKS,
    YOURS,
    Look,
    Setting,
    reach,
    shown,
)

TITLE = "A pipeline's schedule"

CONTROLS = (
    guess("Four ranks, eight micro-batches; a backward takes as long as two forwards. The picture shows GPipe's step: "
          "all forwards first. **1F1B** starts its backwards as early as it can. When does **its** step end?", "slots",
          "slots", lo=0, hi=36, step=0.5),
    play("moment", "Time", MOMENTS, 0, MOMENTS),
    select("schedule", "Schedule", "1f1b", [*((key, schedule.label) for key, schedule in SCHEDULES.items()),
                                            (YOURS, "Your own order: move the blocks")]),
    slider("micro_batches", "Micro-batches per step (m)", 8, 1, MOST_MICRO_BATCHES, log=True),
    slider("hop", "Time of a hop between ranks", 0.0, 0.0, 2.0, step=0.25, unit="slots"),
    slider("ranks", "Ranks (p)", 4, 2, RANKS, log=True),
    *more(
        slider("chunks", "Chunks per rank (v)", 2, 1, CHUNKS),
        slider("head", "Head, added to the last forward", 0.0, 0.0, 1.0, step=0.25, unit="slots"),
        slider("backward", "Time of a backward, in forwards", 2.0, 1.0, 3.0, step=0.5),
        toggle("blocking", "A rank is idle while it sends", False),
        slider("lit", "Highlighted micro-batch", 0, 0, MOST_MICRO_BATCHES - 1),
        toggle("path", "Show the critical path", False),
        arrange("order", "Your order", yours.opening()),
    ),
)  # fmt: skip


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The timeline above, the micro-batches in flight below on the same axis, and the bubble in the sentence."""
    setting, look = Setting.of(params), Look.of(params)
    result = _result(setting)
    values = {**result["values"], **_seen(setting, look)}
    return {**result, "svg": picture.picture(setting, look, values, width, run), "values": values}


measured = record.measured
advice = Setting.asked(levers.advice)


def locked(params: dict, width: int) -> str:
    """The same work in GPipe's order."""
    return picture.locked(Setting.of(params).gpipe, Look.of(params), width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Ends that likely mistakes give, of the opening setting."""
    setting = Setting.of(params)
    return words.slips(setting, _result(setting)["values"])


@kept  # for both widths
def _result(setting: Setting) -> dict:
    """What is the same at every width, whatever is lit."""
    values = _values(setting)
    return {
        "sentence": words.sentence(setting, values),
        "values": values,
        "law": words.law(setting, values),
        "levers": _levers(setting),
    }


def _levers(setting: Setting) -> dict:
    """Controls that change nothing now, and why; and how far the others go."""
    micro_batches = setting.micro_batches
    levers: dict = {"lit": {"hi": micro_batches - 1} if micro_batches > 1 else {"off": "there is only one micro-batch"}}
    if setting.requested != micro_batches:
        levers["micro_batches"] = {"takes": micro_batches}
    if not setting.hop or micro_batches == 1:
        levers["blocking"] = {
            "off": "with one micro-batch a rank is idle anyway" if setting.hop else "a hop takes no time now"
        }
    if not setting.framed:
        levers["path"] = {"off": "the step never ends" if setting.waits else "there are too many actions to frame"}
    if setting.schedule == YOURS:
        levers |= {
            name: {"off": f"your own order has {yours.RANKS} ranks and {yours.MICRO_BATCHES} micro-batches"}
            for name in ("ranks", "micro_batches")
        }
        return levers | {"chunks": {"off": "your own order has one stage per rank"}}
    levers["order"] = {"off": "only with your own order"}
    least, highest = SCHEDULES[setting.schedule].chunks
    if least == highest:
        levers["chunks"] = {"off": f"{setting.label} has {'one stage' if least == 1 else 'two chunks'} per rank"}
    elif setting.finest < CHUNKS:
        levers["chunks"] = {"hi": setting.finest}
    if reach(setting.schedule) < RANKS:
        levers["ranks"] = {"hi": reach(setting.schedule)}
    return levers


def _values(setting: Setting) -> dict:
    return {
        "slots": setting.slots,
        "bubble": setting.bubble,
        "bubble_percent": 100 * setting.bubble,
        "work_slots": fsum(setting.summary.work),
        "held": list(setting.peaks),
        "gpipe_slots": setting.gpipe.slots,
        "hops": setting.hops,
        "micro_batches": setting.micro_batches,
        "chunks": setting.chunks,
        "waits": [str(wait) for wait in setting.waits],
        **(_goal_values(setting) if setting.schedule == YOURS else {}),
    }


def _goal_values(setting: Setting) -> dict:
    """What the reader's own order is measured by."""
    return {
        "rivals": {rival.schedule: [rival.slots, *rival.peaks] for rival in setting.rivals},
        "goal": [setting.goal.slots, setting.goal.peaks[0]],
        "reached": setting.reached,
    }


def _seen(setting: Setting, look: Look) -> dict:
    """Values that depend on what of the picture is lit or shown."""
    lit, moment = min(look.lit, setting.micro_batches - 1), look.part * setting.slots
    lanes = [setting.lane(rank) for rank in shown(setting.ranks)]
    spans = [span[2:] for lane in lanes for span in lane.of(lit)]
    done_slots = setting.piece * setting.micro_batches
    if look.part < 1:
        done_slots = fsum(strand.upto([moment])[0] for strand in lanes[0].strands.values())
    return {
        "lit": lit,
        "lit_slots": max(end for _, end in spans) - min(start for start, _ in spans),
        "moment_slots": moment,
        "done_slots": done_slots,
        "path": len(setting.timeline.critical) if look.path and setting.framed else 0,
    }
