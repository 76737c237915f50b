"""What the sentence of the widget of `memory` says is so: "most" is more than half, and its lever works when tried."""

import html
import re

import pytest
from view_settings import by_chance, controls, values

from scaleout import views
from scaleout.views import memory
from scaleout.views.choices import NODE
from scaleout.views.memory import levers

CHOICES = {name: values(one) for name, one in controls("memory").items()}


# Where each lever is the best one: one that makes it fit, and one that cannot.
BEST = (
    ("gpus", {}),
    ("zero", {}),
    ("checkpointing", {"model": "gpt2-medium", "batch": 12}),
    ("seq", {"model": "llama-2-13b", "seq": "32768", "tp": "4"}),
    ("seq", {"model": "llama-2-70b", "batch": 56, "seq": "16384"}),
    ("batch", {"model": "llama-3-405b", "batch": 56}),
    ("gpus", {"model": "llama-3-405b", "checkpointing": "full", "batch": 4, "device": "rtx-4090", "seq": "512"}),
    ("batch", {"model": "gpt2-xl", "optimizer": "adamw-8bit", "batch": 40, "device": "rtx-4090"}),
)
GRID = [*(params for _, params in BEST), *by_chance("memory", 120, 3)]


def shown(params, **change):
    return views.render("memory", {**params, **change})["values"]


def full(params):
    return {name: value for name, value in {**views.defaults("memory"), **params}.items() if name != "guess"}


def setting(params):
    return memory.Setting.of(full(params))


def test_the_largest_part_is_the_largest_layer_of_the_picture_and_most_is_more_than_half():
    """Copies of weights are a layer of their own, and no part of the weights that the sentence speaks of."""
    words = set()
    for params in GRID:
        result = views.render("memory", {**params, "moment": memory.FULLEST})
        titles = re.findall(r"<title>([^<:]+): [^<]+</title></rect>", result["svg"])
        layers = result["values"]["moments_gb"][result["values"]["moment"]]  # as the tank stacks them
        parts = zip(layers.values(), map(html.unescape, titles), strict=True)
        share, largest = max(parts, key=lambda part: round(part[0], 6))  # of two alike the one beneath
        share /= sum(layers.values())
        start = "Most of it is" if share > 0.5 else "The largest part is"
        assert f"{start} {largest} ({share:.0%})" in result["sentence"], params
        words.add(start)
    assert len(words) == 2, "both are met"


def test_the_lever_lowers_the_peak_when_it_is_tried():
    for params in GRID:
        found = memory.lever(setting(params))
        if found is None:
            assert "Try" not in views.render("memory", params)["sentence"]
            continue
        now, then = shown(params), shown(params, **found.change)
        assert then["peak_gb"] <= (1 - levers.LEAST_SAVING) * now["peak_gb"], (params, found)
        assert then["peak_gb"] * 1e9 == pytest.approx(found.after.peak_bytes), (params, found)
        assert then["fits"] == found.after.fits, (params, found)
        assert f"Try **{found.words}**: " in views.render("memory", params)["sentence"]
        assert "Try" not in views.render("memory", params, advise=False)["sentence"]  # a page asks for it by itself


@pytest.mark.parametrize(("name", "params"), BEST)
def test_each_lever_is_the_best_one_somewhere(name, params):
    assert name in memory.lever(setting(params)).change


def test_a_number_of_gpus_sequences_or_tokens_is_the_mildest_that_fits():
    """One place back on the control does not fit; what does not fit at all is at the control's end."""
    tried = set()
    for params in GRID:
        found = memory.lever(setting(params))
        numbers = ("batch", "gpus", "seq") if found and not shown(params)["fits"] else ()
        for name in numbers:
            if found.change.get(name, NODE) == NODE:  # a node is where splitting starts
                continue
            places = [int(value) for value in CHOICES[name]][:: 1 if name == "gpus" else -1]
            at = places.index(found.change[name])
            if found.after.fits:
                assert not shown(params, **{**found.change, name: places[at - 1]})["fits"], (params, found)
            else:
                assert at == len(places) - 1, (params, found)
            tried.add(name)
    assert tried == {"batch", "gpus", "seq"}


def test_on_one_gpu_nobody_is_told_to_split():
    """ZeRO splits over the GPUs that there are: on one it changes nothing."""
    alone, split = shown({}), shown({}, zero="1")
    assert alone["peak_gb"] == split["peak_gb"]
    found = memory.lever(setting({}))
    assert found.change["gpus"] > 1 and found.after.fits


def test_where_no_lever_is_named_none_of_the_kind_does_much():
    silent = [params for params in GRID if memory.lever(setting(params)) is None]
    for params in silent:
        peak = shown(params)["peak_gb"]
        for change in ({"checkpointing": "full"}, {"optimizer": "adamw-8bit"}, {"zero": "3"}, {"batch": 1}):
            if change.get("optimizer") and full(params)["optimizer"] != "adamw":
                continue
            assert shown(params, **change)["peak_gb"] > (1 - levers.LEAST_SAVING) * peak, (params, change)
