"""The view of ZeRO: its numbers are the models', its picture has their areas, its levers keep their word."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict

import pytest
from cases import refused
from drawn import SVG
from view_settings import by_chance

from scaleout import views
from scaleout.collectives import zero as wire
from scaleout.draw import svg
from scaleout.memory import zero_frames as held
from scaleout.memory.states import state_bytes
from scaleout.spec.layout import Layout
from scaleout.spec.muon import matrix_parameters
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, total_parameters
from scaleout.views import zero
from scaleout.views.zero import levers
from scaleout.views.zero.setting import MOMENTS

N = total_parameters(PRESETS["llama-2-7b"])
WIDTHS = [svg.WIDE, svg.NARROW]


def shown(width=svg.WIDE, **params):
    return views.render("zero", params, width)


def setting(moment=0, **params):
    return zero.Setting.of(views.defaults("zero") | params)


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "each"), [(0, 16), (1, 2 + 2 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)])
def test_what_is_held_is_the_paper_s(stage, each):
    """Section 5 of arXiv 1910.02054: 2 + 2 + 12 bytes, of which a stage divides the last, the last two, or all."""
    found = shown(stage=stage)["values"]
    assert found["held_gb"] == pytest.approx(each * N / 1e9, rel=1e-9)
    assert found["bytes_each"] == pytest.approx(each) and found["by_stage_gb"][stage] == found["held_gb"]


def test_the_opening_is_37_of_73_gb():
    found = shown()["values"]
    assert [round(size, 1) for size in found["by_stage_gb"]] == [107.8, 47.2, 37.1, 27.0]
    assert round(found["usable_gb"], 1) == 73.4 and found["states_fit"] and found["fits"]
    assert not shown(stage=0)["values"]["states_fit"] and round(found["beside_gb"], 1) == 22.9
    assert found["piece_gb"] == 2 * N * 3 / 4 / 1e9 and found["sent_gb"] == pytest.approx(2 * found["piece_gb"])


SENT = [({"stage": 0}, 2), ({"stage": 1}, 2), ({}, 2), ({"stage": 3}, 3), ({"stage": 3, "keep": True}, 2)]


@pytest.mark.parametrize(("params", "once"), SENT)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_wire_fills_to_the_paper_s_count(params, once, ranks):
    """Two, two, two and three (section 7); with accumulation what stages 2 and 3 send in each pass, all but the new
    weights."""
    for passes in (1, 2, 8):
        own = {**params, "ranks": ranks, "passes": passes}
        found = shown(**own)["values"]
        stage = params.get("stage", 2)
        again = {0: 0, 1: 0, 2: 1, 3: once}[stage] * (passes - 1)
        assert found["pieces"] == once + again and isinstance(found["pieces"], int)
        assert found["sent_gb"] == pytest.approx(found["pieces"] * found["piece_gb"], rel=1e-9)
        so_far = [shown(**own, moment=moment)["values"]["sent_so_far"] for moment in range(MOMENTS + 1)]
        assert so_far == sorted(so_far) and so_far[0] == again and so_far[-1] == found["pieces"]


def test_values_are_those_of_the_models():
    for params in [one for one in by_chance("zero", 24, 4) if one["optimizer"] != "muon"]:
        now, found = setting(**params), shown(**params)["values"]
        recipe = Recipe(params["precision"], params["optimizer"])
        layout = Layout(dp=params["ranks"], zero=params["stage"])
        keep = params["keep"] and params["stage"] == 3
        sent = wire.messages(now.parameters, recipe, layout, keep=keep, passes=params["passes"])
        assert found["sent_gb"] == pytest.approx(wire.sent(sent, params["ranks"]) / 1e9)
        assert found["pieces"] == pytest.approx(held.frames(recipe, layout, keep, params["passes"])[-1].sent)
        if found["away"] == "none":
            states = state_bytes(now.parameters, recipe, layout)
            assert found["held_gb"] == pytest.approx(sum(states.values()) / 1e9)
            assert found["host_gb"] == found["nvme_gb"] == 0
        else:
            assert params["stage"] and found["outside_gb"] == found["host_gb"] + found["nvme_gb"] > 0
        whole = shown(**params | {"moment": MOMENTS})["values"]
        assert whole["moment"] == "update" and whole["moment_gb"] == pytest.approx(found["held_gb"], rel=1e-6)


def test_a_block_at_a_time_is_less_than_the_grid_shows():
    """One block's weights and gradients, of 32, beside what stays."""
    found = shown(stage=3)
    block = (N - 2 * 32_000 * 4096 - 4096) / 32
    assert found["values"]["fullest_gb"] == pytest.approx((4 * N + 4 * block) / 1e9)
    drawn = max(shown(stage=3, moment=at)["values"]["moment_gb"] for at in range(MOMENTS))
    assert found["values"]["fullest_gb"] < drawn and "block by block, the peak is 27.8 GB" in found["law"][2]
    assert "block by block" not in shown(stage=2)["law"][2] + shown(stage=3, keep=True)["law"][2]


