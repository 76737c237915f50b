"""Measured points in the widget of `collectives`: the reader's own run and published sweeps, each where its seconds and
its latency put it."""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cases import refused
from drawn import SVG

from scaleout import views
from scaleout.draw import svg
from scaleout.spec import sweeps
from scaleout.views import collectives as view
from scaleout.views.collectives import links as on_links
from scaleout.views.collectives import record as own
from scaleout.words.amounts import took

RECORDS = Path(__file__).parents[2] / "labs" / "results" / "collectives"
PUBLISHED = Path(__file__).parents[1] / "published"


def render(width=svg.WIDE, **params):
    return views.render("collectives", params, width)


def on(params):
    return on_links.Setting.of({**views.defaults("collectives"), **params})


def record(name="cpu-cpu-2"):
    return json.loads((RECORDS / f"{name}.json").read_text())


def circles(drawn):
    key = [one for one in ET.fromstring(drawn).iter(f"{SVG}circle") if one.get("stroke") == svg.colour("key")]
    return [(float(one.get("cx")), float(one.get("cy"))) for one in key]


OWN_LINK = {"link": "own", "ranks": 2, "alpha": 125.0, "rate": 1.4}


@pytest.mark.parametrize(
    ("algorithm", "sweep", "words"), [("ring", "backend", "gloo as a ring"), ("naive", "naive", "naive by hand")]
)
def test_own_points_lie_where_the_latency_of_the_run_puts_them(algorithm, sweep, words):
    found = views.measured("collectives", record())
    assert (found["ranks"], found["backend"]) == (2, "gloo") and {*found["sweeps"]} == {"backend", *own.BY_HAND}
    points = [(a, s) for a, s in found["sweeps"][sweep] if a >= 1e3]
    drawn = views.render("collectives", OWN_LINK | {"algorithm": algorithm}, svg.WIDE, found)["svg"]
    left, top, width, height = 6, 345 + 37 + 15, 588, 54
    for (x, y), (amount, seconds) in zip(circles(drawn), points, strict=True):
        assert x == pytest.approx(left + width * view.band.AXIS.part(amount), abs=0.02)
        share = min(took for _, took in found["sweeps"][sweep]) / seconds  # of the run, whatever the model's latency is
        assert y == pytest.approx(top + height * (1 - share), abs=0.02)
    assert f"your run: {words}, 2 × 2-core x86-64 CPU" in drawn
    slow = found | {"sweeps": {"backend": [[1024.0, 19e-3], [2.0**20, 21e-3], [2.0**30, 1.0]]}}  # on a link of 25 µs
    low, *_, high = (top + height - y for _, y in circles(views.render("collectives", OWN_LINK, svg.WIDE, slow)["svg"]))
    assert low == pytest.approx(height, abs=0.02) and high < 0.05 * height


def test_own_points_have_their_times_and_only_what_ran_there():
    found = views.measured("collectives", record())
    points = found["sweeps"]["backend"]
    drawn = views.render("collectives", OWN_LINK, svg.WIDE, found)["svg"]
    (low, early), (high, late) = ((a, s) for a, s in points if 8e6 < a < 2e7)  # around 10 MB
    assert took(early * (late / early) ** (math.log(1e7 / low) / math.log(high / low))) in drawn
    assert "gloo’s own" in views.render("collectives", OWN_LINK | {"algorithm": "in-network"}, svg.WIDE, found)["svg"]
    elsewhere = views.render("collectives", {"ranks": 2}, svg.WIDE, found)["svg"]
    assert "your run used gloo: choose “my own”" in elsewhere and not circles(elsewhere)
    assert circles(views.render("collectives", {"ranks": 2}, svg.WIDE, found | {"backend": "nccl"})["svg"])


