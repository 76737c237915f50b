"""The picture of `fsdp`: moments in time, areas and lanes to scale, and a unit whose parts move."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from cases import over
from fsdp_views import GIB, SVG, bars, entire, paths, setting

from scaleout import views
from scaleout.draw import fsdp_hill, fsdp_life, fsdp_names, fsdp_units, svg
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
    body = fsdp_hill.area(fsdp_hill.columns(fsdp_hill.placed(account.moments, line), plane), plane, GIB)
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
    scale = picture.across(svg.WIDE) / result["values"]["step_seconds"]
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


# --- names where things lie ------------------------------------------------------------------------------------------


@over(
    params=[
        {},
        {"wrap": "model"},
        {"checkpointing": "full", "moment": 4},
        {"model": "llama-3-405b", "ranks": "1"},
        {"model": "gpt2", "reshard": "no"},
        {"offload": True, "over": "node", "ranks": "64"},
    ],
    width=(svg.WIDE, svg.NARROW),
)
def test_what_is_held_at_the_peak_is_named_beside_it_in_the_order_of_the_stack(params, width):
    result = views.render("fsdp", params, width)
    values, account = result["values"], setting(**params).account
    places, right = picture.PLACES[width], picture.PLACES[width].left + picture.across(width) + picture.GAP
    words = [one for one in ET.fromstring(result["svg"]).iter(f"{SVG}text") if float(one.get("x")) > right]
    lines = [one for one in words if one.get("fill") == svg.colour("ink")]
    held = [name for name in fsdp_hill.STACK if values[f"{name}_gib"] > 0.002 * values["peak_gib"]]
    names = picture._names(width) | {"logits, temporaries": picture._scratch(account.peak, width)}
    name_of_unit, unit_gib = ("GiB", 1) if values["peak_gib"] < 3000 else ("TiB", 1024)
    asked = [f"peak {picture._amount(values['peak_gib'] / unit_gib)} {name_of_unit}"]
    asked += [f"{names[name]} {picture._amount(values[f'{name}_gib'] / unit_gib)}" for name in reversed(held)]
    at = {one.text: float(one.get("y")) for one in lines}
    assert [one for one in at if one in asked] == asked
    heights = [at[words] for words in asked]
    assert all(below - above >= places.font for above, below in pairwise(heights))


@over(width=(svg.WIDE, svg.NARROW), ranks=("1", "16"))
def test_a_bar_is_the_fullest_moment_on_the_axis_of_the_hill(width, ranks):
    one = setting(ranks=ranks)
    plane = Plane(0, 0, 400, 100, Axis(0, 1), Axis(0, one.account.peak_bytes / GIB))
    sizes = {name: sum(one.account.peak[kind] for kind in k) / GIB for name, (*_, k) in fsdp_hill.STACK.items()}
    body, middles = fsdp_names.bar(sizes, 410, 10, plane)
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" fill="var', body)]
    assert heights == pytest.approx([100 * n * GIB / one.account.peak_bytes for n in sizes.values() if n], abs=0.01)
    assert [*middles] == [name for name in sizes if sizes[name]] and sum(heights) == pytest.approx(100, abs=0.05)


def test_a_layer_is_named_within_it_only_where_it_is_thick_enough():
    """Ten steps of 20 pixels: a layer of 50 of 100 pixels over four of them, one of 10 pixels everywhere."""
    thick = [500 if 3 <= i < 7 else 0 for i in range(10)]
    steps = [[100, *([100] * 5), 100 + thick[i], 100 + thick[i]] for i in range(10)]
    plane = Plane(0, 0, 200, 100, Axis(0, 1), Axis(0, 1000))
    found = fsdp_names.within(steps, plane, 1, {"optimizer": "thin", "activations": "thick"}, 12)
    assert list(found) == ["activations"]
    x, y = map(float, re.search(r'x="([\d.]+)" y="([\d.]+)"', found["activations"]).groups())
    assert 60 < x < 140 and y - 4 == pytest.approx(100 - (10 + 60) / 2)
    assert not fsdp_names.within(steps, plane, 1, {"activations": "words wider than the four steps"}, 12)
    [(x1, y1, x2, y2)] = re.findall(
        r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"',
        fsdp_names.poles(steps, plane, 1, {"activations": "high"}, 12),
    )
    assert x1 == x2 and 60 < float(x1) < 140 and float(y1) == 65 and float(y2) < 40, "from its middle to above the hill"


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_it_opens_at_rest(width):
    """Nothing flies, nothing has been sent, and no two cells of the ranks lie over each other."""
    result = views.render("fsdp", {}, width)
    assert result["values"]["moment"] == "rest" and result["values"]["sent_units"] == 0
    body = fsdp_life.draw(setting().unit, moments.SHOWN, 0, 0, 500, 15)
    cells = [tuple(map(float, one)) for one in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", body)]
    outlines, owned = cells[:32], cells[32:]
    assert len(owned) == 4 and set(owned) <= set(outlines) and len(set(outlines)) == 32
    for i, (x, y, wide, high) in enumerate(outlines):
        assert all(x + wide <= a or a + w <= x or y + high <= b or b + h <= y for a, b, w, h in outlines[:i])
    assert picture.locked(setting(), moments.SHOWN, width).count(f'fill="{svg.colour("c5")}" stroke') == 12, "at home"


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
    scale = picture.across(svg.WIDE) / seen[0]["values"]["step_seconds"]
    assert x == pytest.approx([picture.PLACES[svg.WIDE].left + scale * one for one in at], abs=0.01)


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
    assert values["moment_said"] == "still unsharded: no second all-gather"
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
    assert [x for x, _ in found["unsharded"]] == pytest.approx([start * scale for start, _ in spans], abs=0.06)
    assert [w for _, w in found["unsharded"]] == pytest.approx([(b - a) * scale for a, b in spans], abs=0.06)
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
