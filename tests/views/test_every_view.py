"""What holds of every view: at each control's values alone and at settings by chance it draws, and fits its frame."""

import json
import math
import re
import xml.etree.ElementTree as ET
from math import ceil

import budget_views
import finetune_views
import pytest
from kernels_views import kernels
from view_settings import by_chance, controls, grid, values

from scaleout import views
from scaleout.draw import svg
from scaleout.memory.accounts import KINDS
from scaleout.views.choices import NAMES
from scaleout.views.fsdp.levers import EXPOSED

MIXED = {
    "memory": 40,
    "collectives": 60,
    "ddp": 40,
    "fsdp": 20,
    "capstone": 30,
    "front": 0,
    "pipeline": 40,
    "tensor": 40,
    "zero": 40,
    "recompute": 40,
    "precision": 60,
    "mesh": 40,
    "planner": 4,
    "bottlenecks": 60,
    "architecture": 60,
    "kernels": 80,
    "budget": 60,
    "finetune": 20,
}  # settings by chance
NAMELESS = {
    "architecture",
    "bottlenecks",
    "budget",
    "collectives",
    "front",
    "kernels",
    "pipeline",
    "precision",
}  # views that are of no model


def memory(params, values, result):
    assert bool(re.search(r"\d [KMGTP]iB", result["sentence"])) is params["gib"]
    assert len(result["svg"]) < 25_000
    assert sum(values[f"{kind}_gb"] for kind in KINDS) == pytest.approx(values["peak_gb"], rel=1e-12)


def of_collectives(params, values, result):
    assert values["seconds"] > 0 and 0 <= values["sent_so_far_gb"] <= values["sent_gb"] * (1 + 1e-9)
    assert result["svg"].count('data-mark="card-') == min(params["ranks"], 16) + (params["algorithm"] == "in-network")
    assert len(result["svg"]) < 45_000 and result["levers"]["step"]["hi"] == values["steps"]


def parts_of_a_step(values):
    assert 0 <= values["exposed_seconds"] <= values["communication_seconds"] * (1 + 1e-12)
    found = values["compute_seconds"] + values["exposed_seconds"] + values["update_seconds"]
    found += values.get("other_seconds", 0.0)
    assert values["step_seconds"] == pytest.approx(found)


def ddp(params, values, result):
    parts_of_a_step(values)
    assert len(result["svg"]) < 28_500  # stripes in both lanes, of eight passes
    assert 0 < values["efficiency"] <= 1 + 1e-12
    assert 0 <= values["pile_gb"] <= values["pile_most_gb"] * (1 + 1e-12) <= values["message_gb"] * (1 + 2e-12)


def fsdp(params, values, result):
    assert 0 <= values["exposed_seconds"] <= values["communication_seconds"] * (1 + 1e-12)
    known = values["compute_seconds"] + values["exposed_seconds"] + values["update_seconds"]
    assert values["step_seconds"] == pytest.approx(known + values["host_seconds"])
    assert len(result["svg"]) < 28_000 and "this GPU" in result["svg"]
    assert 0 < values["moment_gib"] <= values["peak_gib"] and 0 <= values["sent_units"] < 3
    assert values["fits"] == (values["peak_gib"] <= values["usable_gib"])
    assert values["healthy"] == (values["waiting_percent"] <= 100 * EXPOSED)
    said = {
        "healthy": "at healthy throughput",
        "merely fits": "It merely fits",
        "does not fit": "It does not fit.",
        "may fit": "It may fit, in what",
    }
    assert [words for words in said.values() if words in result["sentence"]] == [said[values["verdict"]]]


def capstone(params, values, result):
    for kind in ("strong", "weak"):
        assert 0 < values[f"{kind}_mfu"] < (0.8 if params["device"].startswith("rtx") else 0.75)  # boost clocks
        assert 0 <= values[f"{kind}_waits"] <= values[f"{kind}_exposed"] < 1 and 0 <= values[f"{kind}_idle"] < 1
    assert len(result["svg"]) < 25_000 and values["weak_idle"] == 0
    assert 0 < values["strong_speed_up"] <= 1.2 * params["world"]
    assert values["sequences_each"] >= ceil(params["batch"] / params["world"])


