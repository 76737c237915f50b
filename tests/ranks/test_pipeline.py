"""Pipelines by hand and by torch on real processes: values, what is kept, orders, faults, and the lab."""

import json
import re

import pool
import pytest
import specimen_pipeline
from lab_runs import recorded, without

from scaleout.memory.loss import stage_kept
from scaleout.memory.pipeline import most_held
from scaleout.spec.mesh import blocks
from scaleout.spec.pipeline import SCHEDULES, orders
from scaleout.spec.recipe import Recipe
from scaleout.timing.pipeline_waits import blocked

FAST = ["labs/pipeline.py", "--hidden", "32", "--heads", "2", "--seq", "16", "--stage-ms", "1", "--steps", "4"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=[2, 4])
def cases(request):
    return request.param, pool.ranks(specimen_pipeline.main, request.param, request.param == 2)[0]


def test_every_way_computes_what_one_process_computes(cases):
    p, found = cases
    runs = {key: case for key, case in found.items() if key[0] in ("hand", "torch")}
    assert len(runs) == (19 if p == 2 else 9)
    for key, (loss, gradients, _, _) in runs.items():
        assert loss < TOLERANCE, key
        assert gradients < TOLERANCE, key


def test_a_tied_head_without_its_other_half_is_seen(cases):
    assert cases[1]["no tie"][0] < TOLERANCE, "the loss cannot tell"
    assert cases[1]["no tie"][1] > 0.1


def test_what_was_built(cases):
    p, found = cases
    for via, schedule in (key for key in found if key[0] in ("hand", "torch") and key[1] in SCHEDULES):
        _, _, built, stages = found[via, schedule]
        v = specimen_pipeline.chunks(schedule)
        assert sorted(stage for row in stages for stage in row) == list(range(p * v))
        assert built.endswith(f"{p * v} stage(s) on {p} rank(s)")
        assert built.startswith(f"Schedule{SCHEDULES[schedule].torch}," if via == "torch" else f"{schedule} by hand")
    assert found["hand", "zbv"][3][0] == [0, 2 * p - 1], "it bends back: the first rank has the last stage too"
    assert "one_f_one_b()" in found["hand", "1f1b"][2]


def test_bytes_kept_for_backward_are_those_of_the_formula(cases):
    p, found = cases
    for schedule in (key[1] for key in found if key[0] == "kept"):
        v = specimen_pipeline.chunks(schedule)
        layers = blocks(specimen_pipeline.LAYERS, p * v)
        kept = stage_kept(
            specimen_pipeline.shape(), specimen_pipeline.B, specimen_pipeline.SEQ, layers, Recipe(precision="fp32")
        )
        wanted = most_held(orders(schedule, p, 2 * p, v), kept)
        assert found["kept", schedule] == pytest.approx(wanted, rel=0.002), schedule  # the loss's weight: 4 bytes
    one = found["kept", "1f1b"]
    assert one == sorted(one, reverse=True)


def test_the_loop_is_the_schedules_order(cases):
    p, found = cases
    rows, steps = found["watched"]
    assert steps == 1
    assert [[tuple(action) for action in row] for row in orders("1f1b", p, 2 * p)] == rows


def test_an_output_is_kept_until_its_gradient_comes_and_no_longer(cases):
    p, found = cases
    assert found["outstanding"] == [[p - rank] for rank in range(p - 1)] + [[]]


def test_what_cannot_be_is_refused(cases):
    p, found = cases
    assert "1f1b needs a micro-batch for each of" in found["refused"][0]
    assert found["refused"][0].endswith(f"use m = {p}")
    assert found["refused"][1] == "torch has no naive schedule: use gpipe with one micro-batch"


def test_two_ranks_that_both_send_are_named():
    found = pool.ranks(specimen_pipeline.hang, 2)[0]
    assert found == [["send", "activations", 1, 1], ["send", "gradient", 0, 0]]
    ring = blocked(orders("1f1b", 2, 4), rendezvous=True)
    assert [(wait.rank, wait.action.kind, wait.action.micro, wait.sends) for wait in ring] == [
        (0, "F", 1, True),
        (1, "B", 0, True),
    ]


# --- the lab ----------------------------------------------------------------------------------------------------


def test_the_lab_on_two_processes_and_its_trace(tmp_path):
    path = tmp_path / "lanes.json"
    record, said = recorded(pool.lab, [*FAST, "--trace", str(path)], 2, tmp_path)
    assert all(check["passed"] for check in record.checks.values())
    assert len(record.checks) == 9 + 4 + 1
    for name in ("GPipe", "1F1B", "interleaved 1F1B, v = 2", "zero-bubble ZB1, v = 2"):
        for way in ("by hand", "torch"):
            assert f"{name}, {way}: loss and gradients equal one process" in record.checks
            assert 0 < record.prediction[f"bubble of the step, {name}, {way}, 1 ms stages"] < 1
        for rank in (0, 1):
            key = f"bytes kept for backward, {name}, rank {rank}"
            assert record.measurement[key] == pytest.approx(record.prediction[key], rel=0.02)
    assert record.losses[-1] < record.losses[0]
    assert record.skipped == ["Accelerate: it has no pipeline of its own for training (prepare_pippy is for inference)"]
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    for rank, row in enumerate(orders("1f1b", 2, 4)):
        lane = sorted((e for e in events if e["pid"] == rank), key=lambda e: e["ts"])
        assert [e["name"] for e in lane] == [f"{kind}{i} stage {stage}" for kind, stage, i in row]
    assert len(re.findall(r"^rank \d  [\da-h.]{66}$", said, re.M)) == 4


def test_one_process_checks_what_it_can():
    output = pool.output(FAST)
    assert "ok     naive, by hand: loss and gradients equal one process" in output
    assert "skipped bubbles, lanes and torch's schedules: one process is no pipeline" in output


def test_faults_are_shown():
    untrained = without(FAST, "--steps")
    early = pool.output([*untrained, "--fault", "receive"], 2)
    assert re.search(
        r"^rank (\d) is blocked for [\d.]+ ms in a receive for F0 of stage [23], after F0 of stage \1: "
        r"F1 of stage \1 waits behind it$",
        early,
        re.M,
    )
    heavy = pool.output([*untrained, "--fault", "head", "--hop-ms", "1"], 2)
    assert re.search(r"^even +16-16 ", heavy, re.M)
    assert re.search(r"^balanced +17-15 ", heavy, re.M)
