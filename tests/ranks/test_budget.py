"""labs/budget.py as a reader starts it: a model that writes, and three that train, on one process and on two."""

import pool
import pytest

from scaleout.lab import budget
from scaleout.records import results
from scaleout.spec import Shape, flops

TINY = ["labs/budget.py", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "32", "--steps", "60",
        "--written", "16", "--tune-steps", "6", "--seeds", "2", "--windows", "6"]  # fmt: skip
SHAPE = {"layers": 1, "hidden": 32, "heads": 2}


@pytest.fixture(scope="module", params=[(1, "torch"), (2, "torch"), (2, "accelerate")], name="run")
def a_run(request, tmp_path_factory):
    """(processes, Record, the finished launch)."""
    world, via = request.param
    out = tmp_path_factory.mktemp("budget") / "record.json"
    done = pool.lab([*TINY, "--via", via, "--save", str(out)], world)
    assert out.exists(), done.stderr[-2000:] + done.stdout
    return world, results.load(out), done


def test_what_must_hold_holds(run):
    world, record, done = run
    assert done.returncode == 0 and all(check["passed"] for check in record.checks.values())
    assert ("replicas" in " ".join(record.checks)) is (world == 2)
    assert record.device_count == world and record.effective_batch == 8 and len(record.losses) == 60
    assert record.losses[-1] < record.losses[0] - 1


def test_each_model_is_recorded_for_each_seed_with_all_figures(run):
    _, record, done = run
    for name, words in budget.FIGURES.items():
        assert len(record.series[f"{name}, base"]) == 1 and words in done.stdout
        for arm in budget.ARMS:
            assert len(record.series[f"{name}, {arm}"]) == 2
    for arm in budget.ARMS:
        for one, several in zip(record.series[f"right, {arm}"], record.series[f"among, {arm}"], strict=True):
            assert 0 <= one <= several <= 1, "16 samples at their best are no worse than one"


def test_flops_are_those_of_the_shape_and_of_its_rank(run):
    world, record, _ = run
    shape = Shape(**record.model)
    step = flops(shape, 8 // world, 32)
    assert record.prediction["FLOPs of a training step"] == step["forward"] + step["backward"]
    writing = sum(flops(shape, 1, n)["forward"] for n in range(16, 33))
    assert record.prediction["FLOPs to write a sequence, without a cache"] == writing
    assert {name: record.model[name] for name in SHAPE} == SHAPE


def test_a_beta_is_held_against_the_accuracies(run):
    _, record, done = run
    for k in (4, 16, 64):
        assert 0 <= record.prediction[f"pass@{k} of the base"] <= 1
        assert f"k = {k} " in done.stdout
    measured = [record.measurement[f"pass@{k} of the base"] for k in (4, 16, 64)]
    assert measured == sorted(measured)
    assert record.series["among, base"][0] == pytest.approx(measured[1])


def test_the_verdict_is_that_of_the_recorded_figures(run):
    _, record, done = run
    base = {name: record.series[f"{name}, base"][0] for name in budget.FIGURES}
    arms = {arm: {name: record.series[f"{name}, {arm}"] for name in budget.FIGURES} for arm in budget.ARMS}
    for line in budget.verdicts(base, arms):
        assert line in done.stdout
