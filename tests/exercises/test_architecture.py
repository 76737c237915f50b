"""The answers of `architecture`'s exercises, against the stored trace, published counts, and arithmetic by hand."""

import json
from functools import partial
from random import Random
from statistics import median

import answers
import pytest
from repo import text

from scaleout import exercises
from scaleout.exercises.architecture import failures, recorded, stories
from scaleout.timing import reliability, stragglers

value = partial(answers.value, "architecture")
right = partial(answers.right, "architecture")
solution = partial(answers.solution, "architecture")
PUBLISHED = json.loads(text("tests/published/interruptions.json"))
RUN = stragglers.stored()


def ms(seconds):
    return round(1e3 * seconds)


def test_shares_of_interruptions_are_those_of_the_published_counts():
    llama = PUBLISHED["llama3"]
    assert (
        sum(llama["counts"].values()) == llama["unexpected"] == failures.ALL and llama["all"] == failures.WITH_PLANNED
    )
    assert {name: llama["counts"][name] for name in failures.GPU_ROWS} == failures.GPU_ROWS
    assert value("misprint") == pytest.approx(268 / 419)
    first = llama["counts"]["Faulty GPU"] / llama["unexpected"]
    wrong = value("misprint") - first + llama["printed_share_of_first_row"]  # the misprint explains the printed share
    assert wrong == pytest.approx(llama["printed_share_of_gpus"], abs=2e-3)


def test_times_between_failures_are_those_of_the_published_rate():
    rate = PUBLISHED["meta"]["failures_per_1000_node_days"]["RSC-1"]
    projected = PUBLISHED["meta"]["hours_between_failures"]
    assert rate == failures.RATE
    assert value("projected") / 3600 == pytest.approx(projected["16384 GPUs, projected"], rel=0.01)
    assert value("projected") / 3600 / 8 == pytest.approx(projected["131072 GPUs, projected"], rel=0.03)


def test_the_effective_ratio_is_the_packages():
    per_day = 1440
    found = reliability.effective_ratio(256, 6.5e-3, 40 / per_day, 3 / per_day, 20 / per_day)
    assert value("effective-ratio") == pytest.approx(found)
    mtbf = 86_400 / (256 * 6.5e-3)
    assert found == pytest.approx(reliability.effective_time(mtbf, 2400, 180, 1200)["work"], rel=0.01)


def test_pauses_that_are_staggered_by_chance():
    random, slow, steps = Random(5), 0, 4000
    for _ in range(steps):
        slow += any(random.random() < 1 / stories.APART for _ in range(stories.PROCESSES))
    assert value("staggered") == pytest.approx(slow / steps, abs=0.025)


def test_a_save_costs_what_its_steps_are_longer():
    marin = PUBLISHED["marin_9205"]
    assert (
        round(marin["median_step_s"], 1),
        round(marin["median_step_while_saving_s"], 1),
    ) == (stories.USUAL, stories.SAVING)
    assert value("background-save") == pytest.approx(1.2 + 4 * (20.6 - 16.9))
    assert value("bytes-of-text") == 512 * 8000 * 4


def test_the_figures_of_the_recorded_run_are_the_traces():
    for table, read in ((recorded.OWN, lambda row: row.seconds), (recorded.IN_ALL_REDUCE, lambda row: row.waited)):
        for rank, figures in table.items():
            assert tuple(ms(read(RUN.steps[step][rank])) for step in recorded.CLOCK_STEPS) == figures
    for step, figures in recorded.LINK_STEPS.items():
        assert tuple(ms(row.waited) for row in RUN.steps[step]) == figures
    for step, figures in recorded.GAIN_STEPS.items():
        assert tuple(ms(row.collectives[0][0] - row.start) for row in RUN.steps[step]) == figures


def test_what_happened_in_the_recorded_run_is_what_the_answers_say():
    assert RUN.steps[9][0].local(stragglers.SAVE) > 0.15 and right("whose-clock") == "rank-0"
    others = [row.waited for row in RUN.steps[10][1:]]
    assert RUN.steps[10][0].waited < min(others) / 4
    assert "steps 14 to 16" in RUN.made and right("rank-or-link") == "link"
    assert min(recorded.LINK_STEPS[14]) - min(recorded.LINK_STEPS[13]) == 48
    assert RUN.steps[8][7].local(stragglers.COLLECT) > 0.15


def test_what_the_slow_rank_costs_is_the_replays():
    saved = solution("replay")
    work = [[one / 1e3 for one in recorded.GAIN_STEPS[step]] for step in (6, 7, 8)]
    assert value("what-it-costs") == pytest.approx(saved(work, 0.03, recorded.SLOW))
    fixed = stragglers.what_if(RUN, lambda r, s, part: r == 5 and s in (6, 7, 8) and part != stragglers.TRANSFER)
    assert value("what-it-costs") == pytest.approx(RUN.seconds - fixed.seconds, abs=0.012)  # parts, each by its median


def test_who_began_is_the_packages_first_value_that_is_not_finite():
    began = solution("who-began")
    random = Random(3)
    for _ in range(100):
        ranks, steps = random.randint(2, 6), random.randint(1, 6)
        bad_step, bad_rank = random.randrange(steps), random.randrange(ranks)
        finite = [
            [int(not (s > bad_step or (s, r) == (bad_step, bad_rank))) for r in range(ranks)] for s in range(steps)
        ]
        assert list(began(finite)) == [bad_step, bad_rank]


def test_scores_are_the_packages():
    scores = solution("two-scores")
    seconds = [[row.local(stragglers.COMPUTE) for row in rows] for rows in RUN.steps]
    for rank, (_, individual) in enumerate(scores(seconds)):
        assert individual == pytest.approx(stragglers.individual(RUN, rank)[-1])
    last = stragglers.Trace(RUN.steps[-1:])
    assert [relative for relative, _ in scores(seconds)] == pytest.approx(stragglers.relative(last))


def test_with_three_ranks_or_more_the_median_is_never_last():
    saved, random = solution("replay"), Random(2)
    for _ in range(50):
        work = [[random.uniform(0.1, 1) for _ in range(random.randint(3, 7))] for _ in range(3)]
        for rank in range(3):
            without = sum(max(row) - max(one for r, one in enumerate(row) if r != rank) for row in work)
            assert saved(work, 0.1, rank) == pytest.approx(without)
            assert saved(work, 0.1, rank) <= sum(max(0.0, row[rank] - median(row)) for row in work) + 1e-12


def test_rings_cross_at_least_once_per_node_that_they_visit():
    crossings = solution("ring-crossings")
    cyclic, block = [rank % 4 for rank in range(32)], [rank // 8 for rank in range(32)]
    tensor, data = list(range(8)), [0, 8, 16, 24]
    assert [crossings(ring, cyclic) for ring in (tensor, data)] == [8, 0]  # what `round-robin` says
    assert [crossings(ring, block) for ring in (tensor, data)] == [0, 4] and right("round-robin") == "tensor"


def test_three_logs_are_off_by_what_their_mistakes_do():
    prompt = exercises.exercise("architecture", "three-logs").prompt
    assert "76%" in prompt and "9.5%" in prompt and "45%" in prompt and right("three-logs") == "ncm"
