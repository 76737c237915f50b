"""labs/architecture.py as a reader starts it: ten faults, the rule's verdicts, traces, scores, input, saves, placement.

What is slept is compared with its least. A machine so busy that a fault drowns may keep the rule from naming it; it may
not make the rule name another.
"""

import json
import math
import re
from itertools import pairwise

import pool
import pytest
from host_runs import real
from lab_runs import run

from scaleout.lab import architecture
from scaleout.records import results
from scaleout.records import trace as records_trace
from scaleout.timing import diagnosis, stragglers
from scaleout.timing.diagnosis import NAN, SLOW_DISK, SLOW_LINK, SLOW_RANK

LAB, INJECTED, STEPS = "labs/architecture.py", 0.1, 8
RANKS = 4  # the chapter runs all ten on two
FAST = [LAB, "--injected-ms", "100"]
NUMBER = {fault: number for number, fault in architecture.sealed().items()}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """(Record, exit code) of all ten runs on RANKS processes."""
    out = tmp_path_factory.mktemp("architecture") / "record.json"
    done = pool.lab([*FAST, "--save", str(out)], RANKS)
    assert out.exists(), done.stderr[-2000:] + done.stdout
    return results.load(out), done.returncode


def test_the_rule_names_each_fault_and_its_rank_or_abstains(judged):
    record, code = judged
    named = {number: record.checks[f"run {number}: the rule names {diagnosis.NAMES[fault]}"]["passed"]
             for fault, number in NUMBER.items()}  # fmt: skip
    assert len(record.checks) == 20 and record.device_count == RANKS
    notes = {int(n): words for n, words in re.findall(r"^run (\d+): (.*)$", "\n".join(record.notes), re.M)}
    assert set(notes) == set(named)
    assert all(right or "no fault stands out" in notes[number] for number, right in named.items()), notes
    origin = architecture.culprits(RANKS)
    for fault, number in NUMBER.items():
        place = architecture.place(origin.get(fault))
        assert record.checks[f"run {number}: it begins on {place}"]["passed"] or not named[number]
    assert named[NUMBER[NAN]] and named[NUMBER[SLOW_LINK]], "neither is a matter of who computes how long"
    assert (code == 0) == all(check["passed"] for check in record.checks.values())


def test_what_is_injected_is_lost_and_every_fault_costs_the_same(judged):
    record, _ = judged
    for fault, number in NUMBER.items():
        seconds = record.series[f"seconds per step, run {number}"]
        assert len(seconds) == STEPS
        least = 0.0 if fault == NAN else STEPS * INJECTED
        assert sum(seconds) > 0.99 * (STEPS * 0.02 + least), fault
    guesses = [record.prediction[f"seconds, run {number}"] for fault, number in NUMBER.items()
               if fault not in (NAN, "lengths")]  # fmt: skip
    assert max(guesses) == pytest.approx(min(guesses), abs=1e-6)
    assert record.prediction[f"seconds, run {NUMBER[NAN]}"] == pytest.approx(guesses[0] - STEPS * INJECTED, abs=1e-6)
    assert len(record.losses) == STEPS and all(map(math.isfinite, record.losses))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """(folder, the finished launch) of the run with a slow rank on four processes, with its files."""
    folder = tmp_path_factory.mktemp("rows")
    words = ["--sealed", str(NUMBER[SLOW_RANK]), "--rows", str(folder), "--trace", str(folder / "run.json")]
    return folder, pool.lab([*FAST, *words], 4)


def test_a_sealed_run_shows_counters_and_no_verdict(sealed):
    _, done = sealed
    assert done.returncode == 0, done.stderr
    assert f"Run {NUMBER[SLOW_RANK]}\n" in done.stdout and "its local work and its all-reduce" in done.stdout
    assert not any(words in done.stdout for words in diagnosis.NAMES.values()) and "Evidence" not in done.stdout


def test_the_rows_of_all_ranks_are_one_trace_in_which_the_slow_rank_waits_least(sealed):
    folder, _ = sealed
    by_rank = [[json.loads(line) for line in (folder / f"rank-{r}.jsonl").read_text().splitlines()] for r in range(4)]
    assert [{row["rank"] for row in rows} for rows in by_rank] == [{0}, {1}, {2}, {3}]
    stored = json.loads((folder / "rows.json").read_text())
    assert sorted(stored) == ["made", "rows"]
    assert sorted(stored["rows"], key=lambda row: (row["rank"], row["step"])) == [
        row for rows in by_rank for row in rows
    ]
    trace = stragglers.read(stored["rows"])
    assert (trace.ranks, len(trace.steps)) == (4, STEPS)
    waited = [sum(row.waited for row in trace.rows(rank)) for rank in range(4)]
    slow = architecture.culprits(4)[SLOW_RANK]
    assert waited.index(min(waited)) == slow == stragglers.culprit(trace).rank
    assert all(after.start == row.end for row, after in pairwise(trace.rows(0)))
    for rows in trace.steps:
        ends = [row.collectives[0][1] for row in rows]
        assert min(ends) >= max(row.collectives[0][0] for row in rows), "nobody leaves before the last has arrived"
    assert sum(row.local("compute") for row in trace.rows(slow)) >= STEPS * (INJECTED + 0.02)


def test_the_trace_for_perfetto_has_every_span(sealed):
    folder, done = sealed
    assert "run.json; open it at https://ui.perfetto.dev" in done.stdout
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    data = json.loads((folder / "run.json").read_text())
    complete = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(rows) + sum(len(row["spans"]) for row in rows)
    assert data["displayTimeUnit"] == "ms" and {event["ph"] for event in data["traceEvents"]} == {"M", "X", "C"}
    assert records_trace.load(folder / "run.json").ranks == [0, 1, 2, 3]
    assert all(event["dur"] >= 0 and event["pid"] in range(4) for event in complete)


