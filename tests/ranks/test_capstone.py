"""labs/capstone.py and what it stands on: every way to spread the model, the run of a job, its stops and restarts."""

import json
import os
import re
import shutil
import signal
import statistics
import threading
from dataclasses import asdict

import pool
import pytest
import samples
import specimen_capstone
import torch
from capstone_runs import TINY, train, weights
from lab_runs import lab_module, recorded, torchrun

from scaleout.lab import session
from scaleout.records import profiles, results
from scaleout.spec.transformer import total_parameters
from scaleout.train import options
from scaleout.train.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("no_profile")


# --- the trainer ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases():
    return pool.ranks(specimen_capstone.main, 2)[0]


SHARDED = {
    "block": (3, 74_048),
    "kept": (3, 74_048),
    "whole": (1, 74_048),
    "layer": (17, 74_048),
    "copies": (3, 148_096),
    "recomputed": (3, 74_048),
    "accumulated": (3, 74_048),
    "every pass": (3, 74_048),
}
REPLICATED = ("ddp", "ddp accumulated", "ddp every pass")


def test_every_way_makes_the_steps_of_one_process(cases):
    assert min(cases["norms"]) < 0.7 < max(cases["norms"]), "clipping acts in some steps only"
    for name in (*SHARDED, *REPLICATED):
        assert cases[name]["loss"] < 1e-6, name
        assert cases[name]["norm"] < 1e-6, name
        assert cases[name]["weights"] < 2e-3, f"{name}: AdamW divides a rounding error by its own size"
        assert cases[name]["validation"] == pytest.approx(cases["block"]["validation"], abs=2e-5)


def test_what_was_built_is_what_was_asked_for(cases):
    for name, (units, held) in SHARDED.items():
        assert f"{units} units" in cases[name]["built"], name
        assert f"{held:,} of 148,096 bytes on rank 0" in cases[name]["built"], name
    assert "mesh {'replicate': 2, 'shard': 1}" in cases["copies"]["built"]
    for name in REPLICATED:
        assert cases[name]["built"] == "DistributedDataParallel on 2 process(es)"


def test_all_ranks_write_and_all_ways_write_alike(cases):
    for name in (*SHARDED, *REPLICATED):
        for kind in ("sample", "drawn"):
            assert cases[name][kind] == cases["block"][kind], name
            assert len(cases[name][kind]) == 7
            assert cases[name][kind][0] == 5


# --- the job ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A run on two processes: (folder, Record, what it said)."""
    folder = tmp_path_factory.mktemp("run")
    return folder, *recorded(
        torchrun,
        [
            "labs/capstone.py",
            *TINY,
            "--steps",
            "200",
            "--lr",
            "1e-2",
            "--folder",
            str(folder),
            "--checkpoint-every",
            "100",
        ],
        2,
        folder,
    )


def test_two_processes_learn(sharded):
    _, record, said = sharded
    assert 5.4 < record.losses[0] < 5.7, "ln 256 is 5.55"
    assert sum(record.losses[-20:]) / 20 < 2.9
    assert record.series["validation nats a byte"][-1] < 2.9
    assert record.series["validation step"] == list(range(10, 201, 10))
    assert (record.device_count, record.backend, record.effective_batch) == (2, "gloo", 8)
    assert (record.recipe["strategy"], record.recipe["wrap"], record.recipe["ranks"]) == ("fsdp", "block", 2)
    assert any("fully_shard: 2 units by block" in note for note in record.notes)
    assert "step    200 of 200" in said


def test_the_record_holds_what_a_write_up_asks_for(sharded):
    folder, record, _ = sharded
    assert record.checkpoint_cadence == "every 100 steps"
    assert record.series["checkpoint step"] == [100, 200]
    assert min(record.series["checkpoint blocked seconds"]) > 0
    for name in ("data wait seconds", "gradient norm", "learning rate"):
        assert len(record.series[name]) == len(record.step_seconds) == 200
    assert max(record.series["learning rate"]) == 1e-2
    assert 0 < record.mfu < 1
    assert "timed in this run" in record.mfu_peak["source"]
    assert record.failures == []
    assert record.skipped == ["seconds per step: no machine profile (labs/calibrate.py at this number of processes)"]
    assert str(folder) not in json.dumps(asdict(record))