def pipeline(params, values, result):
    assert 0 <= values["bubble"] <= 1 and len(result["svg"]) < 45_000
    if not values["waits"]:
        assert values["slots"] * (1 - values["bubble"]) * len(values["held"]) == pytest.approx(values["work_slots"])
        assert 0 < values["held"][0] <= max(values["held"]) <= values["micro_batches"]
    assert 0 <= values["done_slots"] <= values["moment_slots"] * (1 + 1e-9)


def tensor(params, values, result):
    assert values["exposed_seconds"] <= values["seconds"] and values["sent_so_far_mb"] <= values["sent_mb"] * (1 + 1e-9)
    assert len(result["svg"]) < 40_000 and all(words in result["svg"] for words in values["troubles"].values())
    assert values["legal"] is not bool(values["troubles"])
    assert 1 / params["tp"] <= values["flops_share"] * (1 + 1e-9) <= 1 + 2e-9
    assert values["held_mb"] <= values["alone_mb"] * 1.001


def zero(params, values, result):
    assert len(result["svg"]) < 40_000 and result["svg"].count("<") - result["svg"].count("</") < 300
    assert 0 <= values["sent_so_far"] <= values["pieces"] + 1e-9
    assert values["seconds"] == pytest.approx(sum(values["parts"].values()))
    assert values["by_stage_gb"] == sorted(values["by_stage_gb"], reverse=True)
    assert values["held_gb"] == values["by_stage_gb"][params["stage"]] <= values["fullest_gb"]


def recompute(params, values, result):
    assert len(result["svg"]) < 45_000 and result["svg"].count("<") - result["svg"].count("</") < 300
    assert values["seconds"] == pytest.approx(sum(values["parts"].values()))
    assert values["fits"] is (values["held_gb"] <= values["usable_gb"])
    least = values["fits_from_percent"]
    assert (least is not None and params["dropped"] >= least) is values["fits"]


def precision(params, values, result):
    assert len(result["svg"]) < 40_000 and result["svg"].count("<") - result["svg"].count("</") < 300
    assert sum(values[f"{name}_percent"] for name in ("zero", "few", "whole", "beyond")) == pytest.approx(100, abs=0.06)


def planner(params, values, result):
    assert len(result["svg"]) < 200 * values["layouts"] + 40_000 and values["fits"] is (values["best"] is not None)
    assert sum(values["counts"].values()) == values["layouts"]


def mesh(params, values, result):
    assert len(result["svg"]) < 90_000 and values["fits"] is (values["held_gb"] <= values["usable_gb"])
    assert values["dp"] * values["cp"] * values["tp"] * values["pp"] == params["gpus"]
    assert values["seconds"] == pytest.approx(sum(values["parts"].values()))
    assert values["communication_ms"] == pytest.approx(sum(values["ms"].values()))
    assert values["held_gb"] == pytest.approx(sum(values["held_gb_by_kind"].values()))
    assert all(0 <= values["sent_so_far_gb"][axis] <= sent * (1 + 1e-9) for axis, sent in values["gb"].items())


def front(params, values, result):
    assert values["fits"] is (params == {"states": "split", "activations": "recompute"})


def bottlenecks(params, values, result):
    assert len(result["svg"]) < 25_000 and values["tallest"] in (seconds := values["by_resource"])
    assert max(seconds.values()) == seconds[values["tallest"]] and sum(seconds.values()) == pytest.approx(
        values["seconds"]
    )
    assert values["fits"] == (values["memory_gb"] <= values["usable_gb"]) and values["faster_link_gain"] >= 1
    assert ("does not fit" in result["sentence"]) is not values["fits"] and 0 < values["mfu_percent"] < 75


def architecture(params, values, result):
    now, waited, day = values["now"], values["waited_s"], values["day"].values()
    assert len(result["svg"]) < 40_000 and math.fsum(day) == pytest.approx(1) and min(day) >= 0
    assert now is None or (waited[now] == min(waited) and f"Rank {now} is slow" in result["sentence"])


CHECKS = {
    "memory": memory,
    "collectives": of_collectives,
    "ddp": ddp,
    "fsdp": fsdp,
    "capstone": capstone,
    "zero": zero,
    "front": front,
    "pipeline": pipeline,
    "tensor": tensor,
    "recompute": recompute,
    "precision": precision,
    "mesh": mesh,
    "planner": planner,
    "bottlenecks": bottlenecks,
    "architecture": architecture,
    "kernels": kernels,
    "budget": budget_views.holds,
    "finetune": finetune_views.holds,
}


