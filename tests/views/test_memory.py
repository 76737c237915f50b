"""The widget of `memory` shows what the account says: in its values, its layers, its law, and before it is asked."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from cases import refused
from drawn import marks
from view_settings import by_chance, controls, few

from scaleout import views
from scaleout.draw import kinds as stack
from scaleout.draw import svg
from scaleout.memory import allocator
from scaleout.memory.accounts import KINDS, Layout, Recipe, account
from scaleout.memory.tape import MOMENTS
from scaleout.spec.devices import DEVICES
from scaleout.spec.models import MODELS
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.views import memory
from scaleout.views.choices import NAMES
from scaleout.views.memory import words
from scaleout.words.amounts import amount

CHANCE = by_chance("memory", 40, 9)
RESULTS = sorted((Path(__file__).parents[2] / "labs" / "results" / "memory").glob("*.json"))


def heights(picture, start):
    """{layer: height} of the rectangles of the tank, or of a moment of the strip."""
    found = {name.split(" ", 1)[1]: one for name, one in marks(picture).items() if name.startswith(f"{start} ")}
    return {layer: float(one.get("height")) for layer, one in found.items()}


def test_values_are_the_account():
    values = views.render("memory", {"model": "llama-3-8b", "batch": 2, "seq": 4096, "zero": 1, "gpus": 8})["values"]
    held = account(PRESETS["llama-3-8b"], 2, 4096, Recipe(buckets="beside"), Layout(dp=8, zero=1))
    assert values["peak_gb"] == held.peak_bytes / 1e9
    assert values["peak_gib"] == held.peak_bytes / 2**30
    assert sum(values[f"{kind}_gb"] for kind in KINDS) == pytest.approx(values["peak_gb"], rel=1e-12)
    assert values["of_device"] == held.peak_bytes / DEVICES["h100-sxm"].memory_bytes
    assert values["fits"] is allocator.fits(held.peak_bytes, DEVICES["h100-sxm"].memory_bytes)
    assert list(values["moments_gb"]) == ["rest", *held.moments]
    for moment, kinds in {"rest": held.rest, **held.moments}.items():
        shown = values["moments_gb"][moment]
        assert sum(shown.values()) == pytest.approx(sum(kinds.values()) / 1e9)
        assert shown["weights"] + shown["copies"] == pytest.approx(kinds["weights"] / 1e9)
    assert values["moments_gb"]["rest"]["gradients"] * 1e9 == total_parameters(PRESETS["llama-3-8b"]) * 4, "buckets"


@pytest.mark.parametrize("params", [{}, {"moment": 4}, *CHANCE[:12]], ids=str)
def test_layers_are_to_scale(params):
    """Of the tank at its moment, and of every moment in the strip, at both widths: pixels for a GB are the same."""
    for width in (svg.WIDE, svg.NARROW):
        result = views.render("memory", params, width)
        drawn, held = marks(result["svg"]), result["values"]["moments_gb"]
        zero, (top, high) = (
            [float(one) for one in stop.split(":")]
            for stop in re.search('data-stops="([^"]+)"', result["svg"])[1].split(" ")
        )
        rim = zero[1] - DEVICES[params.get("device", "h100-sxm")].memory_bytes / 1e9 * (zero[1] - high) / top
        assert float(drawn["rim"].get("y1")) == pytest.approx(rim, abs=0.01)
        for name, kinds in held.items():
            places = [words.MOMENTS[name][1], *["tank"] * (name == result["values"]["moment"])]
            for found in (heights(result["svg"], place) for place in places):
                assert set(found) == set(stack.ORDER)
                for layer, height in found.items():
                    assert height == pytest.approx(kinds[layer] * (zero[1] - high) / top, abs=0.01)


def test_what_is_over_the_rim_is_hatched():
    over = float(marks(views.render("memory", {})["svg"])["over"].get("height"))
    layers = sum(heights(views.render("memory", {})["svg"], "tank").values())
    assert over == pytest.approx(layers * (1 - DEVICES["h100-sxm"].memory_bytes / 1e9 / 134.768), abs=0.1)
    assert float(marks(views.render("memory", {"moment": 0})["svg"])["over"].get("height")) == 0


def test_the_ruler_is_twenty_bytes_and_lights_up():
    """At the scale of the tank: its layers of states and the ruler end at the same heights."""
    last, at_rest = (marks(views.render("memory", {"moment": n})["svg"]) for n in (6, 0))
    long = {
        name: float(one.get("y1")) - float(one.get("y2")) for name, one in last.items() if name[:4] in ("step", "lit ")
    }
    assert len(long) == 8 and all(long[f"lit {k}"] == long[f"step {k}"] for k in ("optimizer", "weights", "gradients"))
    tank = heights(views.render("memory", {})["svg"], "tank")
    for kind in ("optimizer", "weights", "temporaries"):
        assert long[f"lit {kind}"] == pytest.approx(tank[kind] - 1.5, abs=0.03)
    values = views.render("memory", {})["values"]
    assert sum(values["bytes_each"].values()) == 20 and values["parameters"] == total_parameters(PRESETS["llama-2-7b"])
    for layer, there in (("optimizer", True), ("weights", True), ("gradients", False), ("temporaries", False)):
        lit = at_rest[f"lit {layer}"]
        assert (float(lit.get("y1")) - float(lit.get("y2")) > 2) is there


def test_every_kind_has_a_colour_and_every_preset_a_name():
    assert set(stack.COLOURS) == {*KINDS, "copies"} == {*stack.ORDER}
    drawn = {(stack.COLOURS[kind], stack.PALE.get(kind, 1.0)) for kind in stack.ORDER}
    assert len(drawn) == len(stack.ORDER)
    assert {moment: short for moment, (_, short, _) in words.MOMENTS.items()} == stack.MOMENTS
    assert set(NAMES) == {*PRESETS, *MODELS}


# --- controls --------------------------------------------------------------------------------------------------------


def test_a_step_moves_what_it_shows():
    """The same things in every moment, so that they glide; and under every lever."""
    shown = [views.render("memory", {"moment": moment}) for moment in range(7)]
    assert [one["values"]["moment"] for one in shown] == ["rest", *MOMENTS]
    bars = [
        {name for name, one in marks(result["svg"]).items() if one.tag.endswith("rect") and name[:4] != "foot"}
        for result in (*shown, *(views.render("memory", params) for params in CHANCE[:12]))
    ]
    assert all(names == bars[0] for names in bars) and len(bars[0]) == 8 * 8 + 1
    assert len({marks(one["svg"])["now"].get("x") for one in shown}) == 7
    assert all(one["levers"]["moment"] == {"hi": memory.FULLEST} for one in shown) and memory.FULLEST == 7


def test_the_tank_shows_the_moment_that_the_sentence_is_of_until_it_is_moved():
    """The peak moves with the setting: to the loss where tokens fill most, and the tank with it."""
    seen = set()
    for params in ({}, {"batch": 2}, {"batch": 8}, *(one | {"moment": memory.FULLEST} for one in CHANCE)):
        result = views.render("memory", params)
        values, giga = result["values"], 2**30 if params.get("gib") else 10**9
        assert values["moment"] == values["peak_moment"] and values["moment_gb"] == values["peak_gb"], params
        name, _, where = words.MOMENTS[values["moment"]]
        said = amount(values["peak_gb"] * 1e9, giga)
        assert f">{name}: {said}</text>" in result["svg"] and f"**{said}** {where}. " in result["sentence"].replace(
            " per GPU", ""
        )
        seen.add(values["moment"])
    assert {"optimizer", "loss"} <= seen


def test_every_control_changes_the_values_or_is_off():
    off = set()
    for params in ({}, {"model": "gpt2-xl"}, {"checkpointing": "selective", "seq": "128"}, *CHANCE):
        now = views.render("memory", params)
        for name, control in controls("memory").items():
            why = now["levers"].get(name, {}).get("off")
            others = [value for value in few(control) if value != {**views.defaults("memory"), **params}[name]]
            moves = any(views.render("memory", {**params, name: value})["values"] != now["values"] for value in others)
            assert moves is (why is None), (name, params)
            assert why is None or len(why) < 45
            off |= {name} if why else set()
    assert {"zero", "tp", "attention"} <= off


def test_a_model_takes_what_it_can_have_of_a_setting_and_says_so():
    asked = views.render("memory", {"model": "gpt2", "seq": 131072})
    assert asked["values"] == views.render("memory", {"model": "gpt2", "seq": 1024})["values"]
    assert "(1,024 positions)" in asked["sentence"]
    for model, degree, said in (("gpt2-xl", 1, "25 heads unsplit"), ("gpt2-large", 4, "20 heads in 4 parts")):
        asked = views.render("memory", {"model": model, "tp": 8, "seq": 1024})
        assert asked["values"] == views.render("memory", {"model": model, "tp": degree, "seq": 1024})["values"]
        assert said in asked["sentence"]


# --- words -----------------------------------------------------------------------------------------------------------


def test_sentence_says_fit_and_lever():
    small = views.render("memory", {"model": "gpt2", "seq": 1024})
    assert small["values"]["fits"] and "It fits on one H100" in small["sentence"]
    large = views.render("memory", {})
    over = "It does not fit on one H100 SXM 80 GB: 1.84 times the usable 73.4 GB"
    assert not large["values"]["fits"] and over in large["sentence"]
    assert "The largest part is Adam's averages (40%). Try **ZeRO-" in large["sentence"]


def test_the_law_of_the_question():
    assert views.render("memory", {})["law"] == [
        "weights 4, Adam 8, gradients 4, scratch of the update 4:",
        "20 bytes × 6.74 billion = 134.8 GB",
        "the textbook's 16 bytes leave out the scratch, which only the update needs",
    ]


@pytest.mark.parametrize("given", [{}, {"batch": 1, "seq": "128", "adapter": "none"}], ids=str)
def test_the_law_is_true_as_printed(given):
    units = {"GB": 1e9, "TB": 1e12, "PB": 1e15, "MB": 1e6, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "MiB": 2**20}
    kinds = Counter()
    for params in CHANCE:
        result = views.render("memory", {**params, **given})
        before, formula, _ = result["law"]
        left, total, unit = re.fullmatch(r"(.+) = ([\d.,]+) (\w+)", formula).groups()
        places = len(total.split(".")[1])
        peak = result["values"]["peak_gb"] * 1e9 / units[unit]
        assert float(total.replace(",", "")) == pytest.approx(peak, abs=0.6 * 10**-places)
        if "×" in left:
            each, many, power = re.fullmatch(r"([\d.]+) bytes × ([\d.]+) (\w+)", left).groups()
            product = float(each) * float(many) * {"million": 1e6, "billion": 1e9, "trillion": 1e12}[power]
            assert f"{product / units[unit]:,.{places}f}" == total
            parts = [float(one) for one in re.findall(r" ([\d.]+)(?=[,:])", before)]
            assert sum(parts) == pytest.approx(float(each), rel=0.01)
        else:
            assert f"{sum(float(one.replace(',', '')) for one in left.split(' + ')):,.{places}f}" == total
        kinds["×" in left] += 1
    assert kinds[bool(given)] > 5


# --- the question ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_locked_picture_does_not_hold_the_answer(width):
    """Nothing that makes the answer changes it; the scale is the guess's, and stays when the answer comes."""
    asked = views.defaults("memory")
    empty = memory.locked(asked, width)
    for other in ({"optimizer": "sgd"}, {"batch": 64}, {"precision": "fp32"}, {"model": "gpt2"}, {"moment": 0}):
        assert memory.locked({**asked, **other}, width) == empty, other
    assert not re.search("[>= ]13[45]|=.tank |=.rest ", empty) and empty.count("live-mark") == 1
    stops = [re.search('data-stops="([^"]+)"', one)[1] for one in (empty, views.render("memory", {}, width)["svg"])]
    assert stops[0] == stops[1] and stops[0].split(" ")[1].startswith("160:")