@pytest.mark.parametrize(
    ("world", "fault", "said", "begins"),
    [
        (1, SLOW_DISK, "slow-link", "Not a slow link: the all-reduce is long because ranks wait in it"),
        (2, NAN, "nan", "Right. "),
    ],
)
def test_a_verdict_is_judged_with_evidence_and_cascade(world, fault, said, begins):
    output = pool.output([*FAST, "--verdict", f"{NUMBER[fault]}={said}"], world)
    assert f"\n{begins}" in output
    origin = architecture.culprits(2)[fault]
    assert f"\nInitiating: {diagnosis.NAMES[fault]} (rank {origin}). Cascade: " in output
    if fault == NAN:
        assert f"Evidence: rank {origin} has the first value that is not finite, in step 4." in output
        assert "Cascade: 1 more from step 5." in output
    assert ("\n* emulated: " in output) is (world == 1)


def test_verdicts_of_a_tool_are_scored_without_a_run(tmp_path):
    (tmp_path / "said.txt").write_text(f"{NUMBER[NAN]}=nan:{architecture.culprits(2)[NAN]}\n{NUMBER[SLOW_LINK]}=heat\n")
    output = pool.output([LAB, "--score", str(tmp_path / "said.txt")])
    assert output.splitlines()[-1] == (
        "1 of 10 right, 1 wrong, 8 abstained; 50% of what was named; rank right in 1 of 1"
    )


def test_several_faults_at_once_are_all_there_and_the_slow_rank_leads():
    output = pool.output([*FAST, "--mixed", "--steps", "12"], 3)
    assert re.search(r"^rank 2 is in collectives for ", output, re.M)
    lost = dict(re.findall(r"^(compute|transfer|input|save|collect) +([\d.]+) +\d+%$", output, re.M))
    assert float(lost["compute"]) == max(map(float, lost.values())) and float(lost["transfer"]) >= 3 * INJECTED


# --- the other modes ----------------------------------------------------------------------------------------


def test_input_overlaps_with_workers_packs_and_resumes_exactly():
    output = pool.output([LAB, "--input"], 2)
    rows = re.findall(r"^(\d) workers? +([\d.]+) +([\d.]+) ", output, re.M)
    assert [(w, p) for w, p, _ in rows] == [("0", "50.0"), ("1", "30.0"), ("2", "20.0")]
    measured = [float(ms) for *_, ms in rows]
    assert measured[0] >= 50 and min(measured) >= 20 and measured[2] < measured[0]
    assert "42.6% of the tokens are real if each document is padded,\n99.6% if documents are packed" in output
    resumed = dict(re.findall(r"^(from the start|by reading on|by position) +(\d) ", output, re.M))
    assert resumed == {"from the start": "5", "by reading on": "0", "by position": "0"}
    assert output.count("ok     ") >= 3 and "FAILED" not in output


def test_saves_block_and_a_copy_keeps_the_weights_of_its_step():
    """Of one process, which needs no group for them; the chapter saves on two."""
    output = pool.output([LAB, "--saves"])
    rows = re.findall(r"^(synchronous|asynchronous|asynchronous, too often) +(\d) +([\d.]+) +([\d.]+) ", output, re.M)
    by_way = {way: (int(count), float(predicted), float(measured)) for way, count, predicted, measured in rows}
    assert [by_way[way][0] for way in by_way] == [2, 2, 6]
    assert min(by_way["synchronous"][1:]) >= 150
    assert by_way["asynchronous"][2] < by_way["synchronous"][2]
    live = float(re.search(r"live weights saves others than were asked for: off by (\S+)$", output, re.M)[1])
    assert live > 1e-5
    assert "ok     the asynchronous checkpoint has the weights of its step: 0 " in output


@real
def test_groups_across_the_hosts_cost_what_their_bytes_take(tmp_path):
    done = run([LAB, "--placement", "100", "--save", str(tmp_path / "r.json")])
    assert done.returncode == 0, done.stderr
    record = results.load(tmp_path / "r.json")
    assert (record.nodes, record.device_count, record.recipe["link Mbit/s"]) == (2, 4, 100)
    leaves = {name: record.recipe[f"bytes that leave a host, placed {name}"] for name in ("well", "badly")}
    assert leaves == {"well": 2 * 2**20, "badly": 16 * 2**20}
    for kind in (record.prediction, record.measurement):
        well, badly = (kind[f"seconds per step, placed {name}, 100 Mbit/s"] for name in ("well", "badly"))
        assert badly > (leaves["badly"] - 8 * 2**17) / (100e6 / 8) and badly > well
    assert "placed badly, 100 Mbit/s" in done.stdout


def test_a_machine_without_namespaces_gets_one_line_and_the_recorded_run(tmp_path):
    done = run([LAB, "--placement"], PATH=str(tmp_path))  # a PATH without ip and tc, on any machine
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("labs/architecture.py: needs ") and first.endswith("; this run was recorded elsewhere")
    assert "placed badly, 200 Mbit/s" in "\n".join(rest)


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--verdict", "3=disk"], "--verdict 3=disk: a verdict is one of slow-rank, slow-disk, slow-link,"),
        (["--placement"], "--placement starts its own processes: start it with python, not with torchrun"),
    ],
)
def test_bad_input_is_one_line_for_all_ranks(words, said):
    done = pool.lab([LAB, *words], 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{LAB}: {said}") and done.stderr.count("\n") == 1
