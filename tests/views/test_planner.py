"""The view `planner`: what it draws and says is what `timing.mesh_search` finds, and what a hand would work out."""

import json
import re
import xml.etree.ElementTree as ET
from math import prod
from pathlib import Path

import mesh_rows
import pytest
from drawn import marks
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.draw.spots import Spots
from scaleout.spec.hardware import DEVICES
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.mesh import BAND, PARTS
from scaleout.timing.mesh_search import Job, cut, plans
from scaleout.views import blocks, planner
from scaleout.views.planner import bars, clusters, costs, launch, published
from scaleout.views.planner.setting import KINDS, cuts_of, setting_of

BIG = {"model": "llama-3-405b", "gpus": 16_384, "sequences": 2048}
SMALL = {"model": "llama-3-8b", "gpus": 64}
PUBLISHED = Path(__file__).parents[1] / "published"


def shown(params=None, width=svg.WIDE):
    return views.render("planner", params, width)


def setting(**params):
    return setting_of(views.defaults("planner") | params)


def told(name, **params):
    return views.beneath("planner", params, name)


@pytest.fixture(scope="module")
def opening():
    job = Job(PRESETS["llama-3-70b"], 8192, 1024, DEVICES["h100-sxm"], cluster(64, 8))
    return job, plans(job)


# --- what the search finds --------------------------------------------------------------------------------------


def test_it_tells_what_the_search_finds(opening):
    job, found = opening
    values = shown()["values"]
    assert values["layouts"] == len(found.plans) + len(found.over) and values["counts"]["over"] == len(found.over)
    best = values["best"]
    assert (best["seconds"], best["gb"]) == (found.best.seconds, found.best.bytes / 1e9)
    assert best["parts"] == found.best.parts and set(best["parts"]) == set(PARTS)
    yours = cut(job, zero=3, checkpointing="full")
    assert (values["yours"]["seconds"], values["yours"]["fits"]) == (yours.seconds, True)
    assert "Yours takes 1.26 times as long: recomputes 23%." in shown()["sentence"]
    assert yours.seconds / found.best.seconds == pytest.approx(1.26, abs=0.005)


def test_a_step_by_hand():
    """8B on one GPU's worth of work each: 16 sequences of 8,192 tokens at 6 FLOPs a parameter and token and attention,
    and the share of peak that the sentence says."""
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
    said = {name.removeprefix("count "): int(re.match(r"[\d,]+", one.text)[0].replace(",", ""))
            for name, one in marks(picture).items() if name.startswith("count ")}  # fmt: skip
    assert said == {kind: count for kind, count in values["counts"].items() if count}
    field = marks(picture)["field"]
    assert len(field.get("data-points").split(";")) == values["layouts"]
    now = setting(**params)
    for plan in [now.shown, *(one for one in [now.yours] if not isinstance(one, str))]:
        assert sum(bars.spent(plan).values()) == pytest.approx(plan.seconds)
        assert sum(bars.held(now.job, plan).values()) == pytest.approx(plan.bytes)


def test_every_way_of_a_layout_multiplies_to_the_cluster():
    for plan in setting(**BIG).every:
        at = plan.layout
        assert prod((at.dp, at.tp, at.cp, at.pp)) == 16_384 and at.dp * at.m * plan.batch == 2048


def test_the_kinds_are_told_by_band_and_largest_loss():
    now = setting()
    for plan in now.every:
        kind = now.kind(plan)
        assert (kind == "over") is not plan.fits
        if plan.fits:
            assert (kind == "alike") is (plan.seconds <= (1 + BAND) * now.best.seconds)
        if kind in ("link", "bubble", "recompute"):
            words = {"link": "waits", "bubble": "bubble|unequal|hops", "recompute": "recomputes"}[kind]
            assert re.match(rf"(tp |cp |dp )?({words})", now.reason(plan)), now.reason(plan)
    assert now.kind(now.best) == "alike" and now.reason(now.best) == "the best"


def test_points_go_from_the_quickest_to_the_slowest_and_carry_their_cuts():
    field = marks(shown()["svg"])["field"]
    assert field.get("data-field") == "tp pp cp zero recompute"
    points = [one.partition("|")[0].split() for one in field.get("data-points").split(";")]
    chosen = [dict(zip(planner.setting.Cuts._fields, (*map(int, one[2:6]), one[6]), strict=True)) for one in points]
    seconds = [setting(**one).yours.seconds for one in chosen[::25]]
    assert seconds == sorted(seconds) and len({tuple(one[2:]) for one in points}) == len(points)
    assert ET.fromstring(shown()["svg"]).findall(".//*[@data-press]") == [], "one control, not one for each point"


def test_a_point_pressed_is_yours():
    one = marks(shown()["svg"])["field"].get("data-points").split(";")[40]
    values = one.partition("|")[0].split()[2:]
    chosen = dict(zip(("tp", "pp", "cp", "zero", "recompute"), (*map(int, values[:4]), values[4]), strict=True))
    after = shown(chosen)["values"]["yours"]
    assert [after[name] for name in chosen] == list(chosen.values()) and after["fits"] is not None


