"""The view of the whole system: the recorded run, its replay, and a day of such steps."""

import re

import pytest

from scaleout import views
from scaleout.timing import reliability, stragglers
from scaleout.views.architecture import levers
from scaleout.views.architecture.setting import Setting


def setting(**changes):
    return Setting.of(views.defaults("architecture") | changes)


def values(**changes):
    return views.render("architecture", changes)["values"]


def test_the_culprit_is_the_rank_with_the_shortest_all_reduce():
    found = values()
    assert found["culprit"] == found["now"] == found["waited_s"].index(min(found["waited_s"])) == 5
    question = views.question("architecture")
    assert (question["answer"], question["words"]) == (5, "rank 5")
    longest = float(found["waited_s"].index(max(found["waited_s"])))
    assert "arrives early" in dict(question["slips"])[longest]


@pytest.mark.parametrize("rank", range(8))
def test_what_a_replacement_gives_is_the_replays(rank):
    run = stragglers.stored()
    expected = stragglers.what_if(run, lambda r, _step, part: r == rank and part != stragglers.TRANSFER)
    assert values(rank=str(rank))["mean_ms"] == pytest.approx(1e3 * expected.seconds / len(run.steps))
    assert values(rank=str(rank))["gain_percent"] >= -1e-9


def test_replacing_one_part_saves_no_more_than_all_parts():
    for part in ("compute", "save", "collect", "input"):
        assert values(rank="every", part=part)["mean_ms"] > values(rank="every")["mean_ms"]
    alone, everybody = (values(rank=rank, part="transfer")["mean_ms"] for rank in ("2", "every"))
    assert (
        alone == everybody
        and "takes" in views.render("architecture", {"rank": "2", "part": "transfer"})["levers"]["rank"]
    )


def test_the_next_culprit_appears_once_the_first_is_replaced():
    after = values(rank="5")
    assert (after["now"], after["cause"]) == (0, "save") and after["culprit"] == 5
    assert values(rank="every")["now"] is None


def test_a_day_is_the_reliability_models_and_stragglers_are_of_its_work():
    found = setting(nodes=1024)
    shares = reliability.effective_time(found.mtbf, 3600.0, 60.0, 900.0)
    assert found.day["work"] + found.day["stragglers"] == pytest.approx(shares["work"])
    assert found.day["lost"] == shares["lost"] and found.mtbf == pytest.approx(86_400 / (1024 * 6.5e-3))
    assert setting(rank="every").day["stragglers"] == pytest.approx(0, abs=1e-9)
    days = [setting(nodes=nodes).steps_per_day for nodes in (16, 512, 4096)]
    assert days == sorted(days, reverse=True) and setting(rank="5").steps_per_day > setting().steps_per_day


@pytest.mark.parametrize("rank", ["none", "0", "3", "5"])
def test_the_lever_that_is_named_gives_what_is_said(rank):
    chosen = setting(rank=rank)
    lever, words = levers.advice(chosen), levers.sentence(chosen)
    if lever is None:
        assert not words.startswith("Try")
        return
    saved = 1 - chosen.other(**lever.change).mean / chosen.mean
    assert re.search(r"falls by (\d+)%", words)[1] == f"{100 * saved:.0f}" and saved >= levers.WORTH


def test_a_row_of_the_picture_is_a_button_that_replaces_its_rank():
    shown = views.render("architecture", {"rank": "5"})["svg"]
    assert 'data-press="rank=none"' in shown and 'data-press="rank=0"' in shown
    assert "data-press" not in views.question("architecture")["pictures"][0]


def test_nothing_is_replaced_until_a_rank_is_chosen():
    assert "off" in views.render("architecture")["levers"]["part"]
    assert "part" not in views.render("architecture", {"rank": "0"})["levers"]