SHADE = re.compile(r"\b(?:pale|dark)(?:r|er|st|est)?\b|\blight(?:er|est)\b")  # marks are solid or faint
SUM = re.compile(r"(?<![\d.,×/] )((?:[\d.,]+ \+ )+[\d.,]*\d) = ([\d.,]*\d)(?! [×/])")


def said(stem, result):
    """All that a view says: in its picture, titles and labels, sentence and law, and on its controls."""
    words = re.findall(r">([^<>]+)<|aria-label=\"([^\"]*)\"", result["svg"])
    control = [word for one in controls(stem).values() for word in (one.label, one.help, *(w for _, w in one.options))]
    return [word for pair in words for word in pair] + [result["sentence"], *result["law"], *control]


def adds_up(line):
    """Whether each sum of plain numbers in a line is that of its terms as they are printed, and no term is missing."""
    if re.match(r" *[×+/=] *\S", line):  # an operator by itself is a mark in a picture
        return False
    for terms, total in SUM.findall(line):
        found = sum(float(term) for term in terms.replace(",", "").split(" + "))
        if abs(found - float(total.replace(",", ""))) > 1e-9 * found:
            return False
    return True


def test_every_view_is_here():
    assert set(CHECKS) == set(views.stems())


@pytest.mark.parametrize("stem", CHECKS)
def test_every_state_draws(stem):
    drawn = 0
    for params in grid(stem, MIXED[stem]):
        result = views.render(stem, params)
        root = ET.fromstring(result["svg"])
        assert root.get("role") == "img" and root.get("aria-label")
        colours = re.findall(r'(?:fill|stroke)="([^"]+)"', result["svg"])
        named = [colour for colour in colours if colour not in ("none", "transparent")]
        assert named and all(colour.startswith("var(--") for colour in named), params
        json.dumps(result, allow_nan=False)
        given = {**views.defaults(stem), **params}
        named = "mistral of 7.25B" if given.get("config") else NAMES[given["model"]] if "model" in given else ""
        assert stem in NAMELESS or result["sentence"].startswith(named), params
        CHECKS[stem](given, result["values"], result)
        for line in said(stem, result):
            assert not SHADE.search(line), f"{line}: pale and dark change places in dark mode"
            assert adds_up(line), f"{line}: {params}"
        drawn += 1
        if drawn % 10 == 0:
            assert result == views.render(stem, params), "the same twice"
    assert drawn > 60 or drawn == len(views.settings(stem, 8)) - 1  # of few settings, those with one choice made


# --- what a frame asks of every view ------------------------------------------------------------------------------

TALLEST = {svg.WIDE: 490, svg.NARROW: 400}  # CSS pixels: picture, controls and sentence share a screen
SENTENCE = (940, 16, 2)  # CSS pixels of a line, of its text, and lines
FIELD = 290  # CSS pixels that the words of a select have
TRIED = 12  # settings by chance at which each control is moved
SEARCHED = {"planner": 3, "mesh": 6}  # of a view that searches, or places a pipeline in time, for each


def as_typed(control, words):
    """A value from its words, as the front end reads them."""
    typed = {"toggle": {"true": True, "false": False}.get, "select": str, "arrange": str}
    return typed.get(control.kind, float)(words)


def lines(words, width, size):
    """Lines that words take where each is broken as late as can be; without the signs of bold."""
    count, used = 1, 0.0
    for word in words.replace("**", "").split():
        wide = svg.measure(f"{word} ", size)
        count, used = (count + 1, wide) if used + wide > width else (count, used + wide)
    return count


def drawn(stem, params, width=svg.WIDE):
    """What a view gives, or None where it refuses a setting."""
    try:
        return views.render(stem, params, width)
    except ValueError:
        return None


