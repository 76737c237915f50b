"""A reader's own Record in the views ddp, fsdp and capstone: what is read of it, where it lies, what is refused."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cases import refused

from scaleout import views
from scaleout.draw import svg
from scaleout.exercises.capstone.exit_check import exit_check
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.views import capstone
from scaleout.views.ddp import gauge

RESULTS = Path(__file__).parents[2] / "labs" / "results"
FILES = {"ddp": "ddp/cpu-cpu-2", "fsdp": "fsdp/cpu-cpu-2", "capstone": "scaling/smoke-cpu-strong-2-fsdp"}
SVG = "{http://www.w3.org/2000/svg}"


def record(stem):
    return json.loads((RESULTS / f"{FILES[stem]}.json").read_text())


def rings(picture):
    """Where the reader's own points are."""
    every = [one for one in ET.fromstring(picture).iter(f"{SVG}circle") if one.get("r") == "7"]
    return [(float(one.get("cx")), float(one.get("cy"))) for one in every if one.get("fill") == "none"]


def height(picture, label, x):
    """Where a horizontal line of the grid is: that beside a label left of x."""
    texts = [one for one in ET.fromstring(picture).iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    return next(float(one.get("y")) - 4 for one in texts if one.text == label and float(one.get("x")) < x)


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_run_of_ddp_lies_at_its_share_of_what_ranks_alone_would_do(width):
    found, seen = views.measured("ddp", record("ddp")), record("ddp")["measurement"]
    share = 1 - seen["exposed seconds per step, torch DDP"] / seen["seconds per step, torch DDP"]
    result = views.render("ddp", {}, width, found)
    squares = [
        one for one in ET.fromstring(result["svg"]).iter(f"{SVG}rect") if one.get("data-mark", "")[:5] == "crew1"
    ]
    assert sum(float(one.get("width")) for one in squares) / gauge.SIDE / 2 == pytest.approx(share, abs=0.01)
    assert f"your run: {share:.0%}, 2 ranks on 2-core x86-64 CPU" in result["svg"]
    without = views.render("ddp", {}, width)
    assert result["values"] == without["values"] and "your run" not in without["svg"]


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize("kind", ["strong-2-fsdp", "strong-4-ddp", "weak-2-fsdp"])
def test_a_run_of_the_capstone_has_the_efficiency_of_the_lab_and_the_exit_check(kind, width):
    """Against the rate on one process; alone it has none, whatever its Record says of its own ranks."""
    files = [RESULTS / "scaling" / f"smoke-cpu-{name}.json" for name in (f"{kind.partition('-')[0]}-1-one", kind)]
    one, run = (json.loads(path.read_text()) for path in files)
    efficiency = exit_check(files).rows[-1][-1]
    found = views.measured("capstone", run)
    typed = one["measurement"]["tokens per second"]
    beside = views.render("capstone", {"own_1": typed}, width, found)["svg"]
    places = sorted(rings(beside))  # of the typed run, and of the Record
    low, high = (height(beside, label, places[0][0]) for label in ("0%", "100%"))
    assert [(low - y) / (low - high) for _, y in places] == pytest.approx([1, efficiency], abs=0.01)
    assert capstone.record.point(found, {1: typed})[2].startswith(f"your run: efficiency {efficiency:.0%}, ")
    alone = views.render("capstone", {}, width, found)["svg"]
    assert not rings(alone) and "your run: " in alone


def test_one_run_has_no_efficiency_until_a_smaller_one_is_known():
    run = {"ranks": 4, "device": "a GPU", "rate": 3000.0}
    words = "your run: 3,000 tokens/s, 4 ranks on a GPU"
    assert capstone.record.point(run, {}) == capstone.record.point(run, {8: 9.0}) == (4, None, words)
    assert capstone.record.point(run, {1: 1000.0, 8: 9.0})[:2] == (4, pytest.approx(0.75))
    assert capstone.record.point({**run, "ranks": 1}, {}) == (1, 1.0, "your run: efficiency 100%, 1 rank on a GPU")


def test_a_peak_is_drawn_only_beside_its_own_model():
    found = views.measured("fsdp", record("fsdp"))
    assert (found["peak_bytes"], found["predicted_bytes"]) == (90_160_536, 90_160_128)
    other = views.render("fsdp", {}, svg.WIDE, found)["svg"]
    assert "your run: 86.0 MiB at its peak, 86.0 MiB predicted" in other
    assert "another model" in other and not rings(other)
    same = {**found, "ranks": 16, "parameters": total_parameters(PRESETS["llama-3-8b"]), "peak_bytes": 40 * 2**30}
    picture = views.render("fsdp", {}, svg.WIDE, same)["svg"]
    [(x, y)] = rings(picture)
    low, high = (height(picture, label, x) for label in ("0", "100"))
    assert (low - y) / (low - high) == pytest.approx(0.4, abs=0.01) and "another model" not in picture


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_peak_beyond_the_axis_stretches_it_and_one_far_beyond_is_said_only(width):
    found = views.measured("fsdp", record("fsdp"))
    same = {**found, "ranks": 16, "parameters": total_parameters(PRESETS["llama-3-8b"])}
    high = views.render("fsdp", {}, width, {**same, "peak_bytes": 150 * 2**30})["svg"]
    [(x, y)] = rings(high)
    low, top = (height(high, label, x) for label in ("0", "100"))
    assert (low - y) / (low - top) == pytest.approx(1.5, abs=0.02) and "off this scale" not in high
    far = views.render("fsdp", {}, width, {**same, "peak_bytes": 900 * 2**30})["svg"]
    assert not rings(far) and "off this scale" in far


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_only_what_is_drawn_has_a_ring_in_the_key(width):
    """The key's ring is of radius 4, a point's of 7."""
    run = {"ranks": 4, "device": "a GPU", "rate": 3000.0}
    for params, count in (({}, 0), ({"own_1": 1000.0}, 2)):  # of the rate typed and of the run
        drawn = views.render("capstone", params, width, run)["svg"]
        assert drawn.count('r="4" fill="none"') == count == len(rings(drawn))
    found = views.measured("fsdp", record("fsdp"))
    assert 'r="4" fill="none"' not in views.render("fsdp", {}, width, found)["svg"]


@pytest.mark.parametrize("stem", FILES)
def test_other_files_are_refused_in_one_line(stem):
    good = record(stem)
    for bad in (
        {},
        {"stem": None},
        {"stem": [1]},
        {**good, "stem": "hang"},
        {**good, "device_count": "2"},
        {**good, "device": 3},
        {**good, "measurement": []},
        {**good, "measurement": {}, "tokens_per_second": -1, "prediction": None},
        {**good, "measurement": dict.fromkeys(good["measurement"], float("nan")), "tokens_per_second": "fast"},
    ):
        refused(lambda bad=bad: views.measured(stem, bad), "Record")
    assert views.measured(stem, {**good, "device_count": 10**6}) == {**views.measured(stem, good), "ranks": 10**6}


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize("stem", FILES)
def test_long_names_are_cut(stem, width):
    found = {**views.measured(stem, {**record(stem), "device": "W" * 900}), "ranks": 1000}
    picture = views.render(stem, {}, width, found)["svg"]
    words = re.findall(r">([^<]*W[^<]*)<", picture)
    assert any(one.endswith("…") for one in words)
    assert float(ET.fromstring(picture).get("viewBox").split()[3]) <= {svg.WIDE: 490, svg.NARROW: 400}[width]
