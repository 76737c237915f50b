"""The answers of `capstone`'s exercises, against arithmetic by hand, a model of a disk and recorded runs."""

import json
import math
from functools import partial
from pathlib import Path

import answers
import pytest
from cases import each

from scaleout import exercises
from scaleout.exercises.capstone import bends, curve, faults
from scaleout.timing import reliability

TESTS = Path(__file__).parents[1]

value = partial(answers.value, "capstone")
solution = partial(answers.solution, "capstone")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("curve-efficiency") == pytest.approx(1.97 / 1.32 / 2)
    assert value("time-lost") == pytest.approx(20 / 1800 + 900 / 14_400)


@each(
    [
        (20 / 1800 + 900 / 14_400, ""),
        (1 - 1 / (1 + 20 / 1800 + 900 / 14_400), "of-all-time"),
        (reliability.overhead(1800, 20, 14_400), "exact"),
    ]
)
def test_what_failures_cost_is_of_the_training_and_by_young(share, slip):
    assert answers.verdict("capstone", "time-lost", f"{share:.1%}")["slip"] == slip


def test_a_division_is_judged_by_the_batch_and_shown_as_one():
    """The parts are the reader's choice: a wrong one is not told another way to divide."""
    source = "def share(order, batch, step, rank, world):\n    return order[step * batch:][:batch][rank::world] + [9]\n"
    message = answers.verdict("capstone", "batch-share", source)["message"]
    assert "the parts of one rank are [[7, 2, 9, 4, 9]]; the batch is [7, 2, 9, 4]" in message


def test_beyond_the_knee_a_gpu_waits_for_what_its_wire_takes_longer():
    """By hand: 6N x 16,384 tokens at 400 TFLOP/s beside 8N bytes at 25 GB/s, where N cancels: 0.768 of the wire."""
    assert value("beyond-the-knee") == pytest.approx(1 - (6 * 16_384 / 400e12) / (8 / 25e9))
    assert "here at 49 GPUs" in exercises.exercise("capstone", "beyond-the-knee").solution