# --- states -----------------------------------------------------------------------------------------------------


def test_where_nothing_fits_the_smallest_and_the_first_cluster_are_named():
    found, now = shown({"gpus": 8}), setting(gpus=8)
    assert not found["values"]["fits"] and found["values"]["smallest"]["gb"] == now.found.over[0].bytes / 1e9
    assert "**nothing fits.**" in found["sentence"] and "From **32 GPUs** on it fits" in found["sentence"]
    assert setting(gpus=16).best is None and setting(gpus=32).best is not None
    assert found["levers"]["price"] == {"off": "nothing fits, so there is no run"}
    assert float(marks(found["svg"])["room line"].get("y1")) > float(marks(found["svg"])["best"].get("cy"))


def test_one_gpu_has_three_layouts():
    values = shown({"model": "gpt2-xl", "gpus": 1})["values"]
    assert values["layouts"] == 3 and values["best"]["dp"] == values["best"]["tp"] == 1


def test_an_impossible_pick_says_what_would_work():
    found = shown(BIG | {"zero": 3})
    assert "Yours cannot be." in found["sentence"]
    assert "take a multiple of 16,384 sequences" in found["values"]["yours"]["refused"]
    assert "Yours cannot be: " in told("figures", **BIG)["blocks"][0][1]


def test_learned_positions_end_a_sequence():
    assert shown({"model": "gpt-3-175b"})["values"]["seq"] == 2048 == PRESETS["gpt-3-175b"].max_seq


# --- published --------------------------------------------------------------------------------------------------


def test_published_runs_are_those_of_the_book():
    mesh, fp8 = (json.loads((PUBLISHED / name).read_text()) for name in ("mesh.json", "fp8.json"))
    rows = {"llama-3-8b": "8B", "llama-3-70b": "70B", "gpt-3-175b": "175B"}
    for runs in published.RUNS:
        row = mesh["h100"]["rows"][rows[runs.model]]
        gpus, seconds = row.get("gpus"), row.get("seconds")
        if "steps" in row:
            gpus, seconds = fp8["steps"][row["steps"]]["gpus"], fp8["steps"][row["steps"]]["bf16_seconds"]
        assert runs.seconds == dict(zip(gpus, seconds, strict=True)) and runs.seq == row["seq"]
        at = runs.layout
        assert (at.tp, at.cp, at.pp, at.chunks, at.m) == tuple(row.get(k, 1) for k in ("tp", "cp", "pp", "chunks", "m"))
        whole = at.tp * at.cp * at.pp
        assert runs.each * whole == row["m"] * row["batch"], "sequences of a GPU"


def test_the_published_run_of_this_job_is_drawn_with_its_error():
    run = published.beside(setting())
    _, time, seconds = next(row for row in mesh_rows.h100("70B") if row[0] == 512)
    assert (run.seconds, run.told) == (seconds, time.seconds) == (14.89, pytest.approx(14.65, abs=0.01))
    found = marks(shown()["svg"])
    assert "published" in found and found["said published"].text == "NVIDIA ran: 14.9 s, here 14.6 s"
    assert "published" not in marks(shown({"sequences": 512})["svg"])


# --- beneath ----------------------------------------------------------------------------------------------------


def test_the_strip_has_a_column_for_each_cluster_and_a_button_for_each_other():
    found = clusters.columns(setting(**SMALL))
    assert [gpus for gpus, _, _ in found] == [2**k for k in range(15)]
    assert all(best is None or best.layout.ranks == gpus for gpus, best, _ in found)
    for picture, count in zip(told("clusters", **SMALL)["blocks"][1][1:], (14, 7), strict=True):
        buttons = ET.fromstring(picture).findall(".//*[@data-press]")
        assert len(buttons) == count and all(one.get("data-press") != "gpus=64" for one in buttons)


def test_a_kept_layout_is_never_quicker_than_one_planned_again():
    now = setting()
    for change, stays, then, best in clusters.gains(now):
        assert stays is None or then > stays - 0.0101, change  # the best is the simplest of those within 1%
        assert best is None or best.fits
    gains = {change: then for change, _, then, _ in clusters.gains(now)}
    assert gains["network half as fast"] <= 0.0101 and gains["links in a node half as fast"] < 0
    assert gains["network twice as fast"] > -0.0101 < gains["a card of 141 GB"]


def test_one_step_away_is_priced_as_if_it_were_yours():
    now = setting()
    rows = told("away")["blocks"][0][2]
    assert [name for name, _ in rows] == [name for name, _ in costs.steps(cuts_of(now.best))]
    job = now.job
    words = dict(rows)
    assert words["tp 2"] == f"does not fit by {cut(job, tp=2, cp=2, pp=4).over / 1e9:.0f} GB"
    ratio = cut(job, tp=4, cp=2, pp=4, checkpointing="full").seconds / now.best.seconds
    assert words["recompute every block"].startswith(f"+{100 * (ratio - 1):.0f}%: recomputes")


