"""The view `planner`: what it draws and says is what `timing.search` finds, and what a hand would work out."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from math import prod

import pytest
from drawn import marks
from planner_views import BIG, SMALL, job_of, opening, setting, shown, told
from view_settings import PASTED, by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.draw.spots import Spots
from scaleout.memory.job import fullest
from scaleout.spec import hugging_face
from scaleout.spec.transformer import PRESETS
from scaleout.timing.band import band
from scaleout.timing.job import PARTS, step
from scaleout.timing.search import cut, search
from scaleout.views import planner
from scaleout.views.planner import bars, clusters, launch, words
from scaleout.views.planner.setting import DOUBLED, KINDS, cuts_of

# --- what the search finds --------------------------------------------------------------------------------------


def test_it_tells_what_the_search_finds():
    job, found = opening()
    values = shown()["values"]
    assert values["layouts"] == len(found.plans) + len(found.over) and values["counts"]["over"] == len(found.over)
    best = values["best"]
    assert (best["seconds"], best["gb"]) == (found.best.seconds, found.best.bytes / 1e9)
    assert best["parts"] == found.best.parts and set(best["parts"]) == set(PARTS)
    assert (values["band"], values["fastest"]) == (band(job).share, found.fastest)
    yours = cut(job, 1024, zero=3, checkpointing="full")
    assert (values["yours"]["seconds"], values["yours"]["fits"]) == (yours.seconds, True)
    ratio = yours.seconds / found.best.seconds
    assert f"Yours takes {ratio:.2f} times as long: recomputation 22%." in shown()["sentence"]
    more = " or more" * bool(band(job).outside)
    assert f"per step ± {100 * band(job).share:.0f}%{more},**" in shown()["sentence"]


@pytest.mark.parametrize(
    "params",
    [
        {},
        BIG,
        SMALL,
        {"program": "compiled"},
        {"program": "huggingface", "tp": 2},
        {"device": "a100-80gb", "program": "eager", "pp": 2, "zero": 1},
    ],
    ids=str,
)
def test_what_is_said_of_a_layout_is_what_the_models_say_of_its_job(params):
    now, values = setting(**params), shown(params)["values"]
    for name, plan in (("best", now.best), ("yours", now.yours)):
        if isinstance(plan, str):
            assert values[name] == {"refused": plan}
            continue
        exact, account = step(plan.job), fullest(plan.job)
        assert (values[name]["seconds"], values[name]["parts"]) == (exact.seconds, exact.parts)
        assert (values[name]["mfu"], values[name]["gb"]) == (exact.mfu, account.peak_bytes / 1e9)
        assert plan.job.program.name == params.get("program", "megatron") == values["program"]


def test_seconds_are_said_of_what_was_priced_exactly_and_of_no_other():
    """A point has its seconds, or how many times the fastest's it takes."""
    now, field = setting(), marks(shown()["svg"])["field"]
    said = [one.partition("|")[2] for one in field.get("data-points").split(";")]
    exact = [plan for plan in now.plans if plan.exact]
    times = [float(found[1]) for one in said if (found := re.match(r"about ([\d.]+) times the fastest, ", one))]
    assert len(times) == len(now.result.plans) - len(exact) and min(times) >= 1 and times == sorted(times)
    assert sum(one.startswith("does not fit by ") for one in said) == len(now.result.over)
    for plan in exact:
        assert any(one.startswith(f"{bars.took(plan.seconds)}, ") for one in said)


def test_a_step_by_hand():
    """8B on one GPU's worth of work each: 16 sequences of 8,192 tokens at 6 FLOPs per parameter and token and
    attention, and the share of peak that the sentence says."""
    values = shown(SMALL)["values"]
    tokens, best = 16 * 8192, values["best"]
    forward = 2 * (8.03e9 - 128_256 * 4096) + 2 * 32 * 2 * 4096 * 8192 * 0.5  # causal attention, half of the scores
    low = 3 * forward * tokens / 989.4e12 / best["seconds"]
    high = low + 3 * (2 * 32 * 2 * 4096 * 8192 * 0.5) * tokens / 989.4e12 / best["seconds"]  # all scores counted
    assert low * 0.99 < best["mfu"] < high * 1.01


@pytest.mark.parametrize("params", [{}, BIG, SMALL, {"gpus": 8}, {"model": "gpt2-xl", "gpus": 1}], ids=str)
def test_counts_points_and_parts_are_conserved(params):
    values, picture = (found := shown(params))["values"], found["svg"]
    assert sum(values["counts"].values()) == values["layouts"] > 0 and set(values["counts"]) == set(KINDS)
    said = {
        name.removeprefix("count "): int(re.match(r"[\d,]+", one.text)[0].replace(",", ""))
        for name, one in marks(picture).items()
        if name.startswith("count ")
    }
    assert said == {kind: count for kind, count in values["counts"].items() if count}
    field = marks(picture)["field"]
    assert len(field.get("data-points").split(";")) == values["layouts"]
    now = setting(**params)
    for plan in [now.shown, *(one for one in [now.yours] if not isinstance(one, str))]:
        assert sum(bars.spent(plan).values()) == pytest.approx(plan.seconds)
        assert sum(bars.bytes_by_kind(plan.job).values()) == pytest.approx(plan.bytes)