def test_the_curve_is_the_longer_of_compute_and_communication():
    """By hand: 100.0 GFLOP x tokens at half of 989.4 TFLOP/s; 8 bytes per parameter, (p-1)/p, at 50 GB/s."""
    for p, seconds in curve.CURVE.items():
        compute = 128 * 8192 * (6 * (8.030e9 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 8192) / p / (989.4e12 / 2)
        sent = 8 * 8.0303e9 * (p - 1) / p / 50e9
        assert seconds == pytest.approx(max(compute, sent) + 0.05, abs=0.011)
    assert curve.KNEE == 64
    assert list(curve.CURVE) == [8, 16, 32, 64, 128, 256]


def test_adamw_s_first_steps_have_the_full_rate_whatever_the_gradient():
    """What the solution of `resume-jump` says of empty moments."""
    for gradient in (1e-6, 0.3, -50.0):
        first, second = 0.1 * gradient, 0.001 * gradient**2
        step = (first / (1 - 0.9)) / math.sqrt(second / (1 - 0.999))
        assert step == pytest.approx(math.copysign(1, gradient))


def test_a_safe_order_survives_a_crash_after_every_operation():
    """A model of a disk: what was not synced is lost with the power. There is always a checkpoint that is good."""
    order = [list(faults.SAFE)[i] for i in solution("save-order")(list(faults.SAFE))]
    assert survives(order)
    for moved, target in (
        ("rename", "manifest"),
        ("manifest", "sync files"),
        ("remove oldest", "sync folder"),
        ("rename", "sync manifest"),
    ):
        wrong = [operation for operation in order if operation != moved]
        wrong.insert(wrong.index(target), moved)
        assert not survives(wrong), (moved, target)


def survives(order):
    """After every prefix: is a name on the disk a good checkpoint, and is there one left?"""
    for cut in range(len(order) + 1):
        operations = order[:cut]
        named, durable = "rename" in operations, "sync folder" in operations
        complete = all(
            operation in operations for operation in ("write", "sync files", "barrier", "manifest", "sync manifest")
        )
        before_manifest = operations[: operations.index("manifest")] if "manifest" in operations else operations
        vouched = before_manifest is operations or {"sync files", "barrier"} <= set(before_manifest)
        if (named and not complete) or not vouched:
            return False
        if "remove oldest" in operations and not durable:  # of two kept, the older one may have been the only good one
            return False
    return True


def test_shares_are_the_same_batches_at_every_world():
    share = solution("batch-share")
    order = list(range(100, 124))
    batches = {
        world: [
            [example for rank in range(world) for example in share(order, 8, step, rank, world)] for step in range(3)
        ]
        for world in (1, 2, 4, 8)
    }
    assert batches[1] == batches[2] == batches[4] == batches[8]
    assert sorted(example for batch in batches[4] for example in batch) == order


@each(
    [
        "return order[step * batch:(step + 1) * batch][rank::world]",
        "return order[step * batch:(step + 1) * batch][::-1][rank::world]",
        "places = range(step * batch + rank, (step + 1) * batch, world)\n"
        "    return tuple(order[place] for place in places if place < len(order))",
    ]
)
def test_any_way_to_divide_a_batch_is_right(body):
    source = f"def share(order, batch, step, rank, world):\n    {body}\n"
    assert answers.verdict("capstone", "batch-share", source)["ok"]


@each(
    [
        ("return order[step * batch:(step + 1) * batch][:batch // world]", "same-on-all"),
        ("return order[rank::world][step * batch:(step + 1) * batch]", "wrong-result"),
        ("return order[step * batch:][:1] * (batch // world)", "wrong-result"),
        ("return []", "wrong-result"),
        ("return [order[step * batch:(step + 1) * batch][rank::world]]", "wrong-result"),
    ]
)
def test_other_divisions_are_not(body, slip):
    result = answers.verdict("capstone", "batch-share", f"def share(order, batch, step, rank, world):\n    {body}\n")
    assert (result["ok"], result["slip"]) == (False, slip)


def test_a_fit_through_a_line_is_that_line_and_noise_averages_out():
    predict = solution("predict-double")
    for a, b in ((1600, 400), (48_000, 0), (960, 1000)):
        assert predict({p: a / p + b for p in (1, 2, 4, 8)}) == round(a / 16 + b)
    assert predict({1: 1960, 2: 1320, 4: 720}) == 600


def published(name):
    return json.loads((TESTS / "published" / name).read_text(encoding="utf-8"))


def shares(rates):
    """Of {processes: what all of them get done}, what each keeps of the first size's, in whole per cent."""
    first = min(rates)
    return {n: round(100 * (rate / n) / (rates[first] / first)) for n, rate in rates.items()}


def test_the_four_curves_are_those_of_their_sources():
    zero = [row for row in published("zero_seconds.json")["narayanan"]["rows"] if row["params_B"] == "174.6"]
    assert bends.CURVES["A"] == shares({row["gpus"]: row["gpus"] * row["tflops"] for row in zero})
    assert [row["batch"] // row["gpus"] for row in zero] == [4, 2, 1]
    h200 = published("scaling_8b_h200.json")
    assert bends.CURVES["B"] == shares({row["gpus"]: row["tokens_per_second"] for row in h200["rows"]})
    alone = h200["one_node_tp_4"]["tokens_per_second"] / 4 / h200["rows"][0]["tokens_per_second"]
    assert round(100 * alone) == bends.TP_ALONE and alone < 0.65 < bends.CURVES["B"][4] / 100
    assert [row["tp"] for row in h200["rows"]] == [1, 1, 1, 4, 4, 4]
    runs = [
        json.loads((TESTS.parent / f"labs/results/scaling/smoke-cpu-strong-{name}.json").read_text())
        for name in ("1-one", "2-ddp", "4-ddp")
    ]
    recorded = shares({run["device_count"]: run["tokens_per_second"] for run in runs})
    assert all(abs(bends.CURVES["C"][n] - percent) <= 10 for n, percent in recorded.items()), "a run again is near it"
    assert all("2-core" in run["device"] and run["effective_batch"] == 8 for run in runs)
    nvidia = published("fp8.json")["steps"]["nemotron-4-15b"]
    seconds = dict(zip(nvidia["gpus"], nvidia["bf16_seconds"], strict=True))
    percent = {n: round(100 * seconds[16] / seconds[n]) for n in bends.CURVES["D"]}
    assert bends.CURVES["D"] == percent and nvidia["sequences_per_gpu"] == 4


def test_what_is_said_of_the_four_curves_follows_from_them():
    """A stands still, and so its step is its messages; C falls; B's layout has lost most of it on one node; D keeps."""
    throughput = {name: bends.together(name) for name in bends.CURVES}
    assert (
        throughput["A"][2] == pytest.approx(throughput["A"][1], rel=0.03)
        and throughput["C"][2] < 0.6 * throughput["C"][1]
    )
    curve_b = bends.CURVES["B"]
    assert curve_b[4] - bends.TP_ALONE > 4 * (bends.TP_ALONE - curve_b[8]) and min(bends.CURVES["D"].values()) > 95
    drops = {
        name: max(zip(curve, [*curve][1:], strict=False), key=lambda pair, c=curve: c[pair[0]] - c[pair[1]])[0]
        for name, curve in bends.CURVES.items()
    }
    assert [drops[name] for name in "ABC"] == [384, 4, 2]
    best = next(option.label for option in bends.FOUR.options if option.right)
    a, b, c = (drops[name] for name in "ABC")
    assert best == f"A batch, after {a} · B layout, after {b} · C cores, after {c} · D no bend"
    assert max(len(line) for line in bends.FOUR.prompt.split("```")[1].splitlines()) <= 39, "on a phone"