def test_bytes_are_as_predicted(sharded):
    _, record, _ = sharded
    assert record.checks["peak within 2% of the prediction"]["passed"]
    assert set(record.peak_memory) >= {"weights", "optimizer", "activations"}
    assert record.measurement["peak bytes"] == sum(record.peak_memory.values())
    assert record.prediction["peak bytes"] == pytest.approx(record.measurement["peak bytes"], rel=0.02)
    half = total_parameters(options.Options(layers=1, hidden=32, heads=2, ff=64, seq=32).shape) * 4 // 2
    assert record.measurement["weights bytes at the peak"] == half
    assert record.measurement["optimizer bytes at the peak"] == pytest.approx(2 * half, rel=0.01)


def test_seconds_are_predicted_from_a_profile(tmp_path):
    profile = profiles.save(samples.profile(1), tmp_path / "machine.json")
    train("--steps", "9", "--machine", str(profile), "--save", str(tmp_path / "record.json"))
    record = results.load(tmp_path / "record.json")
    assert record.skipped == []
    assert 0 < record.prediction["seconds per step"] < 10
    assert record.measurement["seconds per step"] == statistics.median(record.step_seconds[3:])
    assert record.prediction["tokens per second"] == pytest.approx(8 * 32 / record.prediction["seconds per step"])


def test_the_folder_holds_metrics_a_plot_and_a_sample(sharded):
    folder, record, said = sharded
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 201))
    assert [row["loss"] for row in steps] == record.losses
    assert [row["step"] for row in rows if "checkpoint" in row] == [100, 200]
    sample = (folder / "sample.txt").read_text()
    assert sample.startswith("def ")
    assert sample in said
    assert "validation" in (folder / "plot.svg").read_text()
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000100", "step-00000200"]


# --- one process, in this one ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 30 steps that nothing stopped, and the folder it left."""
    folder = tmp_path_factory.mktemp("whole")
    return train("--steps", "30", "--folder", str(folder), "--checkpoint-every", "none"), folder


def assert_same(job, folder, whole):  # bit for bit
    other, there = whole
    for name in ("step", "loss", "rate", "norm"):
        assert job.metrics.column(name) == other.metrics.column(name), name
    asked = [row for row in job.metrics.validations if row["step"] % job.o.validate_every == 0]  # "auto" has more
    assert asked == other.metrics.validations
    assert torch.equal(weights(job), weights(other))
    assert (folder / "sample.txt").read_text() == (there / "sample.txt").read_text()


def test_nan_stops_the_run_which_goes_on_bit_for_bit(tmp_path, whole, capsys):
    """However long the checkpoint of step 12 takes to write: here until the run waits for it, at the NaN."""
    words = ["--steps", "30", "--folder", str(tmp_path), "--checkpoint-every", "12"]
    publish, finish, waited_for = Checkpoints._publish, Checkpoints.finish, threading.Event()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(Checkpoints, "_publish", lambda *words: waited_for.wait() and publish(*words))
        train(
            *words,
            "--inject",
            "nan:20",
            at={20: lambda job: patch.setattr(Checkpoints, "finish", lambda kept: waited_for.set() or finish(kept))},
        )
    assert caught.value.code == 2
    assert "loss is nan at step 20; the last good checkpoint is step 12" in capsys.readouterr().err
    job = train(*words)
    assert_same(job, tmp_path, whole)
    (event,) = (row["event"] for row in job.metrics.events)  # how many are logged is a matter of the machine's speed
    assert re.match(r"started again: resumes after step 12 on 1 process\(es\); [0-7] logged step", event)


def test_a_gradient_that_is_no_number_is_not_saved(tmp_path, capsys):
    def overflow(job):
        job.trainer.update = lambda rate: torch.tensor(torch.inf)

    with pytest.raises(SystemExit):
        train("--steps", "30", "--folder", str(tmp_path), "--checkpoint-every", "7", at={14: overflow})
    assert "the norm of the gradient is inf at step 14; the last good checkpoint is step 7" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000007"]


def test_sigterm_saves_and_leaves_with_its_own_code(tmp_path, whole, capsys):
    words = ["--steps", "30", "--folder", str(tmp_path), "--checkpoint-every", "auto"]
    with pytest.raises(SystemExit) as caught:
        train(*words, at={14: lambda job: os.kill(os.getpid(), signal.SIGTERM)})
    assert caught.value.code == 75
    kept = "saved; the same command resumes from there"
    found = re.search(rf"stopped by SIGTERM after step (\d+) of 30: {kept}\n", capsys.readouterr().out)
    assert 14 <= int(found[1]) <= 20, "at the next look, which is sooner where steps are slow, or the next validation"
    job = train(*words)
    assert_same(job, tmp_path, whole)
    assert [row["event"] for row in job.metrics.events] == [
        f"SIGTERM after step {found[1]}: {kept}",
        f"started again: resumes after step {found[1]} on 1 process(es); 0 logged step(s) after it will be repeated",
    ]


