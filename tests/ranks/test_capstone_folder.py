"""The training job in a folder where another run was, with other options than before, or with what cannot be."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pool
import pytest
import ready
from capstone_runs import TINY, train
from lab_runs import lab_module
from repo import ROOT
from samples import holder

from scaleout.lab import session
from scaleout.records import checkpoints, results
from scaleout.train import job as train_job

pytestmark = pytest.mark.usefixtures("no_profile")


def lines(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


def refused(capsys, *words):
    """The line with which the job ends."""
    with pytest.raises(SystemExit) as caught:
        train(*words)
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    return line


# --- another run's folder ----------------------------------------------------------------------------------


def test_a_job_without_checkpoints_cuts_nothing_of_a_run_with_them(tmp_path, capsys):
    train("--steps", "9", "--folder", str(tmp_path), "--checkpoint-every", "3")
    before = lines(tmp_path)
    said = refused(capsys, "--steps", "5", "--folder", str(tmp_path), "--checkpoint-every", "none")
    assert "holds a run with checkpoints, and --checkpoint-every none does not go on from them" in said
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    for _ in range(2):  # the folder missing, then empty
        said = refused(capsys, "--steps", "12", "--folder", str(tmp_path), "--checkpoint-every", "3")
        assert re.search(r"holds 9 steps of a run that made checkpoints, and .*/checkpoints has none: bring them", said)
    assert lines(tmp_path) == before
    assert "--resume needs a place: add --folder FOLDER" in refused(capsys, "--resume", "3")


@pytest.mark.parametrize("cadence", ["none", "50"])
def test_a_run_that_came_to_no_checkpoint_is_begun_again_and_its_lines_are_kept(cadence, tmp_path):
    words = ["--folder", str(tmp_path), "--checkpoint-every", cadence]
    train("--steps", "9", *words[:2], "--checkpoint-every", "none")
    before = lines(tmp_path)
    job = train("--steps", "5", *words)
    assert (tmp_path / "metrics.1.jsonl").read_text().splitlines() == before
    assert job.metrics.column("step") == [1, 2, 3, 4, 5]
    assert [row["event"] for row in job.metrics.events] == [
        "the folder holds 9 step(s) of an earlier run that came to no checkpoint",
        "kept as found: metrics.jsonl as metrics.1.jsonl, sample.txt as sample.1.txt, plot.svg as plot.1.svg",
    ]
    assert job.metrics.events == [row for row in map(json.loads, lines(tmp_path)) if "event" in row]


def test_a_running_job_keeps_its_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scaleout.train.folder.claim.__defaults__", ((), 0.2))
    with holder(tmp_path) as first:
        for cadence in ("none", "3"):
            said = refused(capsys, "--steps", "5", "--folder", str(tmp_path), "--checkpoint-every", cadence)
            assert f"another job writes in {tmp_path} (process {ready.process_of(first.pid)} on " in said
        first.communicate("\n")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"], "nothing was written"


def test_the_job_itself_has_the_folder_while_it_trains(tmp_path):
    said = []

    def another(job):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys\nfrom scaleout.train import folder\nfolder.claim(sys.argv[1], patience_s=0)",
                str(tmp_path),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        said.append(done.stderr)

    train("--steps", "5", "--folder", str(tmp_path), at={3: another})
    assert f"another job writes in {tmp_path} (process {os.getpid()} on " in said[0]


# --- the end -----------------------------------------------------------------------------------------------


def test_neither_the_sample_nor_the_plot_nor_a_prompt_of_several_lines_costs_the_record(tmp_path, monkeypatch, capsys):
    words = [
        "--steps",
        "5",
        "--folder",
        str(tmp_path),
        "--prompt",
        "def f():\n    /x \udcff",
        "--temperature",
        "1e-40",
        "--save",
        str(tmp_path / "record.json"),
    ]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "plot.svg")

    monkeypatch.setattr(sys, "argv", ["labs/capstone.py", *words])
    monkeypatch.setattr(train_job.report, "plot", full)
    assert refused(capsys, *words).endswith("plot.svg: no space left on device: free some space")
    record = results.load(tmp_path / "record.json")
    assert record.skipped[-1].startswith("sample: RuntimeError: probability tensor contains")
    assert "--prompt 'def f():?    .../x ?' --temperature 1e-40" in record.command


# --- taken up again ----------------------------------------------------------------------------------------


def test_options_that_change_are_events_and_the_record_goes_by_span(tmp_path):
    words = ["--folder", str(tmp_path), "--checkpoint-every", "6"]
    train("--steps", "6", *words)
    changed = ["--lr", "1e-4", "--clip", "0.3", "--precision", "bf16", "--weight-decay", "0.2"]
    job = train("--steps", "12", *words, *changed)
    told = [row["event"] for row in job.metrics.events if row["event"].startswith("--")]
    assert sorted(told) == [
        "--clip 1.0 -> 0.3 from step 7 on",
        "--lr 0.003 -> 0.0001 from step 7 on",
        "--precision fp32 -> bf16 from step 7 on",
        "--weight-decay 0.1 -> 0.2 from step 7 on",
    ]
    newest = checkpoints.manifest(tmp_path / "checkpoints" / "step-00000012")["extra"]["spans"]
    assert [(span["after"], span["options"]["--precision"]) for span in newest] == [(0, "fp32"), (6, "bf16")]
    job = train("--steps", "14", *words, *changed, "--save", str(tmp_path / "record.json"))
    assert len([row for row in job.metrics.events if row["event"].startswith("--")]) == 4, "each is said once"
    record = results.load(tmp_path / "record.json")
    assert record.precision == "fp32 to step 6, bf16 after it"
    assert "--lr: 0.003 to step 6, 0.0001 after it" in record.notes
    moved = "the learning rate now falls until step 14; before, until 12"
    assert {"--clip 1.0 -> 0.3 from step 7 on", moved} <= {*record.notes}, "what somebody changes is no failure"
    assert all("resumes after step" in line for line in record.failures) and len(record.failures) == 2


def test_the_screen_says_what_is_saved_and_when_the_next_checkpoint_comes(tmp_path, capsys):
    train("--steps", "20", "--folder", str(tmp_path / "auto"))
    said = capsys.readouterr().out
    after = re.search(r"the next checkpoint after step ([\d,]+), in about [\d,]+ s \(Young's formula: ", said)[1]
    assert int(after.replace(",", "")) > 12
    assert re.search(r"step +20 of 20 .* s to go; (saved after step 12|not saved yet), next at the end", said)
    train("--steps", "20", "--folder", str(tmp_path / "six"), "--checkpoint-every", "6")
    said = capsys.readouterr().out
    assert re.search(r"step +20 of 20 .* s to go; saved after step (12|18), next at the end", said)
    assert "the next checkpoint after" not in said
    train("--steps", "20")
    assert "saved" not in capsys.readouterr().out


def test_fewer_steps_than_are_done_are_said_with_the_option_and_leave_no_word(tmp_path, capsys):
    words = ["--folder", str(tmp_path), "--checkpoint-every", "6"]
    train("--steps", "12", *words)
    capsys.readouterr()
    job = train("--steps", "6", *words)
    said = capsys.readouterr().out
    assert "nothing to train: 12 steps are done, and --steps is 6: give a larger --steps\n12 steps read " in said
    train("--steps", "12", *words)
    job = train("--steps", "14", *words)
    assert [row["event"] for row in job.metrics.events if "rate now falls" in row["event"]] == [
        "the learning rate now falls until step 14; before, until 12"
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--seq", "16"], "--seq 32, this job 16"),
        (["--hidden", "64"], "--hidden 32, this job 64"),
        (["--layers", "2"], "--layers 1, this job 2"),
        (["--style", "gpt"], "--style llama, this job gpt"),
        (["--ff", "96"], "--ff 64, this job 96"),
        (["--heads", "4"], "--heads 2, this job 4"),
        (["--held-out", "0.1"], "text "),
    ],
)
def test_what_a_run_keeps_to_its_end_is_refused_by_the_option(changed, said, capsys, begun):
    line = refused(capsys, *begun, *changed)
    assert f"the checkpoint of step 5 is of another run: it has {said}" in line


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    words = ["--steps", "5", "--folder", str(tmp_path_factory.mktemp("begun")), "--checkpoint-every", "5"]
    train(*words)
    return words


def test_a_checkpoint_of_an_older_version_goes_by_its_model(tmp_path, capsys):
    words = ["--steps", "5", "--folder", str(tmp_path), "--checkpoint-every", "5"]
    train(*words)
    path = tmp_path / "checkpoints" / "step-00000005" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    old = ("--seq", "--batch", "--seed", "text", "--held-out", "model")
    body["extra"]["run"] = {name: value for name, value in body["extra"]["run"].items() if name in old}
    path.write_text(json.dumps({"sha256": checkpoints._digest(body), "body": body}))
    assert "it has model Shape(layers=1" in refused(capsys, *words, "--hidden", "64")
    assert train(*words).done == 5


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"steps": "many"}, "manifest.json has no sound steps"),
        ({"run": None}, "manifest.json has no sound run"),
        ({"run": {}}, "manifest.json has no sound run"),
        ({"step": 11}, "manifest.json is of step 12, and what the job left in it of step 11"),
        ({"spans": [{"after": 13, "options": {}}]}, "manifest.json has spans of steps that are not those to step 12"),
        ({"every": 0}, "manifest.json has no sound every"),
        ({"spans": [7]}, "manifest.json has no sound spans"),
        ({"spans": [{"after": 0, "options": {"--lr": "a\nb"}}]}, "manifest.json has no sound spans"),
        (None, "manifest.json has no sound extra"),
    ],
)
def test_extra_facts_of_another_kind_are_damage_and_the_checkpoint_before_is_used(extra, said, tmp_path):
    words = ["--folder", str(tmp_path), "--checkpoint-every", "6", "--steps", "12"]
    train(*words)
    path = tmp_path / "checkpoints" / "step-00000012" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    body["extra"] = None if extra is None else body["extra"] | extra
    path.write_text(json.dumps({"sha256": checkpoints._digest(body), "body": body}))
    job = train(*words)
    assert job.metrics.events[0]["event"] == f"checkpoint step 12 is damaged ({said}): using step 6"
    assert job.done == 12


# --- what cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layers", "1000000000"], r"take [\d,.]+ GB, and this machine has"),
        (["--hidden", "1000000000", "--heads", "1"], "take"),
        (["--batch", "1000000000000"], "--batch is 1000000000000: it must be from 1 to 1000000000"),
        (["--batch", "1000000000"], "one validation batch takes"),
        (["--steps", "-1"], "--steps is -1: it must be from 4"),
        (["--lr", "nan"], "'nan' is not a finite number"),
        (["--lr", "inf"], "'inf' is not a finite number"),
        (["--clip", "-1"], "--clip is -1"),
        (["--steps", "\u00b2"], "is not a whole number"),
        (["--checkpoint-every", "\u00b2", "--folder", "x"], "--checkpoint-every \u00b2: use auto, none, or a number"),
        (["--checkpoint-every", "\uff15", "--folder", "x"], "--checkpoint-every \uff15: use auto, none, or a number"),
        (["--resume", "\u00b2", "--folder", "x"], "--resume \u00b2: use auto, none, or the step of a checkpoint"),
        (["--reshard", "\u00b2"], "--reshard \u00b2: use true, false, or a number of ranks"),
        (["--folder", "README.md/x"], "--folder README.md/x: is a file, or cannot be written to"),
        (["--save", "/dev/full"], "/dev/full: the name must end in .json"),
        (["--save", "README.md/x.json"], "README.md/x.json: cannot be written"),
        (["--folder", "x.json", "--save", "x.json"], "--save x.json would be a file where --folder x.json is a folder"),
        (["--folder", "x.json/y", "--save", "x.json"], "--save x.json would be a file where --folder x.json/y is"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_step(words, said, monkeypatch):
    monkeypatch.setattr(train_job, "close", None)
    module = lab_module("capstone")
    monkeypatch.setattr(module.Job, "step", None)
    with session.session("cpu") as s, pytest.raises(ValueError, match=said) as caught:
        module.main(s, [*TINY, *words])
    assert "\n" not in str(caught.value)
    assert not Path("x").exists() and not Path("x.json").exists()


def test_a_disk_without_room_for_the_metrics_is_one_line(tmp_path):
    """/dev/full answers every write as a full disk does."""
    code = """import sys
sys.path.insert(0, "labs")
import capstone
from scaleout.lab import session
from scaleout.train.metrics import Metrics

begin = Metrics.begin

def full(metrics, *words):
    found = begin(metrics, *words)
    metrics.path.unlink()
    metrics.path.symlink_to("/dev/full")
    return found

Metrics.begin = full
session.run(capstone.main)
"""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "full.py").write_text(code)
    done = pool.lab([tmp_path / "full.py", *TINY, "--steps", "9", "--folder", tmp_path / "run"])
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith("metrics.jsonl: no space left on device: free some space")
