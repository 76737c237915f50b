"""labs/bottlenecks.py as a reader starts it: eight runs, the rule's verdicts, a verdict judged, remedies.

What is slept or counted is compared exactly. How long a run computes depends on what else the machine does: of the two
runs that differ by their compute alone, it is said only what cannot turn around.
"""

import re

import pool
import pytest

from scaleout.lab import bottlenecks
from scaleout.records import results
from scaleout.timing.verdict import ARITHMETIC, NAMES, TRAFFIC, WAITING, Counters, verdict

FAST = ["labs/bottlenecks.py", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "16", "--steps", "2"]
INJECTED = 0.2  # seconds per step
NUMBER = {name: number for number, name in bottlenecks.sealed().items()}
COMPUTED = {ARITHMETIC, TRAFFIC}


def counters(record, name):
    fields = Counters.__dataclass_fields__
    return Counters(**{field: record.series[f"{field}, run {NUMBER[name]}"][0] for field in fields})


@pytest.fixture(scope="module", params=[1, 2], name="run")
def all_eight(request, tmp_path_factory):
    """(processes, Record, the finished launch) of all eight runs."""
    out = tmp_path_factory.mktemp("bottlenecks") / "record.json"
    done = pool.lab([*FAST, "--save", str(out)], request.param)
    assert out.exists(), done.stderr[-2000:] + done.stdout
    return request.param, results.load(out), done


def test_the_rule_names_all_eight(run):
    world, record, done = run
    assert len(record.checks) == 8 and record.device_count == world
    for name in NUMBER:
        found = verdict(counters(record, name)).resource
        passed = record.checks[f"run {NUMBER[name]}: the rule names {NAMES[name]}"]["passed"]
        assert passed == (found == name)
        assert passed or (name in COMPUTED and found in (None, WAITING)), (name, counters(record, name))
    assert (done.returncode == 0) == all(check["passed"] for check in record.checks.values())
    assert len(re.findall(r"^run \d: ", done.stdout, re.M)) == 8
    assert ("a real second rank" in " ".join(record.skipped)) is (world == 1)


def injected(record):
    """What each run has more of than any other: it was slept, so it is there at the least."""
    by_field = {"waiting": "wait", "network": "transfer", "input": "input", "fixed": "update"}
    return {name: getattr(counters(record, name), field) for name, field in by_field.items()}


def test_what_is_injected_is_there_and_counted_the_same_on_every_number_of_ranks(run):
    _, record, _ = run
    for name, seconds in injected(record).items():
        assert seconds > 0.85 * INJECTED, name  # a rank that comes late to the barrier has slept a part of it
    gauge = counters(record, "gauge")
    assert gauge.wall - gauge.timer >= 0.95 * INJECTED
    plain, again, busy = (counters(record, name) for name in ("input", "capacity", "arithmetic"))
    assert plain.flops == plain.model_flops and again.flops > 1.1 * again.model_flops
    assert again.memory < plain.memory and again.memory >= 0.9 * again.limit
    assert busy.flops - plain.flops == 12 * 2 * 768**3
    traffic = counters(record, "traffic")
    assert traffic.bytes - plain.bytes == 30 * 3 * 4 * 2**23
    waiting = NUMBER["waiting"]
    waits, spent = (record.series[f"{kind} by rank, run {waiting}"] for kind in ("wait", "compute"))
    assert len(waits) == len(spent) == 2 and waits[1] < waits[0] and spent[1] - spent[0] > 0.5 * INJECTED
    added = {name: record.prediction[f"seconds per step, run {number}"] for name, number in NUMBER.items()}
    assert added["fixed"] - added["input"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("world", "said", "begins"), [(1, "network", "Not network bandwidth"), (2, "input", "Right")])
def test_a_verdict_is_judged_and_the_right_remedy_is_the_faster_one(world, said, begins):
    number = NUMBER["input"]
    output = pool.output([*FAST, "--verdict", f"{number}={said}"], world)
    assert f"\n{begins}. Run {number}: input takes " in output
    rows = re.findall(r"^(as it is|wrong: .+?|right: .+?) {2,}([\d,.]+) +[\d.]+$", output, re.M)
    before, wrong, right = (float(ms.replace(",", "")) / 1e3 for _, ms in rows)
    assert rows[2][0] == "right: four loader workers" and (rows[1][0] == "wrong: a network four times as fast") is (
        world == 1
    )
    assert before >= INJECTED and wrong >= INJECTED and INJECTED / 4 <= right < wrong


def test_a_sealed_run_shows_counters_and_no_verdict():
    output = pool.output([*FAST, "--sealed", str(NUMBER["fixed"])])
    assert f"Run {NUMBER['fixed']}\n" in output and "update and all else" in output
    assert not any(f"{words} takes" in output for words in NAMES.values()) and "remedy" not in output
