"""What a class plan tells the instructor to expect: right and wrong answers, figures on the screen, a broken line."""

import contextlib
import io
import json
import re

import pytest
from repo import ROOT, text

from scaleout import exercises, views
from scaleout.records import results
from scaleout.timing import profile

PLAN = text("book/instructor/collectives.md")
ROW = re.compile(r"^\| ([^|]+) \| ([\d.]+[^|]*) \| ([\d.]+[^|]*) \| ([^|]+) \|$", re.M)
ROWS = ROW.findall(PLAN)
PLANS = {stem: text(f"book/instructor/{stem}.md") for stem in ("collectives", "tensor", "pipeline", "zero")}
EVERY_ROW = [(stem, *row[:3]) for stem, plan in PLANS.items() for row in ROW.findall(plan)]
KEYS = {one.title: one.key for one in exercises.catalogue("collectives")}


@pytest.mark.parametrize(("stem", "title", "right", "wrong"), EVERY_ROW)
def test_a_wrong_answer_to_expect_is_one_that_the_checker_names(stem, title, right, wrong):
    key = next(one.key for one in exercises.catalogue(stem) if one.title == title)
    assert exercises.check(stem, key, right)["ok"]
    assert exercises.check(stem, key, wrong)["slip"] in [slip.name for slip in exercises.exercise(stem, key).slips]


def test_each_plan_has_wrong_answers_and_names_exercises_that_there_are():
    for stem, plan in PLANS.items():
        titles = {one.title for one in exercises.catalogue(stem)} | {"Predict", "For a room"}
        named = set(re.findall(r"\*([A-Z0-9][^*]+)\*(?!\*)", plan))
        assert len(ROW.findall(plan)) >= 5 and len(named) > 7, stem
        assert not {one for one in named if one.rstrip(",.") not in titles and one not in titles}, stem


def test_the_two_wrong_answers_are_slips_of_the_question_and_of_exercises():
    assert len(ROWS) == 7
    slips = {round(value, 3): words for value, words in views.question("collectives")["slips"]}
    assert {0.875, 7.0} <= set(slips), slips
    for key, half in (("ring-bytes", "1.25 GB"), ("ring-steps", "15")):
        assert exercises.check("collectives", key, half)["slip"] == "forgot-all-gather" and half.split()[0] in PLAN


def test_the_figures_to_expect_are_the_recorded_ones():
    run = results.load(ROOT / "labs/results/collectives/cpu-cpu-2.json")
    for who, words in (("gloo", "272 µs and moves 1.47 GB/s"), ("ring", "471 µs and 1.32 GB/s")):
        point = re.compile(rf"{who} all_reduce, (\d+) B: seconds, its line")
        swept = [(int(found[1]), took) for name, took in run.measurement.items() if (found := point.fullmatch(name))]
        line = profile.fit(sorted(swept))
        alpha, rate = re.findall(r"[\d.]+", words)
        assert f"{line['alpha_seconds'] * 1e6:.0f}" == alpha and f"{1e-9 / line['seconds_per_byte']:.2f}" == rate
        assert words in PLAN and f"{max(swept)[0] / max(swept)[1] / 1e9:.2f}" == "1.39"


def test_a_ring_with_the_sign_turned_passes_no_sum_on():
    cells = json.loads(text("notebooks/10_collectives.ipynb"))["cells"]
    source = "".join(next(cell for cell in cells if cell["id"] == "collectives-ring")["source"])
    assert "(rank - step) % ranks" in source and "(rank + step) % ranks" in PLAN
    ring = source[source.index("def ring") : source.index("\n\n")].splitlines()
    assert len(ring) == 14 and "14 lines" in source and "fourteen lines" in PLAN
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source.replace("(rank - step)", "(rank + step)"), names)
    assert max(len(part) for mine in names["held"] for part in mine) == 2