def test_why_the_best_is_cut_so(opening):
    job, found = opening
    best = found.best.layout
    assert (best.tp, best.cp, best.pp) == (4, 2, 4)
    said = told("cut")["blocks"][2][1]
    for axis, half in (("tp", 2), ("cp", 1), ("pp", 2)):
        other = cut(job, **{"tp": 4, "cp": 2, "pp": 4, axis: half})
        assert f"{axis} {half}: does not fit by {other.over / 1e9:.0f} GB" in said
    alone = min((cut(job, zero=3, checkpointing=how) for how in ("none", "selective", "full")),
                key=lambda plan: (not plan.fits, plan.seconds))  # fmt: skip
    assert f"FSDP alone: +{100 * (alone.seconds / found.best.seconds - 1):.0f}%" in said
    assert len(told("cut", model="gpt2-xl", gpus=1)["blocks"]) == 2


def test_the_figures_add_up_and_a_run_costs_what_its_rate_says():
    _, heads, rows = told("figures")["blocks"][0]
    assert heads == ["", "best", "yours"] and rows[-1][1:] == ["**14.5 s**", "**18.4 s**"]
    run = shown({"tokens": 2.0, "price": 3.0, "watts": 1000.0})["values"]["run"]
    seconds = 2e12 / (1024 * 8192) * shown()["values"]["best"]["seconds"]
    assert run["hours"] == pytest.approx(seconds / 3600) and run["gpu_hours"] == pytest.approx(512 * run["hours"])
    assert run["price"] == pytest.approx(3 * run["gpu_hours"]) and run["mwh"] == pytest.approx(run["gpu_hours"] / 1000)


def test_a_layout_is_launched_or_the_program_says_what_it_cannot():
    now = setting()
    found = {name: (lines, cannot) for name, lines, cannot in launch.commands(now, now.best)}
    assert "--tensor-model-parallel-size 4" in found["Megatron-LM"][0] and "no context" in found["this book's job"][1]
    assert all(bool(lines) is not bool(cannot) for lines, cannot in found.values())
    kinds = [kind for kind, *_ in told("launch")["blocks"]]
    assert kinds.count("fold") >= 4 and kinds[0] == "words"


def test_a_layout_opens_in_the_chapter_where_its_picture_takes_it():
    if "mesh" not in views.stems():
        pytest.skip("no view of ranks")
    now = setting(**SMALL, tp=2, zero=1, recompute="none")
    address = launch.ranks(now, now.yours)
    given = dict(one.split("=") for one in address.partition("?")[2].split("&"))
    assert given["gpus"] == "64" and given["tp"] == "2" and given["model"] == "llama-3-8b"


def test_the_opening_s_best_opens_there_too_with_as_many_chunks_as_that_picture_has():
    now = setting()
    most = next(one["hi"] for one in views.spec("mesh")["controls"] if one["name"] == "chunks")
    assert launch.CHUNKS == most < now.best.layout.chunks
    said = {words: address for kind, words, *address in told("launch")["blocks"] if kind == "link"}
    address, = said["the best: see its ranks and what they send, with fewer chunks"]
    given = dict(one.split("=") for one in address.partition("?")[2].split("&"))
    assert given["chunks"] == str(most) and given["pp"] == str(now.best.layout.pp)


def test_sections_are_html_without_a_reader_s_markup():
    for column in planner.SECTIONS:
        for name in column:
            found = blocks.html(told(name))
            assert found.startswith("<h2>") and "<script" not in found and "**" not in found
    assert blocks.html({"title": "a < b", "blocks": [("words", "**<i>**")]}) == (
        "<h2>a &lt; b</h2><p><strong>&lt;i&gt;</strong></p>")  # fmt: skip
    with pytest.raises(ValueError, match=r"has no section \['gone'\]: use one of cut, clusters"):
        views.prepare("planner", {}, ["gone"])
    with pytest.raises(ValueError, match="has no section 'gone': use one of cut, clusters"):
        told("gone")


# --- the picture ------------------------------------------------------------------------------------------------


def test_labels_hide_as_little_as_can_be():
    points = [(x, 40.0) for x in range(60, 200, 4)]
    spots = Spots((0, 0, 300, 100), points, taken=[(0, 0, 300, 20)])
    first = ET.fromstring(f"<g>{spots.say(100, 40, ('a name',), 'ink', 'one')}</g>")
    assert abs(float(first.find("text").get("y")) - 40) > 12, "not on the row of points"
    assert spots.say(100, 40, ("much too long " * 9, ""), "ink", "two").count("too long") == 0


def test_names_do_not_meet():
    for params in ({}, BIG, {"gpus": 8}, *by_chance("planner", 6, 3)):
        for width in (svg.WIDE, svg.NARROW):
            said = [one for name, one in marks(shown(params, width)["svg"]).items() if name.startswith("said ")]
            spots = [(float(one.get("x")), float(one.get("y")), svg.measure(one.text, svg.SMALL, True)) for one in said]
            boxes = [(x, y - 11, x + long, y + 3) for x, y, long in spots]
            for i, a in enumerate(boxes):
                assert a[0] >= 0 and a[2] <= width
                assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in boxes[:i]), params
