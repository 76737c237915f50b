"""The widget of `pipeline` shows what the models say: blocks where they ran, lives as long as they are, columns that
keep the work, and a schedule of the reader's own that is timed, or named where it never ends."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from cases import over
from drawn import SVG, marks, number

from scaleout import views
from scaleout.draw import pipeline_held, pipeline_lanes, svg
from scaleout.spec.pipeline import SCHEDULES
from scaleout.timing.pipeline import Costs, step
from scaleout.views import pipeline
from scaleout.views.pipeline import levers, picture
from scaleout.views.pipeline.frame import LEFT, Frame


def shown(width=svg.WIDE, **params):
    result = views.render("pipeline", params, width, advise=False)
    return result, marks(result["svg"])


def setting(**params):
    return pipeline.Setting.of(views.clean("pipeline", params))


# --- what the models say -----------------------------------------------------------------------------------------


@over(p=(2, 4, 7), m=(8, 13), backward=(1.0, 2.5))
def test_gpipe_and_1f1b_take_as_long_and_hold_unlike(p, m, backward):
    """(m + p - 1) pieces, m activations against p - r (arXiv 2104.04473, section 2.2)."""
    for schedule in ("gpipe", "1f1b"):
        values = views.render("pipeline", {"schedule": schedule, "ranks": p, "micro_batches": m, "backward": backward})
        values = values["values"]
        assert values["slots"] == pytest.approx((m + p - 1) * (1 + backward)) == values["gpipe_slots"]
        assert values["bubble"] == pytest.approx((p - 1) / (m + p - 1))
        assert values["held"] == [m] * p if schedule == "gpipe" else [min(m, p - rank) for rank in range(p)]


def test_a_hop_costs_1f1b_more_than_gpipe():
    found = {schedule: shown(schedule=schedule, hop=0.5)[0]["values"]["slots"] for schedule in SCHEDULES}
    assert (found["interleaved"], found["gpipe"], found["1f1b"]) == (35.5, 36, 41)
    alone = shown(hop=0.5, blocking=True)[0]
    assert alone["values"]["slots"] > 41 and shown(blocking=True)[0]["levers"]["blocking"]["off"]


def test_slips_are_what_they_say():
    (work, words), *_, (half, said), (more, _) = views.question("pipeline")["slips"]
    assert work == 8 * 3 and "no rank were ever idle" in words and more == work + 4 * 3
    assert "half" in said and half == shown(schedule="interleaved")[0]["values"]["slots"] == (24 + 33) / 2


def test_what_a_schedule_cannot_have_becomes_the_nearest():
    result, _ = shown(schedule="dualpipev", micro_batches=3)
    assert (result["values"]["micro_batches"], result["values"]["chunks"]) == (8, 2)
    assert "8 micro-batches (nearest possible to 3)" in result["sentence"]
    assert result["levers"]["chunks"] == {"off": "DualPipeV has two chunks per rank"}
    assert result["levers"]["lit"] == {"hi": 7}


@over(given=({}, {"hop": 0.5}, {"schedule": "gpipe", "hop": 1.0}, {"schedule": "zb1", "ranks": 6}, {"head": 1.0}))
def test_the_lever_works_when_tried(given):
    now = setting(**given)
    found = levers.best(now)
    words, tried = found.words, found.after
    params = {"schedule": tried.schedule, "micro_batches": tried.requested, "chunks": tried.wanted}
    values = views.render("pipeline", {**given, **params})["values"]
    assert values["bubble"] == pytest.approx(tried.bubble) and values["bubble"] <= now.bubble - levers.WORTH
    assert f"**{words}**: {values['bubble']:.0%} idle" in pipeline.advice(views.clean("pipeline", given))


# --- the picture -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_blocks_and_lives_lie_where_they_ran(width):
    result, found = shown(width, hop=0.25, head=0.5)
    costs = Costs((1, 1, 1, 1.5), (1, 1, 1, 1.5), (1, 1, 1, 1.5), 0.25)
    [ground] = number(found["ground"], "width")
    scale = ground / result["values"]["slots"]
    for rank, row in enumerate(step("1f1b", 4, 8, 1, costs).runs):
        begun = {}
        for run in row:
            kind, _, micro = run.action
            x, wide = number(found[f"{kind}{micro}r{rank}c0"], "x", "width")
            assert x == pytest.approx(LEFT + run.start * scale, abs=0.1)
            assert wide == pytest.approx((run.end - run.start) * scale, abs=0.1)
            begun[micro] = min(run.start, begun.get(micro, run.start))
            if kind == "B":
                [life] = number(found[f"v{micro}r{rank}c0"], "width")
                assert life == pytest.approx((run.end - begun[micro]) * scale - 1, abs=0.1)


def test_blocks_keep_their_names_from_schedule_to_schedule():
    blocks = re.compile(r"[FBW]\d+r\dc\d")
    one, two, split = (
        {name for name in shown(schedule=schedule, chunks=1)[1] if blocks.fullmatch(name)}
        for schedule in ("gpipe", "1f1b", "zb1")
    )
    assert one == two and len(one) == 2 * 4 * 8
    assert split - one == {name.replace("B", "W") for name in one if name[0] == "B"}


def test_a_micro_batch_is_lit_with_its_hops_and_can_be_pressed():
    result, found = shown(lit=3, hop=0.5)
    assert sum(name.startswith("hop") for name in found) == result["values"]["hops"] == 2 * 3
    pressed = [one for one in ET.fromstring(result["svg"]).iter() if one.get("data-press")]
    assert [one.get("data-press") for one in pressed] == [*(f"lit={micro}" for micro in range(8)), "schedule=yours"]
    for hop in ("hopF0", "hopF1", "hopF2"):
        x1, x2 = number(found[hop], "x1", "x2")
        assert x2 - x1 == pytest.approx(0.5 * number(found["ground"], "width")[0] / result["values"]["slots"], abs=0.1)


def test_the_critical_path_fills_the_step():
    result, found = shown(path=True, hop=0.5)
    path = timeline_of(hop=0.5).critical
    assert result["values"]["path"] == len(path)
    frames = next(one for one in ET.fromstring(result["svg"]).iter(f"{SVG}path") if one.get("stroke-width") == "2")
    wide = [float(one) + 2 for one in re.findall(r"[\d.]+h([\d.]+)v", frames.get("d"))]
    scale = number(found["ground"], "width")[0] / result["values"]["slots"]
    assert sum(wide) / scale == pytest.approx(sum(one.end - one.start for one in path), abs=0.1)
    crossed = sum(a.rank != b.rank for a, b in pairwise(path))
    assert sum(one.end - one.start for one in path) + 0.5 * crossed == result["values"]["slots"]
    assert "off" in shown(path=True, ranks=64, micro_batches=64)[0]["levers"]["path"]


def timeline_of(**params):
    return setting(**params).timeline


@over(schedule=list(SCHEDULES))
def test_what_is_held_over_time_is_at_most_what_the_memory_model_says(schedule):
    now = setting(schedule=schedule, micro_batches=12, hop=0.25)
    for rank in range(4):
        lane = now.lane(rank)
        *held, left = pipeline_held.in_flight(lane, [*lane.strands["F"].starts, now.slots])
        assert max(held) / now.chunks == now.peaks[rank] and left == 0


def test_time_runs_to_a_moment():
    result, found = shown(moment=12)
    values = result["values"]
    assert values["moment_slots"] == values["slots"] / 2
    # 16.5 slots: forward 0 to 3, backward 0 (10 to 12), 4, backward 1 (13 to 15), 5 and half a slot of backward 2
    assert values["done_slots"] == 4 + 2 + 1 + 2 + 1 + 0.5
    x1, end = number(found["head0"], "x1")[0], number(found["finish"], "x1")[0]
    assert x1 - LEFT == pytest.approx((end - LEFT) / 2, abs=0.1)
    assert found["held0"].text == "4" and found["held3"].text == "1"


@pytest.mark.parametrize(("schedule", "m"), [("1f1b", 256), ("gpipe", 200), ("zbv", 128), ("interleaved", 96)])
def test_what_is_many_is_drawn_coarser_and_its_work_is_kept(schedule, m):
    """Columns have the area of what is computed; the first rank and the last are drawn."""
    now = setting(schedule=schedule, ranks=64, micro_batches=m)
    assert now.ranks == (32 if schedule == "zbv" else 64)
    frame = Frame(now, pipeline.Look.of(views.clean("pipeline", {})), svg.WIDE)
    lanes = [now.lane(rank) for rank in frame.ranks]
    assert frame.ranks[0] == 0 and frame.ranks[-1] == now.ranks - 1 and len(frame.ranks) == 8
    assert pipeline_lanes.detail(frame.rows, lanes) == "shares"
    drawn = pipeline_lanes.shares(frame.rows, lanes, now.slots, picture._column(frame))
    deepest = re.findall(r'd="([^"]+)"', drawn)[0]  # the last kind, down to which all others reach
    area = sum(map(covered, re.findall(r"M[^M]+z", deepest)))
    work = sum(now.summary.work[rank] for rank in frame.ranks)
    assert area == pytest.approx(work * frame.rows.scale * frame.rows.bar, rel=0.02)
    assert len(views.render("pipeline", {"schedule": schedule, "ranks": 64, "micro_batches": m})["svg"]) < 40_000


def covered(path):
    """The area between a path of steps and the height that it begins at."""
    x, base = map(float, re.match(r"M([\d.]+) ([\d.]+)", path).groups())
    area, depth = 0.0, 0.0
    for to, y in re.findall(r"H([\d.]+)V([\d.]+)", path):
        area, x, depth = area + (float(to) - x) * depth, float(to), float(y) - base
    return area


# --- beside the picture -------------------------------------------------------------------------------------------


def test_the_readout_says_what_is_taken_instead():
    assert shown(schedule="dualpipev", micro_batches=3)[0]["levers"]["micro_batches"] == {"takes": 8}
    assert "micro_batches" not in shown(schedule="dualpipev", micro_batches=8)[0]["levers"]
