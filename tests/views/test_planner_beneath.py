"""What the view `planner` tells beneath its picture: other clusters, what if, one step away, figures, how to run it."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from planner_views import SMALL, opening, setting, shown, told
from repo import ROOT

from scaleout import views
from scaleout.timing.job import step
from scaleout.timing.search import ALIKE, cut
from scaleout.views import blocks, planner
from scaleout.views.planner import clusters, costs, launch
from scaleout.views.planner.setting import cuts_of, job_of, kept, picked
from scaleout.words.amounts import took


def test_the_strip_has_a_column_for_each_cluster_and_a_button_for_each_other():
    found = clusters.columns(setting())
    assert [gpus for gpus, _, _ in found] == [2**k for k in range(15)]
    assert all(best is None or best.layout.ranks == gpus for gpus, best, _ in found)
    for picture, count in zip(told("clusters")["blocks"][1][1:], (14, 7), strict=True):
        buttons = ET.fromstring(picture).findall(".//*[@data-press]")
        assert len(buttons) == count and all(one.get("data-press") != "gpus=512" for one in buttons)


def test_a_kept_layout_is_never_faster_than_one_planned_again():
    now = setting()
    found = clusters.gains(now)
    for change, stays, then, best in found:
        assert stays is None or then >= stays, change
        assert best is None or best.fits
    kept = {change: stays for change, stays, *_ in found}
    for change, slower in (
        ("network half as fast", True),
        ("links in a node half as fast", True),
        ("network twice as fast", False),
        ("a GPU of 141 GB", False),
    ):  # with as many chunks: a slower link never makes the layout faster
        ask = job_of(clusters.changed(now.question, change)).job
        same = now.best.seconds / step(replace(now.best.job, cluster=ask.cluster, device=ask.device)).seconds - 1
        assert (same <= 0 >= kept[change]) if slower else (0 <= same <= kept[change] + ALIKE), change
    assert kept["links in a node half as fast"] < kept["network half as fast"] < 0
    assert kept["half the sequences"] < 0 < kept["twice the sequences"]


def test_a_kept_layout_keeps_its_chunks_and_another_number_is_said():
    now = setting()
    chunks = now.best.layout.chunks
    for change in ("network half as fast", "half the sequences"):
        assert kept(clusters.changed(now.question, change), now.best).layout.chunks == chunks
    faster = picked(clusters.changed(now.question, "half the sequences"), cuts_of(now.best))
    assert faster.layout.chunks != chunks
    drawn = told("what-if")["blocks"][1][1]
    then = {
        change: best.layout.chunks for change, _, _, best in clusters.gains(now) if cuts_of(best) == cuts_of(now.best)
    }
    assert {"network half as fast", "half the sequences"} <= then.keys()
    for found in then.values():
        more = f", {found} chunks per stage" * (found != chunks)
        assert f"the same layout{more}<" in drawn


def test_one_step_away_is_priced_as_if_it_were_yours():
    now = setting()
    best, words = cuts_of(now.best), dict(told("away")["blocks"][0][2])
    assert list(words) == [name for name, _ in costs.steps(best)]
    for name, cuts in costs.steps(best):
        plan = picked(now.question, cuts)
        if not plan.fits:
            assert words[name] == f"does not fit by {plan.over / 1e9:.0f} GB"
            continue
        more = plan.seconds / now.best.seconds - 1
        said = plan.cannot.split(":")[0] or f"{100 * more:+.{1 if abs(more) < 0.1 else 0}f}%: " + (
            "equal within the band" if now.result.equal(plan) else plan.loses_by(now.best)
        )
        assert words[name] == said
    assert any("does not fit" in one for one in words.values()) and any("equal" in one for one in words.values())


def test_why_the_best_is_cut_so():
    job, found = opening()
    best = found.best.layout
    said = told("cut")["blocks"][2][1]
    degrees = {"tp": best.tp, "cp": best.cp, "pp": best.pp}
    halves = {axis: degree // 2 for axis, degree in degrees.items() if degree > 1}
    assert halves
    for axis, half in halves.items():
        other = cut(job, 1024, **degrees | {axis: half}, zero=best.zero, checkpointing=found.best.checkpointing)
        assert f"{axis} {half}: {costs.fate(setting(), other)}" in said
    alone = min(
        (cut(job, 1024, zero=3, checkpointing=how) for how in ("none", "selective", "full")),
        key=lambda plan: (not plan.fits, plan.seconds),
    )
    more = alone.seconds / found.best.seconds - 1
    assert alone.checkpointing == "full"
    assert f"FSDP alone, full recomputation: {100 * more:+.{1 if abs(more) < 0.1 else 0}f}%" in said
    assert len(told("cut", model="gpt2-xl", gpus=1)["blocks"]) == 2


def test_the_figures_add_up_and_a_run_costs_what_its_rate_says():
    now = setting()
    _, heads, rows = told("figures")["blocks"][0]
    assert heads == ["", "best", "yours"]
    assert rows[-1][1:] == [f"**{took(plan.seconds)}**" for plan in (now.best, now.yours)]
    assert ("link", "how good these numbers are", "accuracy.html") in told("figures")["blocks"]
    assert (ROOT / "book" / "accuracy.md").exists(), "beside the planner's page"
    run = shown({"tokens": 2.0, "price": 3.0, "watts": 1000.0})["values"]["run"]
    seconds = 2e12 / (1024 * 8192) * shown()["values"]["best"]["seconds"]
    assert run["hours"] == pytest.approx(seconds / 3600) and run["gpu_hours"] == pytest.approx(512 * run["hours"])
    assert run["price"] == pytest.approx(3 * run["gpu_hours"]) and run["mwh"] == pytest.approx(run["gpu_hours"] / 1000)


@pytest.mark.parametrize(
    ("program", "names", "asked"),
    [
        ("megatron", ["Megatron-LM"], "--tp-comm-overlap"),
        ("compiled", ["torchtitan"], "--compile.enable"),
        ("eager", ["torchtitan", "this book's job"], "-m torchtitan.train"),
        ("huggingface", ["Accelerate"], "--use-fsdp"),
    ],
)
def test_what_is_printed_is_run_by_the_program_that_was_priced(program, names, asked):
    now = setting(program=program)
    found = launch.commands(now, now.best)
    assert [name for name, _, _ in found] == names and asked in found[0][1] and found[0][2] == ""
    assert all(bool(lines) is not bool(cannot) for _, lines, cannot in found)
    shown_blocks = told("launch", program=program)["blocks"]
    assert shown_blocks[0][0] == "words" and any(one[0] == "fold" for one in shown_blocks)
    assert shown_blocks[-1][1].startswith("Other programs have other step times: choose ")


def test_what_a_program_cannot_run_is_said_in_its_place():
    blocks = told("launch", **SMALL, program="compiled", tp=2, zero=1)["blocks"]
    assert any(
        kind == "words" and "torchtitan cannot run it: torchtitan splits gradients too" in text
        for kind, text, *_ in blocks
    )


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
    assert rf"show(\"mesh\", key=\"{name}\"" in chapter.read_text("utf-8")


def test_a_layout_with_more_chunks_opens_there_with_as_many_as_that_picture_has():
    now = setting()
    most = next(one["hi"] for one in views.spec("mesh")["controls"] if one["name"] == "chunks")
    plan = next(plan for plan in now.result.plans if plan.layout.chunks > most and cuts_of(plan) != cuts_of(now.best))
    assert most == launch.CHUNKS
    own = cuts_of(plan)._asdict()
    said = {words: address for kind, words, *address in told("launch", **own)["blocks"] if kind == "link"}
    (address,) = said["your layout: its ranks and what they communicate, with fewer chunks"]
    given = dict(one.split("=") for one in address.partition("?")[2].split("&"))
    assert given["chunks"] == str(most) and given["pp"] == str(plan.layout.pp)


def test_sections_are_html_without_a_reader_s_markup():
    for column in planner.SECTIONS:
        for name in column:
            found = blocks.html(told(name))
            assert found.startswith("<h2>") and "<script" not in found and "**" not in found
    assert blocks.html({"title": "a < b", "blocks": [("words", "**<i>**")]}) == (
        "<h2>a &lt; b</h2><p><strong>&lt;i&gt;</strong></p>"
    )
    with pytest.raises(ValueError, match=r"has no section \['gone'\]: use one of cut, clusters"):
        views.prepare("planner", {}, ["gone"])
    with pytest.raises(ValueError, match="has no section 'gone': use one of cut, clusters"):
        told("gone")


@pytest.mark.parametrize(("seq", "offered"), [(1024, True), (2048, False)])
def test_what_if_offers_no_sequences_that_have_no_positions(seq, offered):
    """GPT-3 has a table of 2,048 positions."""
    question = setting(model="gpt-3-175b", seq=seq).question
    assert (clusters.changed(question, "sequences twice as long") is not None) == offered