def test_every_way_of_a_layout_multiplies_to_the_cluster():
    for plan in setting(**BIG).plans:
        at = plan.layout
        assert prod((at.dp, at.tp, at.cp, at.pp)) == 16_384 and at.dp * at.m * plan.job.batch == 2048


def test_the_kinds_are_told_by_band_and_largest_loss():
    now = setting()
    limit = (1 + now.result.band.share) * now.result.fastest
    for plan in now.plans:
        kind = now.kind(plan)
        assert (kind == "over") is not plan.fits
        if plan.fits:
            assert (kind == "alike") is (plan.seconds <= limit)
        if kind in ("link", "bubble", "recompute"):
            words = {"link": "exposed", "bubble": "pipeline|uneven", "recompute": "recomputation"}[kind]
            assert re.match(words, now.reason(plan)), now.reason(plan)
    assert now.kind(now.best) == "alike" and now.reason(now.best) == "the best"
    near = next(plan for plan in now.result.plans if plan is not now.best)
    assert now.reason(near) == f"equal within {now.percent}"


def test_points_go_from_the_quickest_to_the_slowest_and_carry_their_cuts():
    field = marks(shown()["svg"])["field"]
    assert field.get("data-field") == "tp pp cp zero recompute"
    points = [one.partition("|")[0].split() for one in field.get("data-points").split(";")]
    chosen = [dict(zip(planner.setting.Cuts._fields, (*map(int, one[2:6]), one[6]), strict=True)) for one in points]
    seconds = [setting(**one).yours.seconds for one in chosen[::25]]
    assert all(a < 1.03 * b for a, b in pairwise(seconds)), "the closed form is as near"
    assert len({tuple(one[2:]) for one in points}) == len(points)
    presses = {one.get("data-press") for one in ET.fromstring(shown()["svg"]).findall(".//*[@data-press]")}
    assert presses == {f"show={kind}" for kind, count in setting().counts.items() if count}, "none for each point"


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_chip_lights_its_kind_and_all_again(width):
    now = setting()
    for kind in ("link", "over"):
        found = shown({"show": kind}, width)
        picture = marks(found["svg"])
        pressed = {tuple(map(str, cuts_of(plan))) for plan in now.plans if now.kind(plan) == kind}
        points = [tuple(one.partition("|")[0].split()[2:]) for one in picture["field"].get("data-points").split(";")]
        assert set(points) == pressed and len(points) == now.counts[kind] and found["values"]["shown"] == kind
        assert picture[f"chip {kind}"].get("data-press") == "show=all"
        assert picture["chip bubble"].get("data-press") == "show=bubble"
        clouds = [one for one in ET.fromstring(found["svg"]).iter() if one.get("data-cloud") == ""]
        assert sorted(one.get("opacity", "1") for one in clouds) == ["0.15"] * (len(clouds) - 1) + ["1"]
    nothing = shown({"model": "gpt2-xl", "gpus": 1, "show": "link"}, width)
    assert nothing["values"]["shown"] == "all", "none of these waits for a link"


def test_a_config_json_is_the_model():
    found = shown({"config": PASTED, "gpus": 96, "sequences": 192})
    best = search(job_of(hugging_face.shape(PASTED), 96), 192).best
    assert found["values"]["best"]["seconds"] == best.seconds and found["values"]["best"]["gb"] == best.bytes / 1e9
    assert found["sentence"].startswith("mistral of 7.25B on 96 H100, Megatron-LM: **")
    assert found["levers"]["model"] == {"off": "config.json gives the model: empty its box"}
    kept = views.clean("planner", {"config": PASTED})["config"]
    assert "rope_theta" not in kept and views.clean("planner", {"config": kept})["config"] == kept
    assert shown({"config": kept})["svg"] == shown({"config": PASTED})["svg"]
    with pytest.raises(ValueError, match="this is not JSON: paste a whole config"):
        shown({"config": "{"})
    assert launch.ranks(setting(config=kept), setting(config=kept).best) == "", "no model of the chapter"
    small = json.dumps(json.loads(PASTED) | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4})
    said = shown({"config": small, "gpus": 8, "sequences": 8})["sentence"]
    assert said.startswith("mistral of 20.6M on 8 H100, Megatron-LM: **")


def test_where_no_layout_divides_no_axis_is_made_up():
    found = shown({"gpus": 7168, "sequences": 8})
    assert "no layout is possible" in found["sentence"] and not re.search(r">[\d.,]+ m?s<|fastest", found["svg"])


