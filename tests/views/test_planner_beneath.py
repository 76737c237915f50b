"""What the view `planner` tells beneath its picture: other clusters, what if, one step away, figures, how to run it."""

import xml.etree.ElementTree as ET

import pytest
from planner_views import SMALL, opening, setting, shown, told
from repo import ROOT

from scaleout import views
from scaleout.timing.mesh_search import cut
from scaleout.views import blocks, planner
from scaleout.views.planner import clusters, costs, launch
from scaleout.views.planner.setting import cuts_of


def test_the_strip_has_a_column_for_each_cluster_and_a_button_for_each_other():
    found = clusters.columns(setting())
    assert [gpus for gpus, _, _ in found] == [2**k for k in range(15)]
    assert all(best is None or best.layout.ranks == gpus for gpus, best, _ in found)
    for picture, count in zip(told("clusters")["blocks"][1][1:], (14, 7), strict=True):
        buttons = ET.fromstring(picture).findall(".//*[@data-press]")
        assert len(buttons) == count and all(one.get("data-press") != "gpus=512" for one in buttons)


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


def test_why_the_best_is_cut_so():
    job, found = opening()
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


def test_the_chapter_has_the_picture_that_a_layout_opens_in():
    page, _, name = launch.CHAPTER.partition("#live-")
    chapter = ROOT / "notebooks" / page.rpartition("/")[2].replace(".html", ".ipynb")
    assert rf'show(\"mesh\", key=\"{name}\"' in chapter.read_text("utf-8")


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
