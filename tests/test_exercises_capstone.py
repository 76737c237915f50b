"""The answers of rung 11's exercises, against arithmetic by hand, real ranks, and Records of runs; the exit check."""

import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import answers
import pytest

from scaleout import exercises
from scaleout.exercises import capstone_curve, capstone_faults, exit_check

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "labs" / "results" / "ddp"


value = partial(answers.value, "capstone")
right = partial(answers.right, "capstone")
solution = partial(answers.solution, "capstone")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("curve-efficiency") == pytest.approx(15.39 / 1.32 / 16)
    assert value("amdahl-fit") == pytest.approx(38.4 / 32 + 0.8)
    assert value("young-interval") == pytest.approx(math.sqrt(2 * 20 * 14_400))
    assert value("time-lost") == pytest.approx(20 / 758.95 + 758.95 / 2 / 14_400, rel=1e-4)


def test_mfu_by_palm_s_rule():
    """6N + 12 L H Q T a token, less the token table, which does no matrix product (Llama's is not tied)."""
    each = 6 * (8.030e9 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 8192
    assert value("run-mfu") == pytest.approx(each * 128 * 8192 / 1.97 / (64 * 989.4e12), rel=1e-3)


def test_the_curve_is_the_longer_of_compute_and_communication():
    """By hand: 100.0 GFLOP x tokens at half of 989.4 TFLOP/s; 8 bytes a parameter, (p-1)/p, at 50 GB/s."""
    for p, seconds in capstone_curve.CURVE.items():
        compute = 128 * 8192 * (6 * (8.030e9 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 8192) / p / (989.4e12 / 2)
        sent = 8 * 8.0303e9 * (p - 1) / p / 50e9
        assert seconds == pytest.approx(max(compute, sent) + 0.05, abs=0.011)
    assert capstone_curve.KNEE == 64
    assert list(capstone_curve.CURVE) == [8, 16, 32, 64, 128, 256]


def test_the_right_choices():
    assert right("curve-knee") == "crossing"
    assert right("strong-or-weak") == "weak"
    assert right("batch-trap") == "fewer-steps"
    assert right("resume-jump") == "moments"
    assert right("resume-state") == "all"
    assert right("kill-proof") == "nothing"
    assert right("data-wait") == "input"


def test_adamw_s_first_steps_have_the_full_rate_whatever_the_gradient():
    """What the solution of `resume-jump` says of empty moments."""
    for gradient in (1e-6, 0.3, -50.0):
        first, second = 0.1 * gradient, 0.001 * gradient**2
        step = (first / (1 - 0.9)) / math.sqrt(second / (1 - 0.999))
        assert step == pytest.approx(math.copysign(1, gradient))


def test_a_safe_order_survives_a_crash_after_every_operation():
    """A model of a disk: what was not synced is lost with the power. There is always a checkpoint that is good."""
    order = [list(capstone_faults.SAFE)[i] for i in solution("save-order")(list(capstone_faults.SAFE))]
    assert survives(order)
    for early, late in (("rename", "manifest"), ("manifest", "sync files"), ("remove oldest", "sync folder"),
                        ("rename", "sync manifest")):  # fmt: skip
        wrong = [one for one in order if one != early]
        wrong.insert(wrong.index(late), early)
        assert not survives(wrong), (early, late)


def survives(order):
    """After every prefix: is a name on the disk a good checkpoint, and is there one left?"""
    for cut in range(len(order) + 1):
        done = order[:cut]
        named, durable = "rename" in done, "sync folder" in done
        whole = all(one in done for one in ("write", "sync files", "barrier", "manifest", "sync manifest"))
        before = done[: done.index("manifest")] if "manifest" in done else done
        vouched = before is done or {"sync files", "barrier"} <= set(before)
        if (named and not whole) or not vouched:
            return False
        if "remove oldest" in done and not durable:  # of two kept, the older one may have been the only good one
            return False
    return True


def test_shares_are_the_same_batches_at_every_world():
    share = solution("batch-share")
    order = list(range(100, 124))
    batches = {world: [[one for rank in range(world) for one in share(order, 8, step, rank, world)]
                       for step in range(3)] for world in (1, 2, 4, 8)}  # fmt: skip
    assert batches[1] == batches[2] == batches[4] == batches[8]
    assert sorted(one for batch in batches[4] for one in batch) == order


@pytest.mark.parametrize("body", [
    "return order[step * batch:(step + 1) * batch][rank::world]",
    "return order[step * batch:(step + 1) * batch][::-1][rank::world]",
    "own = batch // world\n    return tuple(order[rank + world * (step * own + i)] for i in range(own))",
])  # fmt: skip
def test_any_way_to_divide_a_batch_is_right(body):
    source = f"def share(order, batch, step, rank, world):\n    {body}\n"
    assert exercises.check("capstone", "batch-share", source)["ok"]


@pytest.mark.parametrize(("body", "slip"), [
    ("return order[step * batch:(step + 1) * batch][:batch // world]", "same-on-all"),
    ("return order[rank::world][step * batch:(step + 1) * batch]", "wrong-result"),
    ("return [order[step * batch]] * (batch // world)", "wrong-result"),
    ("return []", "wrong-result"),
    ("return [order[step * batch:(step + 1) * batch][rank::world]]", "wrong-result"),
])  # fmt: skip
def test_other_divisions_are_not(body, slip):
    result = exercises.check("capstone", "batch-share", f"def share(order, batch, step, rank, world):\n    {body}\n")
    assert (result["ok"], result["slip"]) == (False, slip)


def test_the_price_of_a_run_by_hand():
    assert solution("run-price")(9e10, 5e5, 64, 2.5, 0.8) == pytest.approx(62.5 * 64 * 2.5)


def test_a_fit_through_a_line_is_that_line_and_noise_averages_out():
    predict = solution("predict-double")
    for a, b in ((1600, 400), (48_000, 0), (960, 1000)):
        assert predict({p: a / p + b for p in (1, 2, 4, 8)}) == round(a / 16 + b)
    assert predict({1: 1960, 2: 1320, 4: 720}) == 600


def test_misconceptions_of_the_rung_are_each_named():
    named = set()
    for one in exercises.catalogue("capstone"):
        named |= {slip.name for slip in getattr(one, "slips", ())}
        named |= {mistake.name for mistake in getattr(one, "mistakes", ())}
        named |= {option.name for option in getattr(one, "options", ()) if not option.right}
    assert named >= {
        "speed-up", "last-doubling", "linear", "last-ratio", "sparse-peak", "hfu", "bytes-grow", "eight", "forgot-two",
        "hours", "whole-interval", "rename-early", "remove-first", "own-part-of-the-epoch", "batch-a-rank", "rank-0",
        "goodput-multiplied", "resume", "straggler",
    }  # fmt: skip


# --- the exit check ---------------------------------------------------------------------------------------

STRONG = [RECORDED / f"smoke-scaling-cpu-strong-{n}.json" for n in (1, 2, 4)]
WEAK = [RECORDED / f"smoke-scaling-cpu-weak-{n}.json" for n in (1, 2)]


def changed(path, **fields):
    """A Record's text with other fields."""
    return json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields)


def names(outcome):
    return [one.name for one in outcome.missing]


def median(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    steps = sorted(data["step_seconds"][data["warmup_steps"]:])
    return (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2


STRONG_SHARE = median(STRONG[0]) / median(STRONG[2]) / 4


def test_recorded_runs_satisfy_it_with_the_efficiency_that_they_have():
    found = exit_check.exit_check(STRONG, efficiency=STRONG_SHARE)
    assert found.ok and "right: " in found.words()
    assert [(kind, ranks) for kind, ranks, *_ in found.rows] == [("strong", 1), ("strong", 2), ("strong", 4)]
    assert [share for *_, share in found.rows] == pytest.approx(
        [1, median(STRONG[0]) / median(STRONG[1]) / 2, STRONG_SHARE])  # fmt: skip
    for texts in ([path.read_text(encoding="utf-8") for path in STRONG], [str(path) for path in STRONG]):
        assert exit_check.exit_check(texts, efficiency=STRONG_SHARE) == found
    assert exit_check.exit_check([*STRONG, *WEAK], efficiency=STRONG_SHARE).ok
    assert exit_check.exit_check(WEAK, efficiency=median(WEAK[0]) / median(WEAK[1])).ok


@pytest.mark.parametrize(("wrong", "name"), [
    (None, "unread"), (100 * STRONG_SHARE, "percent"), (4 * STRONG_SHARE, "speed-up"), (1 - STRONG_SHARE, "lost"),
    (STRONG_SHARE / 4, "by-all"), (1 / STRONG_SHARE, "inverted"), (0.5, "misread"), (1.0, "misread"),
])  # fmt: skip
def test_an_efficiency_that_was_not_read_off_is_named(wrong, name):
    found = exit_check.exit_check(STRONG, efficiency=wrong)
    assert names(found) == [name]
    assert f"missing ({name}): " in found.words() and "right: " not in found.words()


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
    said = {}
    for name, records in cases.items():
        found = exit_check.exit_check(records, efficiency=median(STRONG[0]) / median(two) / 2)
        assert names(found) == [name]
        said[name] = found.words()
    assert len(set(said.values())) == len(said)
    assert "weights are equal" in said["failed-checks"] and "1.00 at the first step" in said["no-learning"]
    found = exit_check.exit_check([two, changed(four, precision="bf16")])
    assert names(found) == ["other-job"] and "precision (fp32 and bf16)" in found.missing[0].words


def test_runs_of_another_job_make_no_curve_and_the_difference_is_named():
    model = json.loads(STRONG[2].read_text(encoding="utf-8"))["model"] | {"layers": 6}
    found = exit_check.exit_check([STRONG[1], changed(STRONG[2], model=model)], efficiency=0.5)
    assert names(found) == ["other-job"] and "model: layers (4 and 6)" in found.missing[0].words
    found = exit_check.exit_check([STRONG[1], RECORDED / "cpu-cpu-4.json"])
    assert names(found) == ["other-job"] and "tier (smoke and cpu)" in found.missing[0].words


def test_one_process_without_a_strategy_is_the_start_of_every_strategy():
    """As the training job writes them: "one" on one process, "fsdp" with its choices on several."""
    recipe = json.loads(STRONG[0].read_text(encoding="utf-8"))["recipe"]
    records = [changed(STRONG[0], recipe=recipe | {"strategy": "one"}),
               changed(STRONG[1], recipe=recipe | {"strategy": "fsdp", "wrap": "block", "ranks": 2}),
               changed(STRONG[2], recipe=recipe | {"strategy": "fsdp", "wrap": "block", "ranks": 4})]  # fmt: skip
    found = exit_check.exit_check(records, efficiency=STRONG_SHARE)
    assert found.ok
    assert [(kind, ranks) for kind, ranks, *_ in found.rows] == [("strong (fsdp)", n) for n in (1, 2, 4)]


@pytest.mark.parametrize("bad", [RECORDED / "trace-healthy.json", ROOT / "no-such.json", "{", '{"stem": 1}'])
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
    said = {slip: exit_check.grade(guess, STRONG) for guess, slip in slips.items()}
    assert {slip: one.slip for slip, one in said.items()} == {slip: slip for slip in slips.values()}
    assert not any(one.ok for one in said.values()) and len({one.message for one in said.values()}) == 4
    for one in said.values():
        assert f"the run made {real:,.0f}" in one.message


@pytest.mark.parametrize(("guess", "records", "words"), [
    (0, STRONG, "above 0"), ("many", STRONG, "above 0"), (True, STRONG, "above 0"), (9e3, STRONG[:1], "twice as many"),
    (9e3, [STRONG[0], STRONG[2]], "twice as many"), (9e3, [], "twice as many"),
])  # fmt: skip
def test_a_prediction_that_cannot_be_graded_is_one_line(guess, records, words):
    with pytest.raises(ValueError, match=words):
        exit_check.grade(guess, records)


# --- the lab exercise on real ranks -----------------------------------------------------------------------

GIVEN = re.search(r"```python\n(.*?)```", exercises.exercise("capstone", "resume-job").solution, re.S).group(1)
OTHER = """\
import torch.distributed as dist
plain = capture
def capture(step, model, optimizer, schedule, generator):
    state = plain(step, model, optimizer, schedule, generator)
    dist.broadcast(state["random"], 0)
    return state
"""
WRITTEN = {
    "": GIVEN,
    "stub": exercises.exercise("capstone", "resume-job").stub,
    "no-weights": GIVEN.replace('    model.load_state_dict(state["model"])\n', ""),
    "no-moments": GIVEN.replace('    optimizer.load_state_dict(state["optimizer"])\n', ""),
    "no-schedule": GIVEN.replace('    schedule.load_state_dict(state["schedule"])\n', ""),
    "no-random": GIVEN.replace('    generator.set_state(state["random"])\n', ""),
    "other-rank": GIVEN + OTHER,
    "no-step": GIVEN.replace('return state["step"]', "return 0"),
    "aliased": GIVEN.replace("copy.deepcopy(state)  ", "state  "),
    "no-dict": GIVEN.replace("    state = {", "    if torch.distributed.get_rank():\n        return None\n"
                             "    state = {").replace("import copy", "import copy, torch"),
    "unsafe": GIVEN.replace('"model": model.state_dict()', '"model": model.state_dict(), "whole": model'),
    "disturbed": GIVEN.replace("    return copy", "    model[0].weight.data.zero_()\n    return copy"),
    "no-restore": GIVEN.replace("def restore", "def restored"),
    "drift": GIVEN.replace("    return state[\"step\"]", "    optimizer.param_groups[0][\"weight_decay\"] = 0.5\n"
                           "    return state[\"step\"]"),
    "exception": GIVEN.replace("generator.get_state()", "generator.state()"),
}  # fmt: skip


def lab(*files):
    return subprocess.run([sys.executable, "-m", "scaleout.exercises.torch_capstone", *map(str, files)],
                          cwd=ROOT, capture_output=True, text=True, timeout=300)  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    for slip, source in WRITTEN.items():
        (tmp_path / f"file{slip}.py").write_text(source, encoding="utf-8")
    assert len(set(WRITTEN.values())) == len(WRITTEN)
    result = lab(*(tmp_path / f"file{slip}.py" for slip in WRITTEN))
    assert (result.returncode, result.stderr) == (1, "")
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(said) == [f"file{slip}.py" for slip in WRITTEN]
    for slip in WRITTEN:
        start = f"not yet ({slip}): " if slip else "right: 2 ranks went on after step 3"
        assert said[f"file{slip}.py"].startswith(start), said[f"file{slip}.py"]
