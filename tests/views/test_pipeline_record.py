"""A reader's run in the widget of `pipeline`: where it ended, or what would have to be set to see it."""

import xml.etree.ElementTree as ET
from dataclasses import asdict, replace

import pytest
from cases import refused
from drawn import SVG, marks, number
from samples import sample

from scaleout import views
from scaleout.draw import svg
from scaleout.views.pipeline.frame import LEFT


def ran(**more):
    """A Record of the lab on four ranks: 1F1B by hand in 1.7 s, 1.65 predicted, and torch's interleaved."""
    label = "seconds per step, {}, 50 ms stages".format
    seen = {label("1F1B, by hand"): 1.7, label("1F1B, torch"): 1.69, label("interleaved 1F1B, v = 2, torch"): 1.5}
    said = {label("1F1B, by hand"): 1.65, label("1F1B, torch"): 1.65, label("interleaved 1F1B, v = 2, torch"): 1.425}
    recipe = {"micro_batches": 8, "stage ms": 50.0, "hop ms": 0.0}
    return asdict(
        replace(sample(), stem="pipeline", device_count=4, measurement=seen, prediction=said, recipe=recipe, **more)
    )


WANTED = {("ranks",): "p = 4", ("hop",): "hop 0", ("backward",): "backward 2", ("schedule",): "interleaved 1F1B",
          ("schedule", "hop"): "1F1B, p = 4, m = 8, hop 0"}  # fmt: skip


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_run_ends_where_it_ended(width):
    own = views.measured("pipeline", ran())
    drawn = views.render("pipeline", {}, width, own)["svg"]
    ring = next(one for one in ET.fromstring(drawn).iter(f"{SVG}circle") if one.get("r") == "7")
    [end] = number(marks(drawn)["finish"], "x1")
    assert (float(ring.get("cx")) - LEFT) / (end - LEFT) == pytest.approx(1.7 / 1.65, abs=0.002)
    assert "your run, by hand: 34 slots, 33 predicted" in drawn and "4 ranks on 2-core x86-64 CPU" in drawn
    looped = views.render("pipeline", {"schedule": "interleaved"}, width, own)["svg"]
    assert "your run, torch: 30 slots, 28.5 predicted" in looped
    for other in (
        {"ranks": 2},
        {"hop": 0.5},
        {"backward": 1.0},
        {"schedule": "zbv"},
        {"schedule": "yours", "hop": 1.0},
    ):
        drawn = views.render("pipeline", other, width, own)["svg"]
        assert "your run: 4 ranks, m = 8, hop 0" in drawn and "your run&#x27;s end" not in drawn
        assert f"to see it, set {WANTED[tuple(other)]}<" in drawn


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize(("times", "drawn"), [(1.5, True), (4, False)])
def test_a_run_that_took_longer_lies_where_it_ended_or_is_said_to_be_off_the_scale(width, times, drawn):
    own = views.measured("pipeline", ran())
    late = own | {"steps": [[*step[:4], times * step[4], step[5]] for step in own["steps"]]}
    picture = views.render("pipeline", {}, width, late)["svg"]
    rings = [one for one in ET.fromstring(picture).iter(f"{SVG}circle") if one.get("r") == "7"]
    found = [one for one in rings if one.get("stroke") == svg.colour("key") and one.get("class") is None]
    assert bool(found) is drawn is ("off this scale" not in picture)
    if drawn:
        [end] = number(marks(picture)["finish"], "x1")
        assert (float(found[0].get("cx")) - LEFT) / (end - LEFT) == pytest.approx(times * 1.7 / 1.65, abs=0.01)


def test_a_record_of_something_else_is_refused():
    refused(lambda: views.measured("pipeline", asdict(sample())), "this is no Record of labs/pipeline.py")
    refused(lambda: views.measured("pipeline", ran() | {"device_count": 1}), "which communicates nothing")
    refused(lambda: views.measured("pipeline", ran() | {"measurement": {}}), "no seconds per step of a schedule")
