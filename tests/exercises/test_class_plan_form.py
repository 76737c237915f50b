"""Class plans are of one form: the same parts, minutes that follow each other, and what to do without GPUs."""

import re
from itertools import pairwise

from repo import ROOT, text

from scaleout import exercises
from scaleout.page import ladder
from scaleout.records import results

PLANS = {
    path.stem: path.read_text("utf-8")
    for path in sorted((ROOT / "book" / "instructor").glob("*.md"))
    if path.stem != "index"
}
FORM = ["The day before", "Minute by minute", "Two wrong answers to expect", "What to expect on the screen",
        "Where people get stuck", "If you have GPUs"]  # fmt: skip


def test_each_plan_is_of_one_form():
    titles = {rung["stem"]: (rung["number"], rung["title"].lower()) for rung in ladder.rungs()}
    listed = text("book/instructor/index.md")
    for stem, plan in PLANS.items():
        heads = re.findall(r"^## (.+)$", plan, re.M)
        assert heads[:-1] == FORM and re.fullmatch(r"If you have \d+ minutes", heads[-1]), stem
        number, title = titles[stem]
        assert plan.splitlines()[0].lower() == f"# class plan: {title}" and f"\nRung {number}. At the end, each" in plan
        assert f"- [rung {number}: {title}]({stem}.md)" in listed.lower()
        spans = [(int(a), int(b)) for a, b in re.findall(r"^\| (\d+)–(\d+) \|", plan, re.M)]
        assert spans[0][0] == 0 and all(a[1] == b[0] < b[1] for a, b in pairwise(spans)), stem
        assert f"**Time:** {spans[-1][1]} minutes" in plan, stem


def test_each_plan_says_what_to_do_when_the_gpus_do_not_come():
    for stem, plan in PLANS.items():
        words = re.search(r"^If the GPUs do not come, (.+)$", plan, re.M)
        assert words and len(words[1]) > 150, stem
    slow = {rate: results.load(ROOT / f"labs/results/tensor/smoke-2-hosts-{rate}-mbit.json") for rate in (1000, 200)}
    seconds = [run.measurement["seconds per step"] for run in slow.values()]
    assert "{:.2f} and {:.2f} s per step".format(*seconds) in PLANS["tensor"]
    link = results.load(ROOT / "labs/results/mesh/smoke-cpu-8-link.json").measurement
    seconds = [link[f"seconds per step, {axis} across, 50 Mbit/s"] for axis in ("pp", "dp", "tp")]
    assert "{:.2f}, {:.2f} and {:.2f} s per step".format(*seconds) in PLANS["mesh"]


# "*One* (3)", "*One* and *Two* (2 minutes each)", "*One*, in pairs, on paper (10)"
MINUTES = re.compile(
    r"((?:\*[A-Z0-9][^*]+\*(?: and |, )?)+)(?:,? (?:by show of hands|in pairs|on paper))*,? "
    r"\((\d+)(?: minutes)?( each)?\)"
)


def test_a_plan_gives_an_exercise_the_minutes_that_its_page_says():
    for stem in PLANS:
        page = {exercise.title: exercises.spec(stem, exercise.key)["minutes"] for exercise in exercises.catalogue(stem)}
        matches = MINUTES.findall(PLANS[stem])
        assert len(matches) > 3, stem
        for words, minutes, for_each in matches:
            titles = re.findall(r"\*([^*]+)\*", words)
            for title in titles if for_each else titles[-1:]:
                assert page[title] == int(minutes), (stem, title)


def test_a_chapter_says_the_minutes_of_its_exercises():
    for stem in PLANS:
        chapter = next((ROOT / "notebooks").glob(f"*_{stem}.ipynb")).read_text("utf-8")
        minutes = [(exercise.short, exercise.spec()["minutes"]) for exercise in exercises.catalogue(stem)]
        stated = int(re.search(r"whole chapter \| \d+ min \| (\d+) min", chapter)[1])
        assert abs(stated - sum(one for _, one in minutes)) < 5, (stem, stated)
        read, tasks = map(int, re.search(r"short path \| (\d+) min \| (\d+) min", chapter).groups())
        assert tasks == sum(one for short, one in minutes if short) > 0 and 30 <= read + tasks <= 40, stem
