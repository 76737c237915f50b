"""The answers of `ddp`'s exercises, against arithmetic by hand, torch's own buckets, recorded traces, real ranks."""

import random
import re
from functools import partial
from math import ceil

import answers
import pytest
from repo import ROOT

from scaleout import exercises
from scaleout.exercises.ddp import traces
from scaleout.exercises.ddp.ranks import CHECK
from scaleout.records import trace

RECORDED = ROOT / "labs" / "results" / "ddp"
GB = 10**9


value = partial(answers.value, "ddp")
solution = partial(answers.solution, "ddp")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("ddp-wire-bytes") == 30 * (4 * GB / 16)  # 2 * 15 chunks, each a sixteenth of 4 GB
    assert value("compressed") == pytest.approx(0.100 + 0.200)
    assert value("strong-scaling") == pytest.approx(8.0 / (8 * 1.6)) == pytest.approx(0.625)


def test_slips_of_the_step_are_sums_of_the_three_times_given():
    slips = {slip.name: slip.value for slip in exercises.exercise("ddp", "compressed").slips}
    assert slips["no-overlap"] == pytest.approx(0.1 + 0.2 + 0.13)
    assert slips["half-the-exposed"] == pytest.approx(0.36 - 0.06 / 2)
    assert slips["saved-in-full"] == pytest.approx(0.36 - 0.13)


def test_the_smallest_batch_hides_the_all_reduce_and_one_less_does_not():
    batch = solution("smallest-batch")
    for seconds_each, size, ranks, rate in exercises.exercise("ddp", "smallest-batch").cases:
        smallest, wire = batch(seconds_each, size, ranks, rate), 2 * (ranks - 1) / ranks * size / rate
        assert smallest >= 1 and smallest == int(smallest)
        assert smallest * seconds_each * 2 / 3 >= wire
        assert smallest == 1 or (smallest - 1) * seconds_each * 2 / 3 < wire
    assert batch(0.05, 4e9, 16, 50e9) == 5  # 0.15 s on the wire, 33.3 ms of backward each
    assert batch(0.05, 4e9, 16, 1.25e9) == 180


def test_no_order_of_the_terms_turns_a_case_of_the_smallest_batch():
    """A batch that hides it exactly comes out of each way to write the quotient; no other lies so near a whole one."""
    orders = (
        lambda s, b, w, r: 2 * (w - 1) / w * b / r / (2 / 3 * s),
        lambda s, b, w, r: 2 * b * (w - 1) / (w * r) * 1.5 / s,
        lambda s, b, w, r: 3 * (b / w) * (w - 1) / r / s,
        lambda s, b, w, r: b / r * 2 * (1 - 1 / w) / (s - s / 3),
        lambda s, b, w, r: (w - 1) * (b / w / r) * 2 / (2 * s / 3),
        lambda s, b, w, r: 2 * (b - b / w) / r / s / (2 / 3),
    )
    batch, exact = exercises.exercise("ddp", "smallest-batch"), 0
    for case in batch.cases:
        assert {max(1, ceil(order(*case))) for order in orders} == {batch.reference(*case)}
        exact += {order(*case) for order in orders} == {float(batch.reference(*case))}
    assert exact >= 3, "or rounding down and adding 1 passes"


def test_buckets_are_those_of_torch():
    """torch takes a list of caps, the last of which repeats, and gradients in the order of arrival."""
    torch = pytest.importorskip("torch")
    from torch.distributed import _compute_bucket_assignment_by_size

    assign, draw = solution("assign-buckets"), random.Random(0)
    cases = list(exercises.exercise("ddp", "assign-buckets").cases)
    cases += [
        ([draw.randint(1, 40) for _ in range(draw.randint(1, 12))], draw.randint(10, 60), draw.randint(1, 10))
        for _ in range(40)
    ]
    for sizes, cap, first in cases:
        arriving = [torch.empty(size, dtype=torch.uint8) for size in reversed(sizes)]
        places, _ = _compute_bucket_assignment_by_size(arriving, [first, cap])
        assert assign(sizes, cap, first) == [[len(sizes) - 1 - place for place in bucket] for bucket in places]


def test_a_sum_over_ranks_is_a_higher_learning_rate():
    """The choice on SUM, computed: SGD with the sum of 4 gradients is SGD with 4 times the rate and the mean."""
    gradients, weight, rate = [0.3, -0.1, 0.7, 0.2], 1.0, 0.1
    assert weight - rate * sum(gradients) == pytest.approx(weight - 4 * rate * sum(gradients) / 4)


# --- traces -----------------------------------------------------------------------------------------------

LETTERS = pytest.mark.parametrize("letter", traces.TRACES)
CAUSES = {"trace-healthy.json": "healthy", "trace-straggler.json": "straggler-1", "trace-slow-link.json": "slow-link",
          "trace-tiny-buckets.json": "tiny-buckets", "trace-starved.json": "starved"}  # fmt: skip


def test_every_recorded_trace_has_one_letter_and_the_order_says_nothing():
    files = sorted(path.name for path in RECORDED.glob("trace-*.json"))
    assert sorted(traces.TRACES.values()) == files == sorted(traces.FIGURES)
    assert list(traces.TRACES) == list("ABCDE")
    assert list(traces.TRACES.values()) != files