@pytest.mark.parametrize("stem", CHECKS)
def test_pictures_and_words_fit_their_frame(stem):
    for params in ({}, *by_chance(stem, 4 * SEARCHED.get(stem, 6), 3)):
        wide, narrow = (drawn(stem, params, width) for width in (svg.WIDE, svg.NARROW))
        if wide is None:
            continue
        assert {**wide, "svg": ""} == {**narrow, "svg": ""}, "the width decides the drawing only"
        for width, one in ((svg.WIDE, wide), (svg.NARROW, narrow)):
            box = ET.fromstring(one["svg"]).get("viewBox").split()
            assert float(box[2]) == width and float(box[3]) <= TALLEST[width], params
        assert lines(wide["sentence"], *SENTENCE[:2]) <= SENTENCE[2], wide["sentence"]


@pytest.mark.parametrize("stem", CHECKS)
def test_few_controls_at_first_and_words_that_fit(stem):
    every = views._view(stem).CONTROLS
    assert sum(one.kind not in ("guess", "play", "paste") and not one.more for one in every) <= 4
    for one in every:
        if one.kind == "guess":
            assert lines(one.label, 450, 14) <= 3
        else:
            assert all(svg.measure(words, 14) <= FIELD for words in (one.label, *(words for _, words in one.options)))


def moves(stem, start, given, name, control):
    """Whether a control changes any value, within its range of now; the farthest are tried first."""
    hi = start["levers"].get(name, {}).get("hi", math.inf)
    inside = [value for value in values(control) if control.kind not in ("slider", "play") or value <= hi]
    for value in (inside[-1], inside[0], *inside[1:-1:4], *inside[2:-1:4]):
        if value != given[name]:
            found = drawn(stem, {**given, name: value})
            if found and found["values"] != start["values"]:
                return True
    return False


@pytest.mark.parametrize("stem", CHECKS)
def test_each_control_changes_a_value_or_says_why_not(stem):
    for params in ({}, *by_chance(stem, SEARCHED.get(stem, TRIED), 11)):
        given = {**views.defaults(stem), **params}
        start = drawn(stem, given)
        for name, control in controls(stem).items() if start else ():
            off = "off" in start["levers"].get(name, {})
            assert moves(stem, start, given, name, control) != off, (name, params)


def test_what_the_picture_sets_its_controls_take():
    """A button in a picture is of a control that is not off and takes its value; a movable mark is in its order."""
    for stem, params in [(one, way) for one in CHECKS for way in ({}, *by_chance(one, TRIED, 5))]:
        given, found = {**views.defaults(stem), **params}, drawn(stem, params)
        for one in ET.fromstring(found["svg"]).iter() if found else ():
            asked = [each.split("=") for each in (one.get("data-press") or "").split("&") if each]
            name, row, item = (one.get("data-move") or "::").split(":")
            if not asked and not name:
                continue
            assert one.get("data-mark") and one.get("data-label"), "its focus and its name"
            # what the press itself wakes is not off
            off = {control for control, lever in found["levers"].items() if "off" in lever}
            assert name not in off and (asked or [[name]])[-1][0] not in off, (stem, name, params)
            for control, value in asked:
                views.clean(stem, {control: as_typed(controls(stem)[control], value)})
            if name:
                assert item in views.rows_of(given[name])[int(row)]


@pytest.mark.parametrize("stem", [*filter(views.asks, CHECKS)])
def test_a_question_is_asked_of_the_opening_setting_without_its_answer(stem):
    asked, opened = views.question(stem), [views.render(stem, {}, width)["svg"] for width in (svg.WIDE, svg.NARROW)]
    guess = next(one for one in views._view(stem).CONTROLS if one.kind == "guess")
    assert asked["answer"] == views.render(stem)["values"][guess.answer] and 0 < asked["answer"] <= guess.hi
    said = re.compile(rf"(?<![\d.]){re.escape(asked['words'].split()[0])}(?![\d.])")
    counted = isinstance(asked["answer"], int)  # which stands on the axis
    for locked, shown in zip(asked["pictures"], opened, strict=True):
        assert counted or not said.search(re.sub(r' [\w-]+="[^"]*"', "", locked)), "neither in words nor in titles"
        assert "live-mark" in locked and "live-mark" in shown and len(locked) < len(shown)
        assert re.findall(r'data-stops="[^"]*"', locked) == re.findall(r'data-stops="[^"]*"', shown), "the scale stays"
    wrong = [value for value, _words in asked["slips"]]
    assert len(wrong) == len(set(wrong)) >= 2 and all(abs(value / asked["answer"] - 1) > 0.02 for value in wrong)