def test_a_run_of_other_ranks_says_so_and_draws_nothing():
    found = views.measured("collectives", record("smoke-cpu-4"))
    for width in (svg.WIDE, svg.NARROW):
        other = views.render("collectives", {"ranks": 8}, width, found)
        assert "set Ranks to 4" in other["svg"] and not circles(other["svg"])
        assert circles(views.render("collectives", {"ranks": 4, "link": "own"}, width, found)["svg"])
        assert other["values"] == render(width)["values"]


@pytest.mark.parametrize(
    "change",
    [
        {"stem": "ddp"},
        {"device_count": 1},
        {"device_count": "two"},
        {"measurement": []},
        {"measurement": {}},
        {"device": None},
        {"measurement": {"gloo all_reduce, 1024 B: seconds, its line": -1.0}},
        {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 1e-3}},
        {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 10**400}},
    ],
)
def test_another_record_is_refused_in_one_line(change):
    refused(lambda: views.measured("collectives", record() | change), "no Record of labs/collectives.py")


def test_published_sweeps_stand_beside_the_ring_that_they_measured():
    named = {8: "8 H100, ring", 32: "4 nodes of 8 H100", 64: "8 nodes of 8 H100"}
    published = {one["name"]: one for one in json.loads((PUBLISHED / "nccl_sweeps.json").read_text())["sweeps"]}
    for ranks, sweep in sweeps.SWEEPS.items():
        assert [list(row) for row in sweep.rows] == published[named[ranks]]["rows"]
        picture = views.render("collectives", {"ranks": ranks})["svg"]
        assert f"measured: {sweep.words} ({sweep.source})" in picture
    eight = views.render("collectives", {"ranks": 8})
    assert eight["svg"].count('r="3.5"') == 13 and ">4.87 ms<" in eight["svg"]
    assert eight["values"]["seconds"] == pytest.approx(4.87e-3, rel=0.02), "prediction beside measurement"
    for other in ({"ranks": 16}, {"ranks": 8, "algorithm": "tree"}, {"ranks": 8, "link": "pcie"}):
        assert "measured:" not in views.render("collectives", other)["svg"]
    assert all("measured" not in one for one in views.question("collectives")["pictures"])


def test_published_points_lie_on_the_curve_where_the_model_is_right():
    """Each at its own seconds, whichever latency the band shows."""
    strip = view.band._strip(345, True, True)
    for protocols in (False, True):
        drawn = ET.fromstring(render(protocols=protocols)["svg"])
        dots = [one for one in drawn.iter(f"{SVG}circle") if one.get("r") == "3.5"]
        shares = own.published(on({}), "ring", protocols).points
        assert len(dots) == len(shares) == 13
        for dot, (size, seconds, share) in zip(dots, shares, strict=True):
            way = on({}).way("ring", size)
            latency = way.cost.latency_seconds if protocols else on({}).way("ring", 1e3).cost.latency_seconds
            assert share == pytest.approx(latency / seconds)
            assert (float(dot.get("cx")), float(dot.get("cy"))) == pytest.approx(
                (strip.x(size), strip.y(min(1.0, share))), abs=0.02
            )


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_no_measured_point_lies_over_the_name_of_the_latency(width):
    points = [[1024.0 * 4**k, 1e-3 * (2 if k % 2 else 1)] for k in range(5)] + [[2.0**30, 1.0]]  # half of it unsteady
    found = {"ranks": 2, "device": "a CPU", "backend": "gloo", "sweeps": {"backend": points}}
    drawn = views.render("collectives", OWN_LINK | {"alpha": 1000.0}, width, found)["svg"]
    assert len(circles(drawn)) == len(points)
    for text in ET.fromstring(drawn).iter(f"{SVG}text"):
        if (text.text or "").startswith(("latency", "half and half")):
            left, low = float(text.get("x")), float(text.get("y"))
            wide = svg.measure(text.text, 12, True)
            assert not any(left - 3 < x < left + wide + 3 and low - 13 < y < low + 5 for x, y in circles(drawn))
