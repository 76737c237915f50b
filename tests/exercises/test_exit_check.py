"""The exit check of `capstone` and the grade of a prediction, on Records of real runs and on changed ones."""

import json

import pytest
from cases import each
from repo import ROOT

from scaleout.exercises.capstone import exit_check

RECORDED = ROOT / "labs" / "results" / "ddp"
STRONG = [RECORDED / f"smoke-scaling-cpu-strong-{n}.json" for n in (1, 2, 4)]
WEAK = [RECORDED / f"smoke-scaling-cpu-weak-{n}.json" for n in (1, 2)]


def changed(path, **fields):
    """A Record's text with other fields."""
    return json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields)


def names(outcome):
    return [lack.name for lack in outcome.missing]


def median(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    steps = sorted(data["step_seconds"][data["warmup_steps"] :])
    return (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2


STRONG_SHARE = median(STRONG[0]) / median(STRONG[2]) / 4


def test_recorded_runs_satisfy_it_with_the_efficiency_that_they_have():
    outcome = exit_check.exit_check(STRONG, efficiency=STRONG_SHARE)
    assert outcome.ok and "right: " in outcome.words()
    assert [(kind, ranks) for kind, ranks, *_ in outcome.rows] == [("strong", 1), ("strong", 2), ("strong", 4)]
    assert [share for *_, share in outcome.rows] == pytest.approx(
        [1, median(STRONG[0]) / median(STRONG[1]) / 2, STRONG_SHARE]
    )
    for texts in ([path.read_text(encoding="utf-8") for path in STRONG], [str(path) for path in STRONG]):
        assert exit_check.exit_check(texts, efficiency=STRONG_SHARE) == outcome
    assert exit_check.exit_check([*STRONG, *WEAK], efficiency=STRONG_SHARE).ok
    assert exit_check.exit_check(WEAK, efficiency=median(WEAK[0]) / median(WEAK[1])).ok


@each(
    [
        (None, "unread"),
        (100 * STRONG_SHARE, "percent"),
        (4 * STRONG_SHARE, "speed-up"),
        (1 - STRONG_SHARE, "lost"),
        (STRONG_SHARE / 4, "by-all"),
        (1 / STRONG_SHARE, "inverted"),
        (0.5, "misread"),
        (1.0, "misread"),
    ]
)
def test_an_efficiency_that_was_not_read_off_is_named(wrong, name):
    outcome = exit_check.exit_check(STRONG, efficiency=wrong)
    assert names(outcome) == [name]
    assert f"missing ({name}): " in outcome.words() and "right: " not in outcome.words()
    assert f"efficiency {STRONG_SHARE:.2f}" not in outcome.words()  # the reader is to read it off


def test_each_thing_that_is_missing_has_its_own_reason():
    two, four = STRONG[1:]
    rising = list(range(1, 13))
    failed = {"weights are equal": {"value": 1.0, "tolerance": 0.0, "passed": False}}
    cases = {
        "no-records": [],
        "no-training": [ROOT / "labs/results/collectives/smoke-cpu-2.json"],
        "one-process": [STRONG[0], WEAK[0]],
        "one-size": [two],
        "failed-checks": [STRONG[0], changed(two, checks=failed)],
        "no-learning": [STRONG[0], changed(two, losses=rising)],
    }
    messages = {}
    for name, records in cases.items():
        outcome = exit_check.exit_check(records, efficiency=median(STRONG[0]) / median(two) / 2)
        assert names(outcome) == [name]
        messages[name] = outcome.words()
    assert len(set(messages.values())) == len(messages)
    assert "weights are equal" in messages["failed-checks"] and "1.00 at the first step" in messages["no-learning"]
    outcome = exit_check.exit_check([two, changed(four, precision="bf16")])
    assert names(outcome) == ["other-job"] and "precision (fp32 and bf16)" in outcome.missing[0].words


def test_runs_of_another_job_make_no_curve_and_the_difference_is_named():
    model = json.loads(STRONG[2].read_text(encoding="utf-8"))["model"] | {"layers": 6}
    outcome = exit_check.exit_check([STRONG[1], changed(STRONG[2], model=model)], efficiency=0.5)
    assert names(outcome) == ["other-job"] and "model: layers (4 and 6)" in outcome.missing[0].words
    outcome = exit_check.exit_check([STRONG[1], RECORDED / "cpu-cpu-4.json"])
    assert names(outcome) == ["other-job"] and "tier (smoke and cpu)" in outcome.missing[0].words


def test_one_process_without_a_strategy_is_the_start_of_every_strategy():
    """As the training job writes them: "one" on one process, "fsdp" with its choices on several."""
    recipe = json.loads(STRONG[0].read_text(encoding="utf-8"))["recipe"]
    records = [
        changed(STRONG[0], recipe=recipe | {"strategy": "one"}),
        changed(STRONG[1], recipe=recipe | {"strategy": "fsdp", "wrap": "block", "ranks": 2}),
        changed(STRONG[2], recipe=recipe | {"strategy": "fsdp", "wrap": "block", "ranks": 4}),
    ]
    outcome = exit_check.exit_check(records, efficiency=STRONG_SHARE)
    assert outcome.ok
    assert [(kind, ranks) for kind, ranks, *_ in outcome.rows] == [("strong (fsdp)", n) for n in (1, 2, 4)]


def test_records_of_the_scaling_lab_satisfy_it():
    recorded = sorted((ROOT / "labs" / "results" / "scaling").glob("*.json"))
    if not recorded:
        pytest.skip("labs/results/scaling holds no Records yet")
    outcome = exit_check.exit_check(recorded)
    assert names(outcome) == ["unread"]
    kind, ranks, _, share = max(outcome.rows, key=lambda row: row[1])
    assert ranks > 1 and exit_check.exit_check(recorded, efficiency=share).ok, kind


def test_a_record_given_twice_counts_once():
    once = exit_check.exit_check(STRONG, efficiency=STRONG_SHARE)
    assert exit_check.exit_check([*STRONG, *STRONG], efficiency=STRONG_SHARE) == once
    assert names(exit_check.exit_check([STRONG[1], STRONG[1]], efficiency=0.5)) == ["one-size"]


def test_records_of_labs_without_scaling_make_no_curve():
    memory = sorted((ROOT / "labs" / "results" / "memory").glob("*.json"))
    assert memory and not exit_check.exit_check(memory, efficiency=0.5).ok


def test_the_efficiency_of_a_prediction_is_not_the_one_that_was_measured():
    """As a model gives it: close to ideal, where four processes share two cores."""
    assert names(exit_check.exit_check(STRONG, efficiency=0.97)) == ["misread"]


@pytest.mark.parametrize(
    "words",
    [
        ["--efficiency", "abc"],
        ["--efficiency", "nan"],
        ["--efficiency", "-1"],
        ["--efficiency", "inf"],
        ["--efficiency"],
        ["--no-such"],
        [str(RECORDED)],
    ],
)
def test_bad_input_to_the_command_is_one_line_and_exit_code_2(words, capsys):
    assert exit_check.main([*map(str, STRONG), *words]) == 2
    output, err = capsys.readouterr()
    assert (output, len(err.splitlines())) == ("", 1)


@each(
    [
        RECORDED / "trace-healthy.json",
        ROOT / "no-such.json",
        RECORDED,
        "{",
        '{"stem": 1}',
        '{"a":' * 100_000,
        changed(STRONG[1], device_count=10**30),
        changed(STRONG[1], device_count=10**400),
        changed(STRONG[1], started="2999-01-01T00:00:00+00:00"),
        changed(STRONG[0], device_count=2),
        changed(STRONG[1], step_seconds=[1e-300] * 12),
    ]
)
def test_what_is_no_record_is_one_line(bad):
    with pytest.raises(ValueError) as error:
        exit_check.exit_check([*STRONG, bad])
    assert "\n" not in str(error.value)


def test_the_command(capsys):
    assert exit_check.main([*map(str, STRONG), "--efficiency", f"{STRONG_SHARE:.2f}"]) == 0
    assert "strong scaling, 4 processes" in capsys.readouterr().out
    assert exit_check.main([str(STRONG[1])]) == 1
    assert "missing (one-size): all runs are on 2 processes" in capsys.readouterr().out
    assert exit_check.main(["no-such.json"]) == 2
    assert capsys.readouterr().err.splitlines() == ["no-such.json: no such file"]


# --- the grade of a prediction ----------------------------------------------------------------------------


def test_a_prediction_is_graded_against_the_run_on_twice_as_many():
    half, real = (16 * 128 / median(path) for path in STRONG[1:])
    assert exit_check.grade(real, STRONG).ok
    assert exit_check.grade(1.09 * real, STRONG).ok
    slips = {2 * half: "linear", half: "unchanged", 1.2 * real: "too-high", 0.5 * real: "too-low"}
    verdicts = {slip: exit_check.grade(guess, STRONG) for guess, slip in slips.items()}
    assert {slip: verdict.slip for slip, verdict in verdicts.items()} == {slip: slip for slip in slips.values()}
    assert (
        not any(verdict.ok for verdict in verdicts.values())
        and len({verdict.message for verdict in verdicts.values()}) == 4
    )
    for verdict in verdicts.values():
        assert f"the run reached {real:,.0f}" in verdict.message


@each(
    [
        (0, STRONG, "above 0"),
        ("many", STRONG, "above 0"),
        (True, STRONG, "above 0"),
        (9e3, STRONG[:1], "twice as many"),
        (9e3, [STRONG[0], STRONG[2]], "twice as many"),
        (9e3, [], "twice as many"),
    ]
)
def test_a_prediction_that_cannot_be_graded_is_one_line(guess, records, words):
    with pytest.raises(ValueError, match=words):
        exit_check.grade(guess, records)