@LETTERS
def test_figures_are_those_of_the_recorded_trace(letter):
    file = traces.TRACES[letter]
    assert traces.figures(trace.summary(trace.load(RECORDED / file))) == traces.FIGURES[file]


@LETTERS
def test_the_cause_of_a_trace_follows_from_its_figures(letter):
    """By thresholds, from the trace itself, without looking at its name."""
    trace, well = traces.FIGURES[traces.TRACES[letter]], traces.FIGURES["trace-healthy.json"]
    if min(trace.data) > 0.2 * trace.step:
        cause = "starved"
    elif trace.collectives > 5 * well.collectives:
        cause = "tiny-buckets"
    elif trace.rate < well.rate / 2:
        cause = "slow-link"
    elif trace.compute[1] > 1.2 * trace.compute[0] and trace.waited[0] > 5 * trace.waited[1] + 5:
        cause = "straggler-1"
    else:
        cause = "healthy"
    assert cause == CAUSES[traces.TRACES[letter]]
    named = {"starved": "data", "tiny-buckets": "buckets", "slow-link": "link", "straggler-1": "rank 1"}
    label = next(option.label for option in traces.FIVE_RUNS.options if option.right)
    assert f"{letter} {named.get(cause, 'none')}" in label.split(", ")


@LETTERS
def test_the_solution_carries_the_figure_that_decides(letter):
    trace = traces.FIGURES[traces.TRACES[letter]]
    text = next(part for part in traces.FIVE_RUNS.solution.split("\n\n") if part.startswith(f"**{letter}, "))
    decides = {
        "starved": f"{trace.data[0]} and {trace.data[1]} ms",
        "tiny-buckets": f"{trace.collectives} collectives",
        "slow-link": f"{trace.rate} MB/s",
        "straggler-1": f"{trace.compute[1]} ms",
        "healthy": f"{trace.exposed[0]} and {trace.exposed[1]} ms",
    }
    assert decides[CAUSES[traces.TRACES[letter]]] in text


def test_each_wrong_reading_counts_what_is_right_and_says_a_figure():
    best = next(option for option in traces.FIVE_RUNS.options if option.right).label.split(", ")
    for option in traces.FIVE_RUNS.options:
        assert re.search(r"\d", option.reason), option.reason
        matching = sum(a == b for a, b in zip(option.label.split(", "), best, strict=True))
        assert option.right or option.reason.startswith({4: "Four", 3: "Three", 2: "Two"}[matching])


# --- the lab exercise on real ranks -----------------------------------------------------------------------

SOLUTION = answers.code_of(exercises.exercise("ddp", "train-step"))
DIVIDE, LOSS = "    flat /= dist.get_world_size()\n", " / len(passes)"
EACH_WEIGHT = """\
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    optimizer.step()
"""
EVERY_PASS = """\
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
    optimizer.step()
"""
UNTIL_REDUCE = SOLUTION[: SOLUTION.index("    gradients =")]
WRAPPED = """\
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
def train_step(model, optimizer, passes):
    wrapped = DistributedDataParallel(model)
    optimizer.zero_grad()
    (sum(mse_loss(wrapped(x), y) for x, y in passes) / len(passes)).backward()
    optimizer.step()
"""
RANKS_DIFFER = "    if dist.get_rank():\n        flat *= 1 + 1e-5\n    for one, mean"
AVERAGED = """\
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
"""
WRITTEN = {
    "-given": SOLUTION,
    "-each": UNTIL_REDUCE + EACH_WEIGHT,
    "stub": exercises.exercise("ddp", "train-step").stub,
    "not-averaged": SOLUTION.replace(DIVIDE, ""),
    "passes-added": SOLUTION.replace(LOSS, ""),
    "nothing-divided": SOLUTION.replace(LOSS, "").replace(DIVIDE, ""),
    "divided-twice": SOLUTION.replace(DIVIDE, 2 * DIVIDE),
    "own-gradient": SOLUTION.replace("    dist.all_reduce(flat) ", "    flat = 2 * flat "),
    "own-sum": UNTIL_REDUCE.replace(LOSS, "") + "    optimizer.step()\n",
    "last-pass": SOLUTION.replace("in passes:\n", "in passes:\n        optimizer.zero_grad()\n"),
    "not-cleared": SOLUTION.replace("    optimizer.zero_grad()\n", ""),
    "no-step": SOLUTION.replace("    optimizer.step()\n", ""),
    "every-pass": UNTIL_REDUCE + EVERY_PASS,
    "no-gradient": SOLUTION.replace(" if p.grad is not None", ""),
    "wrong-gradient": SOLUTION.replace("    flat /=", "    flat += 1\n    flat /="),
    "wrapped": WRAPPED,
    "weights-averaged": UNTIL_REDUCE + "    optimizer.step()\n" + AVERAGED,
    "apart": SOLUTION.replace("    for one, mean", RANKS_DIFFER),
    "exception": SOLUTION.replace("flat = torch", "flat = tors"),
    "deadlock": SOLUTION.replace("    dist.all_reduce(flat) ", "    dist.get_rank() or dist.all_reduce(flat)"
                              "\n    dist.get_rank() and dist.broadcast(flat, 0)"),
}  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    said = answers.told(CHECK, "right: 2 ranks took the step", WRITTEN, tmp_path)
    assert "996 bytes, 3 times the 332 that a ring sends" in said["every-pass"]