def test_counts_of_gpus_are_whole_nodes_and_more_than_doublings():
    offered = [n for n, _ in next(one for one in planner.CONTROLS if one.name == "gpus").options]
    assert offered == sorted(offered) and {1, 3, 8, 24, 72, 96, 1152, 2304, 16_384} <= set(offered)
    assert all(n <= 8 or n % 8 == 0 for n in offered)
    assert clusters.counts(96) == sorted({96, *(2**k for k in range(15))}) and clusters.counts(64) == clusters.counts(1)
    one = setting(**SMALL | {"gpus": 96, "sequences": 192}).question
    assert clusters.changed(one, "nodes of 64 GPUs") is None and clusters.changed(one, "network half as fast")
    none = shown({"gpus": 7168, "sequences": 8})["sentence"]
    assert "**no layout is possible.** 8 sequences cannot be divided evenly over the replicas: use 7,168." in none


def test_a_point_pressed_is_yours():
    one = marks(shown()["svg"])["field"].get("data-points").split(";")[40]
    values = one.partition("|")[0].split()[2:]
    chosen = dict(zip(("tp", "pp", "cp", "zero", "recompute"), (*map(int, values[:4]), values[4]), strict=True))
    after = shown(chosen)["values"]["yours"]
    assert [after[name] for name in chosen] == list(chosen.values()) and after["fits"] is not None


# --- states -----------------------------------------------------------------------------------------------------


def test_where_nothing_fits_the_smallest_and_the_first_cluster_are_named():
    found, now = shown({"gpus": 8}), setting(gpus=8)
    assert not found["values"]["fits"] and found["values"]["smallest"]["gb"] == now.result.over[0].bytes / 1e9
    assert "**nothing fits.**" in found["sentence"] and "It fits on **32 GPUs**" in found["sentence"]
    assert setting(gpus=16).best is None and setting(gpus=32).best is not None
    assert found["levers"]["price"] == {"off": "nothing fits, so there is no run"}
    assert float(marks(found["svg"])["room line"].get("y1")) > float(marks(found["svg"])["best"].get("cy"))


@pytest.mark.parametrize("gpus", [3, 6])
def test_clusters_that_fit_next_are_among_those_on_offer(gpus):
    """Three GPUs doubled are six, and then whole nodes: 12 GPUs are none."""
    found = shown({"model": "llama-3-70b", "gpus": gpus, "sequences": 96})
    assert "**nothing fits.**" in found["sentence"] and "It fits on **24 GPUs**: " in found["sentence"]
    assert setting(gpus=24, sequences=96).best is not None


@pytest.mark.parametrize(("sequences", "advised"), [(640, 768), (14_336, 12_288)])
def test_advised_sequences_are_on_offer_and_fall_evenly(sequences, advised):
    """To 384 replicas and to 1,536: 15,360 would be the next of the latter, but the page ends at 16,384."""
    gpus = 384 if sequences == 640 else 1536
    assert words.least(gpus, sequences) == advised and advised % gpus == 0 and advised in DOUBLED


def test_one_gpu_has_three_layouts():
    values = shown({"model": "gpt2-xl", "gpus": 1})["values"]
    assert values["layouts"] == 3 and values["best"]["dp"] == values["best"]["tp"] == 1


def test_an_impossible_pick_says_what_would_work():
    found = shown(BIG | {"zero": 3})
    assert "Your layout is not possible." in found["sentence"]
    assert "take a multiple of 16,384 sequences" in found["values"]["yours"]["refused"]
    assert "Your layout is not possible: " in told("figures", **BIG)["blocks"][0][1]


def test_learned_positions_end_a_sequence():
    assert shown({"model": "gpt-3-175b"})["values"]["seq"] == 2048 == PRESETS["gpt-3-175b"].max_seq


# --- the picture ------------------------------------------------------------------------------------------------


def test_labels_hide_as_little_as_can_be():
    points = [(x, 40.0) for x in range(60, 200, 4)]
    spots = Spots((0, 0, 300, 100), points, obstacles=[(0, 0, 300, 20)])
    first = ET.fromstring(f"<g>{spots.say(100, 40, ('a name',), 'ink', 'one')}</g>")
    assert abs(float(first.find("text").get("y")) - 40) > 12, "not on the row of points"
    assert spots.say(100, 40, ("much too long " * 9, ""), "ink", "two").count("too long") == 0


def test_names_do_not_meet():
    for params in ({}, BIG, {"gpus": 8}, *by_chance("planner", 3, 3)):
        for width in (svg.WIDE, svg.NARROW):
            said = [one for name, one in marks(shown(params, width)["svg"]).items() if name.startswith("said ")]
            spots = [(float(one.get("x")), float(one.get("y")), svg.measure(one.text, svg.SMALL, True)) for one in said]
            boxes = [(x, y - 11, x + long, y + 3) for x, y, long in spots]
            for i, a in enumerate(boxes):
                assert a[0] >= 0 and a[2] <= width
                assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in boxes[:i]), params
