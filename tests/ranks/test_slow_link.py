"""labs/slow_link.py: one real run, what it leaves behind (nothing), its model, and machines without."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from host_runs import of, real
from lab_runs import ENVIRONMENT, ROOT, alive, lab_module, run

from scaleout.lab import hosts as lab_hosts
from scaleout.lab import slow_link as lab_slow_link
from scaleout.records import results
from scaleout.timing import ddp

TINY = [
    "--layers",
    "1",
    "--hidden",
    "64",
    "--heads",
    "2",
    "--seq",
    "32",
    "--steps",
    "2",
    "--rounds",
    "1",
    "--rates",
    "500,50",
    "--factor",
    "2",
]


def slow_link(*words, **more):
    return run(["labs/slow_link.py", *words], **more)


# --- the lab ---------------------------------------------------------------------------------------------


@real
def test_a_real_run_measures_and_predicts_every_case(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "labs/slow_link.py", *TINY, "--latency-ms", "0.2", "--save", str(tmp_path / "out")],
        cwd=ROOT,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (0, "")
    records = lab_module("slow_link").recorded(tmp_path / "out")[("smoke", 2)]
    names = [lab_slow_link.words(r.recipe) for r in records]
    assert sorted(names) == sorted(
        [
            "unlimited",
            "500 Mbit/s",
            "50 Mbit/s",
            "50 Mbit/s, 2 passes with no_sync",
            "50 Mbit/s, batch x 2",
            "50 Mbit/s, bf16 gradients",
            "50 Mbit/s, PowerSGD of rank 2",
        ]
    )
    assert all(name in said for name in names)
    for r in records:
        assert (r.nodes, r.device_count, r.backend, len(r.step_seconds)) == (2, 2, "gloo", 2)
        assert r.checks["weights are equal on all hosts"] == {"value": 0.0, "tolerance": 0.0, "passed": True}
        assert 0 < r.prediction["seconds per step"] < 20
        assert r.effective_batch == 8 * r.recipe["accumulation"] * r.recipe["batch factor"]
        assert str(tmp_path) not in json.dumps(r.command)
    by = dict(zip(names, records, strict=True))
    size = by["50 Mbit/s"].recipe["gradient bytes"]
    least = (size - lab_hosts.burst(50e6)) / (50e6 / 8)  # on a wire of that rate, whatever the machine does
    for name in ("50 Mbit/s", "50 Mbit/s, 2 passes with no_sync", "50 Mbit/s, batch x 2"):
        assert min(by[name].step_seconds) > least
    assert ("latency was not applied" in said) or by["unlimited"].recipe["latency ms"] == 0.2
    assert of(process.pid) == set(), "no namespace is left"
    assert [p.name for p in tmp_path.iterdir()] == ["out"], "no temporary folder is left"


@real
def test_a_run_that_fails_on_a_host_is_one_line():
    done = slow_link(*TINY, "--dataset", "gone.txt")
    assert done.returncode == 2
    words = "no such file or folder (or one of stdlib-3.11, stdlib, stdlib+torch)"
    assert done.stderr == f"labs/slow_link.py: dataset gone.txt: {words}\n"


@real
def test_an_interrupted_run_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "labs/slow_link.py", *TINY],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while time.monotonic() < end and not list(tmp_path.glob("slow-link-*/shaped-0")):
        time.sleep(0.05)
    inside = [pid for name in of(process.pid) for pid in lab_hosts.inside(name)]
    assert len(inside) >= 4, "two launchers and two ranks"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read() == "labs/slow_link.py: stopped\n"
    assert of(process.pid) == set()
    assert not [pid for pid in inside if alive(pid)]
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_namespaces_gets_one_line_and_the_recorded_run(tmp_path):
    done = slow_link(PATH=str(tmp_path))  # a PATH without ip and tc, on any machine
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("labs/slow_link.py: needs ")
    assert first.endswith("; these runs were recorded elsewhere")
    table = "\n".join(rest)
    assert "200 Mbit/s, bf16 gradients" in table
    assert "2 hosts on a 2-core x86-64 CPU" in table


# --- the recorded runs -----------------------------------------------------------------------------------


def test_the_recorded_runs_show_what_the_chapter_says():
    for (_, hosts), rows in lab_module("slow_link").recorded().items():
        by = {lab_slow_link.words(r.recipe): r for r in rows}
        assert all(check["passed"] for r in rows for check in r.checks.values())
        assert all(r.nodes == hosts for r in rows)
        slow = min(r.recipe["link Mbit/s"] for r in rows if r.recipe["link Mbit/s"])
        plain = by[f"{slow:g} Mbit/s"]
        remedies = [r for name, r in by.items() if name.startswith(f"{slow:g} Mbit/s, ")]
        assert len(remedies) == 4
        assert plain.tokens_per_second < by["unlimited"].tokens_per_second
        assert all(r.tokens_per_second > plain.tokens_per_second for r in remedies), "each remedy helps"


def test_the_tables_tokens_a_second_are_those_of_the_step_beside_them():
    rows = lab_module("slow_link").recorded()["cpu", 2]
    for r, line in zip(rows, lab_slow_link.show(rows).splitlines()[2:], strict=True):
        cells = re.split(r"\s{2,}", line)
        seconds, tokens = (float(cells[n].replace(",", "")) for n in (1, 4))
        assert tokens * seconds / 1e3 == pytest.approx(r.effective_batch * r.sequence_length, rel=0.01)


# --- the model -------------------------------------------------------------------------------------------

FOUND = {
    "layers": [["a", 0.01, 0.02, 500_000], ["b", 0.01, 0.02, 500_000]],
    "rest_seconds": 0.0,
    "update_seconds": 0.001,
    "all_reduce": {"alpha_seconds": 0.0002, "seconds_per_byte": 1e-9},
    "lost": 0.0,
    "kept": 1.0,
    "powersgd_compression": 10.0,
    "full_seconds": {"none": [0.06], "bf16": [0.05], "powersgd": [0.07]},
}
PLAN = {"micro_batch": 4, "bucket_mb": 0.25}


def case(rate=None, hook="none", accumulation=1, sequences=4):
    return {"rate": rate, "hook": hook, "accumulation": accumulation, "sequences": sequences}


def test_a_slow_link_is_predicted_by_hand():
    """Two buckets of 500 kB at 100 Mbit/s: the first is ready at 40 ms, and both go out without a gap."""
    model = lab_slow_link.Model(FOUND, 2, PLAN)
    link = 100e6 / 8 * lab_hosts.GOODPUT
    wire = 1_000_000 * (1 - lab_hosts.burst(100e6) / 1_000_000) / link + 2 * 0.0002
    seconds, exposed = model.step(case(100e6))
    assert seconds == pytest.approx(0.04 + wire + 0.001)
    assert exposed == pytest.approx(wire - 0.02)
    assert model.quiet(case()) == pytest.approx(0.061)


def test_unlimited_is_the_schedule_with_the_measured_line():
    model = lab_slow_link.Model(FOUND, 2, PLAN)
    layers = [ddp.Layer(*one) for one in FOUND["layers"]]
    wanted = ddp.ddp_step(
        layers, lambda n: 0.0002 + n * 1e-9, cap_bytes=2**18, first_cap_bytes=2**18, update_seconds=0.001
    )
    assert model.step(case())[0] == pytest.approx(wanted.seconds)


def test_remedies_act_where_they_should():
    model = lab_slow_link.Model(FOUND, 2, PLAN)
    plain, bf16, power = (model.step(case(50e6, hook))[0] for hook in ("none", "bf16", "powersgd"))
    assert plain > bf16 > power
    assert model.hook_seconds("bf16") == 0.0, "faster than nothing is noise"
    assert model.hook_seconds("powersgd") == pytest.approx(0.01)
    four = model.step(case(50e6, accumulation=4))[0]
    assert four == pytest.approx(plain + 3 * 0.06), "three passes more, and the wire once"
    assert model.step(case(50e6), latency=0.01)[0] == pytest.approx(plain + 2 * 2 * 0.01)
    assert model.step(case(50e6, sequences=16))[0] < 4 * plain


def test_a_record_of_a_case_keeps_its_rules(tmp_path):
    lab = lab_module("slow_link")
    for r in (r for rows in lab.recorded().values() for r in rows[:1]):
        assert results.load(results.save(r, lab.path_of(tmp_path, r))) == r
        assert "," not in lab.path_of(tmp_path, r).name
