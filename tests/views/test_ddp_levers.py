"""What the sentence of the widget of `ddp` says is so: its cause is the largest, its lever works when it is tried."""

import re
import xml.etree.ElementTree as ET

import pytest
from cases import over
from view_settings import by_chance, controls, values

from scaleout import views
from scaleout.draw import lanes
from scaleout.views import ddp
from scaleout.views.ddp import levers, words

CHOICES = {name: values(one) for name, one in controls("ddp").items()}
LEVERS = ("overlap", "no_sync", "bucket", "compression", "accumulation", "link")
CLOSE = 0.01  # by so much a neighbour of the advised value may be better


# Where each lever is the best one.
BEST = {
    "overlap": {"overlap": False},
    "no_sync": {"accumulation": 7, "no_sync": False},
    "bucket": {"compression": "powersgd", "ranks": 512, "bucket": 16},
    "compression": {"batch": 2},
    "accumulation": {"link": "ethernet-10g", "compression": "bf16", "bucket": 5000},
    "link": {"compression": "powersgd", "model": "gpt2-medium", "bucket": 10_000},
}
GRID = [{}, {"bucket": 1, "ranks": 512}, *BEST.values(), *by_chance("ddp", 90, 6)]


def setting(params):
    return ddp.Setting.of({**views.defaults("ddp"), **params})


def gives(params, **change):
    return setting({**params, **change}).efficiency


def test_the_lever_adds_two_points_when_it_is_tried():
    for params in GRID:
        found = ddp.lever(setting(params))
        if found is None:
            continue
        then = views.render("ddp", {**params, **found.change})["values"]["efficiency"]
        assert then >= gives(params) + levers.WORTH, params
        assert then == pytest.approx(found.after.efficiency, rel=1e-9), params
        result = views.render("ddp", params)
        said = f"Try **{found.words}**: {found.after.efficiency:.0%} " in result["sentence"]
        assert said == result["values"]["states_fit"]


@pytest.mark.parametrize("name", BEST)
def test_each_lever_is_the_best_one_somewhere(name):
    assert name in ddp.lever(setting(BEST[name])).change


def test_no_neighbour_of_an_advised_value_is_better():
    """On the controls that have an order, and among links; bf16 is named before PowerSGD, whose arithmetic the model
    leaves out, so that their figures do not compare."""
    for params in GRID:
        found = ddp.lever(setting(params))
        for name, value in found.change.items() if found else ():
            every = CHOICES[name]
            at = every.index(value)
            beside = every[max(0, at - 1) : at + 2]
            near = {"compression": [value], "bucket": every[::3], "link": every}.get(name, beside)
            best = max(gives(params, **{**found.change, name: other}) for other in near)
            assert best <= found.after.efficiency * (1 + CLOSE), (params, found)


def test_where_no_lever_is_named_none_adds_two_points():
    silent = [params for params in GRID if setting(params).ranks > 1 and ddp.lever(setting(params)) is None][:8]
    assert len(silent) == 8
    for params in silent:
        now = gives(params)
        result = views.render("ddp", params)
        assert ("No single change here adds two points" in result["sentence"]) == result["values"]["states_fit"]
        for name in LEVERS:
            best = max(gives(params, **{name: value}) for value in CHOICES[name])
            assert best < now + levers.WORTH + CLOSE, (params, name)


def test_the_cause_is_the_largest_part():
    said = {"bytes": 0, "starts": 0}
    for params in GRID:
        result = views.render("ddp", params)
        parts = {name: result["values"][f"{name[:-1]}_seconds"] for name in said}
        sent = result["values"]["communication_seconds"]
        assert min(parts.values()) >= 0 and sum(parts.values()) == pytest.approx(sent)
        if not sent:
            continue
        name, share = words.cause(result["values"])
        assert share == pytest.approx(max(parts.values()) / sent) and share >= 0.5
        assert parts[name] == max(parts.values())
        said[name] += 1
    assert min(said.values()) > 5


def test_bytes_and_starts_are_those_of_the_wire():
    """A message of one byte is all start; one of many gigabytes is bytes."""
    small = views.render("ddp", {"model": "gpt2", "bucket": 1, "ranks": 512, "compression": "powersgd"})["values"]
    large = views.render("ddp", {"model": "llama-2-13b", "bucket": 10_000, "link": "ethernet-10g"})["values"]
    assert small["start_seconds"] > 0.8 * small["communication_seconds"]
    assert large["byte_seconds"] > 0.99 * large["communication_seconds"]


@over(params=[{}, {"bucket": 1}, {"bucket": 80, "model": "gpt2"}, *GRID[2:22]])
def test_the_picture_says_how_many_buckets_a_block_stands_for(params):
    result = views.render("ddp", params)
    if not result["values"]["communication_seconds"]:
        return
    count = result["values"]["buckets"]
    text = next(
        one.text
        for one in ET.fromstring(result["svg"]).iter("{http://www.w3.org/2000/svg}text")
        if one.text.startswith("communication:")
    )
    passes = 1 if setting(params).no_sync else setting(params).accumulation
    group = lanes.groups(count, passes)
    blocks, sizes = len(group), sorted(set(map(len, group)))
    if blocks == count:
        assert re.search(rf"all-reduce of {count:,} buckets?, ", text) and "blocks" not in text
    else:
        each = " or ".join(map(str, sizes))
        assert f"{count:,} buckets as {blocks} block{'s' if blocks > 1 else ''} of {each}" in text
    titles = re.findall(r"<title>all-reduce of buckets? (\d+)(?: to (\d+))?</title>", result["svg"])
    drawn = [(int(b or a) - int(a) + 1) for a, b in titles]
    assert len(drawn) <= blocks * passes
    if len(drawn) == blocks * passes:
        assert sum(drawn) == count * passes
