"""The picture of the scaling explorer: areas are shares of a GPU's time, the batch and the wire are to scale."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from scaleout import views
from scaleout.collectives import nccl
from scaleout.draw import hatch, svg
from scaleout.spec import topology
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing.starts import starts
from scaleout.views import capstone
from scaleout.views.capstone import speedup
from scaleout.views.controls import play, stops
from scaleout.words.amounts import quantity

SVG = "{http://www.w3.org/2000/svg}"
SETTING = speedup.Setting("llama-3-8b", "h100-sxm", 4096, 512, "node-ib", "full", 512, 4, "none", "compiled")


def marks(params=None, width=svg.WIDE):
    """By name."""
    root = ET.fromstring(views.render("capstone", params or {}, width)["svg"])
    return {one.get("data-mark"): one for one in root.iter() if one.get("data-mark")}


def size(mark):
    return float(mark.get("width"))


@pytest.mark.parametrize("kind", ["full", "hybrid", "ddp"])
def test_the_four_shares_are_a_gpus_whole_time(kind):
    found = speedup.curves(replace(SETTING, sharding=kind, world=2048))
    for sizes in (found.strong, found.weak):
        for n, one in sizes.items():
            works, copies, waits, idle = one.shares
            assert works + copies + waits + idle == pytest.approx(1) and min(one.shares) > -1e-9, n
            assert works == pytest.approx(one.efficiency), "none passes one GPU on 512 sequences"
    assert found.strong[2048].shares[3] == pytest.approx(0.75), "512 sequences for 2,048"
    assert found.weak[2048].shares[3] == 0


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_batch_is_cut_and_then_a_box_is_empty(width):
    full, part = marks({"world": 512}, width), marks({"world": 2048}, width)
    assert "empty" not in full and size(part["batch"]) == pytest.approx(size(full["batch"]) / 4, abs=0.02)
    assert size(part["empty"]) == pytest.approx(3 * size(part["batch"]), abs=0.1)
    assert "empty" not in marks({"world": 4096, "batch": 4096}, width)


def test_bytes_stay_and_starts_grow():
    few, many = (views.render("capstone", {"world": n, "batch": n})["values"] for n in (512, 2048))
    assert many["weak_byte_seconds"] == pytest.approx(few["weak_byte_seconds"], rel=0.05)
    assert many["weak_start_seconds"] > 3 * few["weak_start_seconds"]
    assert many["weak_compute_seconds"] == pytest.approx(few["weak_compute_seconds"], rel=0.01)
    bars = {n: marks({"world": n, "batch": n}) for n in (512, 2048)}
    for n, values in ((512, few), (2048, many)):
        scale = size(bars[n]["computes"]) / values["weak_compute_seconds"]
        for mark, name in (("bytes", "byte"), ("starts", "start")):
            assert size(bars[n][mark]) == pytest.approx(scale * values[f"weak_{name}_seconds"], abs=0.05)
    near = views.render("capstone", {"world": 2048, "batch": 2048, "sharding": "hybrid"})["values"]
    assert near["weak_start_seconds"] < 0.2 * many["weak_start_seconds"], "the gathers' rings end at the node"


def test_starts_are_those_of_each_ring():
    """A block is gathered twice and reduced once; embedding and head, of the root, are gathered once."""
    llama, cluster = PRESETS["llama-3-8b"], topology.cluster(64, 8)
    root = 2 * llama.vocab * llama.hidden + llama.hidden
    block = (total_parameters(llama) - root) / llama.layers

    def first_byte(collective, elements, size):
        return nccl.price(collective, size * elements, cluster).cost.latency_seconds

    gathers = 64 * first_byte("all_gather", block, 2) + 2 * first_byte("all_gather", root / 2, 2)
    reduces = 32 * first_byte("reduce_scatter", block, 4) + 2 * first_byte("reduce_scatter", root / 2, 4)
    assert starts(SETTING.job_of(512, 1, 1)) == pytest.approx(gathers + reduces, rel=0.04)
    assert views.render("capstone", {"world": 1})["values"]["weak_start_seconds"] == 0


def test_the_bars_have_one_reference():
    result = views.render("capstone", {"world": 512})
    charts = result["values"]["lower_chart"]
    alone = quantity(charts["strong"][0][1])
    assert result["svg"].count(f"one GPU alone {alone}") == 2 and charts["weak"][0][1] > charts["strong"][0][1]
    tall = {name: float(one.get("height")) for name, one in marks().items() if name.endswith(("chosen", " 4096"))}
    assert tall["strong 4096"] / tall["strong chosen"] == pytest.approx(
        charts["strong"][-1][1] / dict(charts["strong"])[512], rel=0.01
    )


def test_doublings_move_the_marks_and_add_none():
    """The areas keep their corners, so that the page can move them."""
    names = [
        {name for name in marks({"world": 2**k}) if "works" in name or "point" in name or "now" in name}
        for k in range(13)
    ]
    assert all(one == names[0] for one in names) and len(names[0]) == 6
    corners = {len(marks({"world": 2**k})["weak works"].get("points").split()) for k in range(13)}
    assert corners == {12}


def test_gpus_are_played_in_doublings():
    world = next(one for one in capstone.CONTROLS if one.name == "world")
    assert world.kind == "play" and world.spec()["stops"] == [2**k for k in range(13)]
    assert stops(play("n", "N", 1, 1, 1000, log=True)) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


# --- stripes between two edges --------------------------------------------------------------------------------------


def test_stripes_stay_between_their_edges_and_meet_at_corners():
    upper, lower = [(0.0, 0.0), (40.0, 0.0), (80.0, 50.0)], [60.0, 60.0, 60.0]
    drawn = hatch.band(upper, lower, "accent")
    pieces = [[float(x) for x in one] for one in re.findall(r"M([\d.]+) ([\d.]+)l([\d.]+) -([\d.]+)", drawn)]
    assert len(pieces) > 10
    for x, y, right, up in pieces:
        assert right == up, "they rise by 45 degrees"
        assert abs((x + y) / hatch.PITCH - round((x + y) / hatch.PITCH)) < 0.02
        for at in (x, x + right):
            high = 0 if at <= 40 else (at - 40) * 50 / 40
            assert high - 0.3 <= x + y - at <= 60.3, "to a tenth of a pixel"
    assert hatch.band([(0.0, 5.0), (9.0, 5.0)], [5.0, 5.0], "accent") == ""
    one = hatch.band([(0.0, 0.0), (30.0, 0.0)], [30.0, 30.0], "accent").count("M")
    cut = hatch.band([(0.0, 0.0), (10.0, 0.0), (30.0, 0.0)], [30.0] * 3, "accent").count("M")
    assert one == cut, "a corner cuts no stripe in two"