def test_slips_are_what_they_say():
    many = total_parameters(PRESETS["llama-2-7b"]) / 1e9
    found = {words.split(",")[0]: value for value, words in memory.slips(views.defaults("memory"))}
    bytes_each = {words: value / many for words, value in found.items()}
    assert bytes_each == pytest.approx(
        {
            "the weights alone": bytes_each["the weights alone"],
            "weights and gradients": 8,
            "weights and Adam's averages: what stays between two steps": 12,
            "16 bytes per parameter": 16,
            "16 bytes per parameter and the activations": 16 + 13.38 / many,
            "the answer in GiB": 20 / 1.073741824,
        },
        rel=1e-3,
    )
    assert [value / many for value, _ in memory.slips(views.defaults("memory"))][:2] == [2, 4]


# --- a reader's own run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_run_is_a_ring_on_the_ruler(path):
    record = json.loads(path.read_text())
    own = views.measured("memory", record)
    ranks = record["device_count"]
    assert own["bytes_each"] == pytest.approx(20 + 4 * (ranks > 1), rel=0.01), "two ranks have DDP's buckets as well"
    result = views.render("memory", {"gpus": ranks}, svg.WIDE, own)
    drawn = marks(result["svg"])
    ruler = min(float(one.get("y2")) for name, one in drawn.items() if name.startswith("lit "))
    assert float(drawn["own"].get("cy")) == pytest.approx(ruler, abs=2.5)
    assert f"your run: {own['bytes_each']:.3g} bytes per parameter at its update, as in this setting" in result["svg"]
    assert record["device"] in result["svg"] and "your run" not in views.render("memory", {})["svg"]
    other = {"gpus": 1024, "zero": "3", "model": "llama-3-405b"}
    far = views.render("memory", other, svg.WIDE, own)["svg"]
    assert "off this scale" in far and "own" not in marks(far)
    assert "another recipe" in views.render("memory", {"optimizer": "sgd"}, svg.NARROW, own)["svg"]
    for width, most in ((svg.WIDE, 490), (svg.NARROW, 400)):
        assert float(ET.fromstring(views.render("memory", {}, width, own)["svg"]).get("viewBox").split()[3]) <= most


def test_other_records_are_refused_in_one_line():
    record = json.loads(RESULTS[0].read_text())
    refused(lambda: views.measured("memory", {**record, "stem": "ddp"}), "no Record of labs/memory.py")
    for broken in (
        {"measurement": {}},
        {"measurement": {"peak bytes": -1}},
        {"model": {"layers": "x"}},
        {"device": 3},
        {"prediction": {"peak bytes": float("nan")}},
        {"recipe": []},
        {"model": None},
        {"prediction": None},
        {"model": {**record["model"], "ff": 10**400}},
    ):
        refused(lambda broken=broken: views.measured("memory", {**record, **broken}), "run the lab again with --save")
