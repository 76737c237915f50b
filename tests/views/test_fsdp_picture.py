"""The picture of `fsdp`: moments in time, areas and lanes to scale, and a unit whose parts move."""

import re
from itertools import pairwise

import pytest
from cases import over
from fsdp_views import GIB, SVG, bars, entire, paths, setting

from scaleout import views
from scaleout.draw import fsdp_hill, fsdp_life, fsdp_units, svg
from scaleout.draw.plot import Axis, Plane
from scaleout.timing.fsdp import LANES
from scaleout.views import fsdp
from scaleout.views.fsdp import moments, picture

# --- moments in time, areas and lanes to scale -------------------------------------------------------------------


@over(prefetch=(0, 1, 3), wrap=list(fsdp.WRAPS), model=("gpt2", "llama-2-7b"))
def test_every_moment_has_its_place_in_time(model, wrap, prefetch):
    one = setting(model=model, wrap=wrap, prefetch=prefetch, link="ethernet-100g")
    line, account = one.line, one.account
    rows = fsdp_hill.placed(account.moments, line)
    assert sorted(map(id, account.moments)) == sorted(id(moment) for *_, moment in rows), "each once"
    assert all(0 <= start <= end <= line.seconds * (1 + 1e-12) for start, end, _ in rows)
    events = entire(one.job).events
    half = max(event.end for event in events if event.name.startswith("forward"))
    for start, end, moment in rows:
        if moment.phase == "forward":
            assert end <= half + 1e-9
        if moment.phase == "backward":
            assert start >= half - 1e-9
    for phase in ("forward", "backward"):
        starts = [start for start, _, moment in rows if moment.phase == phase and moment.activity == "compute"]
        assert starts == sorted(starts), "in the order of the program"
    if wrap == "block":  # a block's memory is shown while it computes
        spans = {e.name.replace("root", ""): (e.start, e.end) for e in events if e.lane == "compute"}
        for start, end, moment in rows:
            if moment.unit.startswith("blocks.") and moment.activity == "compute":
                assert (start, end) == pytest.approx(spans[f"{moment.phase} {moment.unit}"])


def test_the_area_reaches_the_peak_and_stacks_the_kinds():
    one = setting(model="gpt2-xl", batch=4)
    account, line = one.account, one.line
    plane = Plane(0, 0, 400, 100, Axis(0, line.seconds), Axis(0, account.peak_bytes / GIB))
    body = fsdp_hill.area(fsdp_hill.placed(account.moments, line), plane, GIB)
    tops = {}
    for title, d, _ in paths(f'<svg xmlns="{SVG[1:-1]}">{body}</svg>'):
        tops[title] = [float(v) for v in re.findall(r"V([\d.]+)", d)][:-1]
    assert list(tops) == list(fsdp_hill.STACK)[::-1]
    assert min(tops["logits, temporaries"]) == 0, "the highest step is the peak"
    static = account.states["optimizer"]
    assert tops["optimizer"] == [pytest.approx(100 * (1 - static / account.peak_bytes), abs=0.051)]
    for upper, lower in zip(list(tops)[:-1], list(tops)[1:], strict=True):
        assert min(tops[upper]) <= min(tops[lower])


@over(
    params=[
        {},
        {"model": "gpt2", "link": "ethernet-100g"},
        {"wrap": "layer", "prefetch": 0},
        {"ranks": "64", "over": "node", "offload": True},
        {"model": "llama-3-405b", "ranks": "1024"},
    ]
)
def test_lanes_are_to_scale(params):
    result = views.render("fsdp", params)
    scale = (svg.WIDE - picture.LEFT - 8) / result["values"]["step_seconds"]
    wide = {}
    for title, d, _ in paths(result["svg"]):
        wide[title] = wide.get(title, 0) + sum(w for _, w in bars(d))
    values, hair = result["values"], 0.02 * fsdp_units.GROUPS
    assert wide["forward"] + wide["backward"] == pytest.approx(values["compute_seconds"] * scale, abs=2 * hair)
    waits = wide["exposed communication: compute waits"]
    assert waits == pytest.approx(values["exposed_seconds"] * scale, abs=hair)
    events = entire(setting(**params).job).events
    names = {"gather": ("gather", "gather again"), "reduce": ("reduce",)}
    for lane in LANES[1:]:
        seconds = sum(event.end - event.start for event in events if event.lane == lane)
        shown = sum(wide.get(title, 0) for title in names.get(lane, (lane,)))
        assert shown == pytest.approx(seconds * scale, abs=2 * hair), lane
        assert (seconds > 0) == (shown > 0) == (f">{fsdp_units.NAMES[lane]}<" in result["svg"])


# --- the life of a unit ---------------------------------------------------------------------------------------------