@pytest.mark.parametrize(("stage", "sends"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_muon_gathers_every_matrix_and_keeps_one_state_of_it(stage, sends):
    """Its momentum in 16 bits, as wide as a weight, from stage 1; Newton-Schulz on each GPU is slower than the step."""
    matrices = matrix_parameters(PRESETS["llama-2-7b"]) / N
    assert 0.95 < matrices < 0.97
    found, adam = (shown(stage=stage, optimizer=name)["values"] for name in ("muon", "adamw"))
    assert found["pieces"] == pytest.approx(sends + (matrices if stage else 0)) and adam["pieces"] == sends
    assert found["sent_gb"] == pytest.approx(found["pieces"] * found["piece_gb"])
    less = 4 * matrices * N / (4 if stage else 1) / 1e9
    assert adam["held_gb"] - found["held_gb"] == pytest.approx(less, rel=1e-6)
    products = found["parts"]["update"] - adam["parts"]["update"]
    assert products > adam["spent"]["compute"] and found["away"] == "none"
    wide = shown(stage=stage, optimizer="muon", passes=4, moment=0)["values"]
    assert wide["pieces"] - found["pieces"] == pytest.approx([0, 0, 3, 9][stage]) == wide["sent_so_far"]
    said = {shown(stage=stage, optimizer="muon", moment=at)["values"]["moment"] for at in range(MOMENTS)}
    assert ("gather the momentum" in said) is (stage > 0)


def test_what_is_kept_in_the_hosts_memory_has_to_fit_there():
    """698 GB per GPU of eight, and 1.4 TB on each of two, are more than a node of 8 H100 has."""
    for ranks, each in ((2, 1.40), (4, 0.698)):
        found = shown(stage=3, model="gpt-3-175b", ranks=ranks, offload="parameters")
        assert round(found["values"]["host_gb"] / 1e3, 2 if ranks == 2 else 3) == each
        assert found["values"]["states_fit"] and not found["values"]["host_fits"] and not found["values"]["fits"]
        said = found["sentence"]
        assert "in CPU memory (too much: 2.79 TB per node, a DGX H100 has 2 TB)" in said and "Try **NVMe**" in said
    apart = shown(stage=3, model="gpt-3-175b", ranks=4, offload="parameters", link="nodes")["values"]
    assert apart["host_fits"] and apart["node_host_gb"] == 2 * apart["host_gb"]
    lever = shown(stage=3, model="llama-3-70b", ranks=2)["sentence"]
    assert "all states offloaded** (564.4 GB): no states on the GPU, which fits" in lever


def test_a_gpu_waits_while_its_host_updates():
    found = shown(offload="optimizer")["values"]
    parts = found["parts"]
    assert found["exposed_seconds"] > 1
    assert found["exposed_seconds"] == pytest.approx(parts["exposed data"] + parts["update"] + parts["exposed host"])
    own = shown()["values"]
    assert own["exposed_seconds"] == own["parts"]["exposed data"] > own["parts"]["exposed host"] == 0
    assert "volume **2N**; communication costs 37.7 ms of the 461 ms step." in shown()["sentence"]
    assert shown()["law"][0].startswith("Run by torch.compile. ")


def test_programs_that_send_more_than_the_paper_are_named():
    assert shown()["values"]["pieces_by_way"] == {"DeepSpeed": 3}
    assert "By default DeepSpeed has 3N." in shown()["law"][2]
    assert "ZeroRedundancyOptimizer has 3N" in shown(stage=1)["law"][2]
    assert "By default" not in shown(stage=0)["law"][2] + shown(stage=3)["law"][2]


# --- the question and the levers ----------------------------------------------------------------------------------


def test_the_answer_is_that_of_ddp():
    assert views.question("zero")["words"] == "2 times"
    assert shown(stage=0)["values"]["pieces"] == 2


def test_slips_count_something():
    said = {words: value for value, words in zero.slips(views.defaults("zero"))}
    assert sorted(said.values()) == [1, 1.5, 3, 4]
    assert said[next(words for words in said if words.startswith("stage 3's"))] == shown(stage=3)["values"]["pieces"]
    bare = next(value for words, value in said.items() if "(W − 1)/W" in words)
    assert bare == shown(stage=0)["values"]["sent_gb"] / (2 * N / 1e9)


def test_the_lever_that_is_named_keeps_its_promise():
    seen = set()
    for params in (
        {},
        {"stage": 0},
        {"stage": 3, "link": "ethernet"},
        {"model": "llama-3-70b"},
        {"stage": 0, "model": "gpt2-xl", "link": "ethernet"},
        {"keep": True, "model": "llama-3-70b", "optimizer": "muon"},
        *by_chance("zero", 80, 9),
    ):
        given = {**views.defaults("zero"), **params}
        found = levers.advice(setting(**given))
        if found is None:
            assert "No single change here saves 3%" in shown(**given)["sentence"]
            continue
        now, then = (shown(**given | change)["values"] for change in ({}, found.change))
        pace = [
            one["seconds"] / (own["batch"] * own["passes"]) for one, own in ((now, given), (then, given | found.change))
        ]
        fit = [one["states_fit"] and one["host_fits"] for one in (now, then)]
        if not fit[0]:
            assert then["fullest_gb"] < 0.97 * now["fullest_gb"] and fit[1] is ("which fits" in found.gives)
        elif " per sequence, not " in found.gives:
            assert (then["fits"] or then["peak_gb"] <= now["peak_gb"]) and pace[1] < 0.97 * pace[0]
        else:
            assert fit[1] and then["held_gb"] < 0.97 * now["held_gb"] and pace[1] < 1.03 * pace[0]
        assert f"Try **{found.words}**" in shown(**given)["sentence"]
        seen |= {*found.change}
    assert {"stage", "ranks", "offload", "link"} <= seen


def test_controls_that_change_nothing_say_why():
    assert {*shown()["levers"]} == {"keep", "to"} and {*shown(stage=0)["levers"]} == {"keep", "offload", "to"}
    assert not shown(stage=3, offload="optimizer")["levers"] and not shown(stage=3, offload="parameters")["levers"]
    note = shown(stage=2, offload="parameters")
    assert "weights stay on the GPU" in note["levers"]["offload"]["note"]
    same = shown(stage=2, offload="optimizer")["values"]
    assert all(note["values"][name] == same[name] for name in same if name != "by_stage_gb"), "as the note says"
    assert shown(offload="optimizer")["levers"]["to"] == {"off": "only stage 3 can use NVMe"}


# --- a reader's run -----------------------------------------------------------------------------------------------

SHAPE = Shape(2, 64, 4, 256)
SIZE = total_parameters(SHAPE)
HELD = ("weights", "gradients", "momentum", "variance")


def run(**change):
    """A Record of two ranks as labs/zero.py writes it: stage 2 sent 1% more than two pieces."""
    seen = {"bytes sent per step, stage 2 by hand": 2.02 * 4 * SIZE / 2} | {
        f"bytes of {kind}, stage 2 by hand": 4 * SIZE / (1 if kind == "weights" else 2) for kind in HELD
    }
    return {
        "stem": "zero",
        "device_count": 2,
        "device": "2-core x86-64 CPU",
        "model": asdict(SHAPE),
        "recipe": {"optimizer": "adamw", "accumulation": 1},
        "measurement": seen,
    } | change


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_s_ring_lies_where_its_pieces_do(width):
    own = views.measured("zero", json.loads(json.dumps(run())))
    assert own["stages"] == {"2": [pytest.approx(2.02), pytest.approx(10)]}
    drawn = views.render("zero", {}, width, own)
    [ring] = [
        one
        for one in ET.fromstring(drawn["svg"]).iter(f"{SVG}circle")
        if one.get("r") == "7" and one.get("fill") == "none"
    ]
    (low, left), (high, right) = [
        [*map(float, pair.split(":"))] for pair in re.search(r'data-stops="([^"]+)"', drawn["svg"])[1].split()
    ]
    assert low + (float(ring.get("cx")) - left) / (right - left) * (high - low) == pytest.approx(2.02, abs=0.01)
    where = ", 2 ranks on 2-core x86-64 CPU" if width == svg.WIDE else ""
    for params in ({}, {"offload": "optimizer"}):
        said = views.render("zero", params, width, own)["svg"]
        assert f">your run: volume 2.02N, 10 B per parameter{where}<" in said
    assert drawn["values"] == shown()["values"]
    other = views.render("zero", {"stage": 1}, width, own)["svg"]
    assert 'r="7" fill="none"' not in other and "your run: 2 ranks on 2-core x86-64 CPU, 1 micro-batch<" in other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stem": "ddp"}, "no Record of labs/zero.py"),
        ({"device_count": 1}, "of one process, which communicates nothing"),
        ({"measurement": {}}, "has no bytes sent by any stage"),
        ({"model": {"layers": 2}}, "has no sound model"),
        ({"recipe": {"optimizer": "muon"}}, "of another optimizer"),
        ({"model": None}, "has no model"),
        ({"recipe": {"optimizer": "adamw"}}, "has no 'accumulation'"),
    ],
)
def test_another_record_is_refused_in_one_line(change, words):
    refused(lambda: views.measured("zero", run(**change)), words)