def test_fsdp_on_one_process_makes_the_same_steps(whole, tmp_path):
    job = train("--steps", "30", "--strategy", "fsdp", "--folder", str(tmp_path), "--checkpoint-every", "none")
    assert job.metrics.column("loss") == pytest.approx(whole[0].metrics.column("loss"), rel=1e-5)
    assert "2 units by block" in job.trainer.built


def test_one_process_goes_on_with_the_run_of_two(sharded, tmp_path):
    folder, record, _ = sharded
    shutil.copytree(folder / "checkpoints" / "step-00000100", tmp_path / "checkpoints" / "step-00000100")
    shutil.copy(folder / "metrics.jsonl", tmp_path)
    job = train("--steps", "200", "--lr", "1e-2", "--folder", str(tmp_path), "--checkpoint-every", "100")
    assert job.metrics.column("loss")[:100] == record.losses[:100]
    assert job.metrics.column("loss")[100:110] == pytest.approx(record.losses[100:110], rel=1e-4)
    assert job.metrics.column("loss")[100:] == pytest.approx(record.losses[100:], rel=0.02), "the same windows"
    assert job.metrics.events[0]["event"].endswith("100 logged step(s) after it will be repeated")


def test_a_restart_by_the_launcher_goes_on_even_where_none_was_asked_for(tmp_path, monkeypatch):
    words = ["--steps", "20", "--folder", str(tmp_path), "--checkpoint-every", "5", "--resume", "none"]
    train(*words)
    with pytest.raises(SystemExit):
        train(*words)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    job = train("--steps", "25", *words[2:])
    assert job.metrics.events[0]["event"].startswith("restart 2: resumes after step 20 on 1 process(es)")
    assert len(job.metrics.steps) == 25


def test_minutes_become_steps(capsys):
    job = train("--minutes", "0.02")
    assert job.steps >= 12
    assert job.done == job.steps == len(job.metrics.steps)
    assert f"0.02 minutes are {job.steps:,} steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "3"], "--steps is 3: it must be from 4"),
        (["--reshard", "often"], "--reshard often: use true, false, or a number of ranks"),
        (["--reshard", "2", "--strategy", "fsdp"], "reshard must be True, False or a divisor of 1 ranks"),
        (["--replicas", "2", "--strategy", "fsdp"], "--replicas 2 does not divide 1 processes: use one of 1"),
        (["--offload"], "--offload and --replicas are for --strategy fsdp"),
        (["--checkpoint-every", "often", "--folder", "x"], "--checkpoint-every often: use auto, none, or a number"),
        (["--checkpoint-every", "5"], "--checkpoint-every needs a place: add --folder FOLDER"),
        (["--resume", "last"], "--resume last: use auto, none, or the step of a checkpoint"),
        (["--inject", "fire:1"], "--inject fire:1: use one of kill, hang, nan, full"),
        (["--batch", "400000"], "one validation batch takes 12,800,001, of which training wants as many"),
        (["--dataset", "nowhere"], "dataset nowhere: no such file or folder"),
        (["--heads", "5"], "5 heads do not divide hidden size 32"),
        (["--folder", "README.md"], "--folder README.md: is a file, or cannot be written to"),
        (["--save", "x.txt"], "the name must end in .json"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(words, said):
    module = lab_module("capstone")
    with session.session("cpu") as s, pytest.raises(ValueError, match=re.escape(said)) as caught:
        module.main(s, [*TINY, *words])
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_run_is_refused(tmp_path, capsys):
    words = ["--steps", "5", "--folder", str(tmp_path), "--checkpoint-every", "5"]
    train(*words)
    with pytest.raises(SystemExit):
        train(*words, "--batch", "4")
    assert "the checkpoint of step 5 is of another run: it has --batch 8, this job 4" in capsys.readouterr().err


def test_tiers():
    assert options.Options(batch=9, micro_batch=4).passes(1) == 3
    sizes = {name: total_parameters(o.shape) for name, o in options.TIERS.items()}
    assert 0.5e6 < sizes["smoke"] < sizes["cpu"] < 5e6
    assert 0.9e9 < sizes["gpu"] < 1.2e9
    assert (options.TIERS["gpu"].precision, options.TIERS["gpu"].seq) == ("bf16", 2048)