def test_the_cursor_goes_through_a_unit_s_life():
    """Where block 15 of Llama 3 8B is at each moment, and what its GPUs have sent of it."""
    seen = [views.render("fsdp", {"moment": moment}) for moment in range(moments.LAST + 1)]
    at = [one["values"]["moment_seconds"] for one in seen]
    assert at == sorted(at) and at[0] == 0 and at[-1] < seen[0]["values"]["step_seconds"]
    events = {(e.name, e.lane): (e.start, e.end) for e in entire(setting().job).events}
    for moment, name in ((1, "gather"), (2, "forward"), (4, "gather again"), (5, "backward"), (6, "reduce-scatter")):
        start, end = next(span for (what, _), span in events.items() if what == f"{name} blocks.15")
        assert at[moment] == pytest.approx((start + end) / 2), name
    assert [one["values"]["sent_units"] * 16 / 15 for one in seen] == pytest.approx([0, 0.5, 1, 1, 1.5, 2, 2.5, 3, 3])
    assert {one["values"]["followed"] for one in seen} == {"block 15"}
    x = [float(re.search(r'<line x1="([\d.]+)"[^>]*data-mark="now"', one["svg"])[1]) for one in seen]
    scale = (svg.WIDE - picture.LEFT - 8) / seen[0]["values"]["step_seconds"]
    assert x == pytest.approx([picture.LEFT + scale * one for one in at], abs=0.01)


def test_what_is_held_at_a_moment_is_under_the_peak_and_follows_the_activations():
    seen = [views.render("fsdp", {"moment": moment})["values"] for moment in range(moments.LAST + 1)]
    held = [one["moment_gib"] for one in seen]
    assert max(held) <= seen[0]["peak_gib"] and held[:4] == sorted(held[:4]) and held[4:8] == sorted(held[4:8])[::-1]
    loss = setting().account.peak_moment
    assert loss.bytes / GIB == seen[0]["peak_gib"]


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_parts_keep_their_names_while_they_fly(width):
    """So that the front end moves them: three parts of each of four ranks leave, and the same three arrive."""

    def names(moment, letter):
        body = views.render("fsdp", {"moment": moment}, width)["svg"]
        marks = re.findall(rf'data-mark="({letter}\d-[a-z]+\d)"', body)
        assert len(marks) == len(set(marks)) in (0, 12)
        return set(marks)

    for letter, begins in (("a", 1), ("b", 4), ("c", 6)):
        found = [names(moment, letter) for moment in range(moments.LAST + 1)]
        assert found[begins - 1] == found[begins] == found[begins + 1] != set()
        assert [moment for moment, one in enumerate(found) if one] == [begins - 1, begins, begins + 1]


@over(params=[{"reshard": "no"}, {"wrap": "model"}])
def test_a_unit_that_is_kept_is_gathered_once(params):
    values = views.render("fsdp", {**params, "moment": 4})["values"]
    assert values["moment_said"] == "still whole: no second gather"
    assert views.render("fsdp", {**params, "moment": 8})["values"]["sent_units"] == pytest.approx(2 * 15 / 16)


def test_whole_units_are_where_the_step_has_them():
    """The light strip of a unit is as long as it is whole, in a picture of every unit of GPT-2."""
    one = setting(model="gpt2", link="ethernet-100g")
    rows, count = one.lives
    assert count == len(rows) == 13
    body = fsdp_units.whole(fsdp_units.Strip(0, 0, 400, 130, one.line.seconds), rows)
    found = {title: bars(d) for title, d, _ in paths(f'<svg xmlns="{SVG[1:-1]}">{body}</svg>')}
    scale = 400 / one.line.seconds
    spans = [span for life in rows for span in life.gathered]
    assert [x for x, _ in found["whole"]] == pytest.approx([start * scale for start, _ in spans], abs=0.06)
    assert [w for _, w in found["whole"]] == pytest.approx([(b - a) * scale for a, b in spans], abs=0.06)
    assert len(spans) == 25, "the root's is one, a block's are two"


@over(ranks=(1, 2, 3, 4), kept=(True, False))
def test_a_rank_sends_all_parts_but_its_own(ranks, kept):
    unit = fsdp_life.Unit(ranks, kept)
    body, _ = fsdp_life.slots(unit, moments.LAST, 300, 0)
    filled = [len(re.findall("M", d)) for d in re.findall(r'd="([^"]*)" fill="var', body)]
    assert filled == ([unit.messages * (ranks - 1)] if ranks > 1 else [])
    assert unit.messages == (0 if ranks == 1 else 2 if kept else 3)


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 1000])
def test_grouped_marks_keep_their_sum(count):
    rows = [(2.0 * i, 2.0 * i + 0.5 + (i % 3) * 0.1) for i in range(count)]
    found = fsdp_units.grouped(rows)
    assert sum(b - a for a, b in found) == pytest.approx(sum(b - a for a, b in rows))
    assert len(found) <= fsdp_units.GROUPS and (count > fsdp_units.GROUPS or len(found) == count)
    assert all(a[1] <= b[0] for a, b in pairwise(found))
