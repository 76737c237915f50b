"""The SkyPilot file and the script that keeps a run in a bucket: parsed, and run on CPUs with folders in its place."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import repo
import yaml
from lab_runs import bash, free_port

# --- SkyPilot --------------------------------------------------------------------------------------------------


@pytest.fixture
def sky():
    return yaml.safe_load(repo.text("labs/launch/skypilot.yaml"))


def test_the_skypilot_file_takes_the_machine_down(sky):
    assert set(sky) == {"name", "resources", "num_nodes", "workdir", "file_mounts", "envs", "setup", "run"}
    assert sky["resources"]["autostop"] == {"idle_minutes": 10, "wait_for": "jobs", "down": True}
    assert sky["envs"]["HOURS"] == 4
    assert re.fullmatch(r"\w+:\d+", sky["resources"]["accelerators"])
    for part in ("setup", "run"):
        assert bash("-n", "-c", sky[part]).returncode == 0
    assert '--nnodes="$SKYPILOT_NUM_NODES"' in sky["run"]


def test_the_skypilot_run_goes_on_from_its_bucket(sky):
    """The folder that is kept is the one that the lab writes to, its Record too; no checkpoint is written there."""
    run = sky["envs"]["RUN"]
    words = sky["envs"]["LAB"].split()
    assert words[words.index("--folder") + 1] == run
    assert words[words.index("--save") + 1] == f"{run}/record.json"
    assert sky["file_mounts"] == {"/bucket": {"name": "${BUCKET}", "mode": "MOUNT"}}
    assert sky["envs"]["BUCKET"] is None  # SkyPilot then asks for it
    assert "/bucket" not in sky["envs"]["LAB"]


@pytest.mark.parametrize(
    ("driver", "installs"),
    [
        ("550.90.07", "pip install --quiet torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126"),
        ("580.95.05", None),
    ],
)
def test_the_skypilot_setup_names_its_python_and_looks_at_the_driver(sky, tmp_path, driver, installs):
    say = '#!/bin/sh\necho "$(basename "$0") $*" >> ' + f"{tmp_path}/said\n"
    for name in ("uv", "pip", "python"):
        (tmp_path / name).write_text(say)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {driver}\necho {driver}\n")
    for name in ("uv", "pip", "python", "nvidia-smi"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "book" / "bin").mkdir(parents=True)
    (tmp_path / "book" / "bin" / "activate").touch()
    done = bash(
        "-c",
        sky["setup"].replace("[ -d ~/book ]", "false"),
        HOME=str(tmp_path),
        PATH=f"{tmp_path}:/usr/bin:/bin",
        SKYPILOT_SETUP_NUM_GPUS_PER_NODE="8",
    )
    assert done.returncode == 0, done.stderr
    home = str(tmp_path / "book")
    assert (tmp_path / "said").read_text().splitlines() == [
        f"uv venv --seed --python 3.12 {home}",
        *([installs] if installs else []),
        "pip install --quiet -e .",
        "python labs/preflight.py --gpus 8",
    ]


TINY = (
    "--layers 1 --hidden 32 --heads 1 --ff 32 --seq 32 --batch 2 --sample 0 --checkpoint-every 5 "
    "--validate-every 50 --log-every 5 --keep 2"
)


def started_by_sky(sky, tmp_path, steps):
    """The file's `run` on this machine, with folders of tmp_path in the place of the bucket and of the home."""
    run = tmp_path / "machine" / "capstone"
    (tmp_path / "book" / "bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "book" / "bin" / "activate").touch()
    lab = f"labs/capstone.py {TINY} --steps {steps} --folder {run} --resume auto --save {run}/record.json"
    script = sky["run"].replace("/bucket/$RUN", f"{tmp_path}/bucket/capstone").replace(":29500", f":{free_port()}")
    done = bash(
        "-c",
        script,
        **os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "RUN": str(run),
            "LAB": lab,
            "EVERY": "1",
            "HOURS": "1",
            "LAB_DEVICE": "cpu",
            "PYTHONPATH": str(repo.ROOT),
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NODE_IPS": "127.0.0.1",
            "SKYPILOT_NUM_NODES": "1",
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return run, done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_a_machine_that_is_lost_takes_nothing_with_it(sky, tmp_path):
    run, said = started_by_sky(sky, tmp_path, 10)
    assert "no whole checkpoint in the bucket, nothing fetched" in said
    kept = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    there = {
        path.relative_to(tmp_path / "bucket" / "capstone"): path.read_bytes()
        for path in (tmp_path / "bucket").rglob("*")
        if path.is_file()
    }
    assert {Path("record.json"), Path("metrics.jsonl")} < set(there)
    assert there == {name: kept[name] for name in there}
    assert {name.parts[1] for name in there if name.parts[0] == "checkpoints"} == {"step-00000005", "step-00000010"}
    shutil.rmtree(tmp_path / "machine")
    _, said = started_by_sky(sky, tmp_path, 20)
    assert "started again: resumes after step 10 on 1 process(es); 0 logged step(s)" in said
    rows = [json.loads(line) for line in (tmp_path / "bucket" / "capstone" / "metrics.jsonl").read_text().splitlines()]
    assert sorted(row["step"] for row in rows if "loss" in row) == list(range(1, 21))
    assert sorted(path.name for path in (tmp_path / "bucket" / "capstone" / "checkpoints").iterdir()) == [
        "step-00000015",
        "step-00000020",
    ], "what the job no longer keeps goes"


def test_a_job_that_hangs_ends_at_its_deadline_and_what_it_has_is_kept(sky, tmp_path):
    """A job that is asked to stop, as it is by the deadline, has time to save."""
    (tmp_path / "book" / "bin").mkdir(parents=True)
    (tmp_path / "book" / "bin" / "activate").touch()
    (tmp_path / "torchrun").write_text(
        f"#!/bin/sh\ntrap 'echo saved $TORCH_ELASTIC_SHUTDOWN_TIMEOUT > {tmp_path}/run/metrics.jsonl; exit 1' TERM\n"
        f"mkdir -p {tmp_path}/run; sleep 600 & wait $!\n"
    )
    (tmp_path / "torchrun").chmod(0o755)
    script = sky["run"].replace("/bucket/$RUN", f"{tmp_path}/bucket/capstone")
    done = bash(
        "-c",
        script,
        **os.environ
        | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "RUN": str(tmp_path / "run"),
            "LAB": "x.py",
            "HOURS": "0.0003",
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NODE_IPS": "127.0.0.1",
            "SKYPILOT_NUM_NODES": "1",
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        },
    )
    assert done.returncode == 124, "timeout's code: the deadline"
    assert (tmp_path / "bucket" / "capstone" / "metrics.jsonl").read_text() == "saved 120\n"


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="no SkyPilot here (pip install skypilot)")
def test_skypilots_own_loader_reads_the_file(monkeypatch, tmp_path, sky):
    monkeypatch.setenv("HOME", str(tmp_path))  # it writes a configuration
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    from sky import Task

    monkeypatch.chdir(repo.ROOT)
    with pytest.raises(ValueError, match="'BUCKET' is None"):
        Task.from_yaml("labs/launch/skypilot.yaml")
    sky["envs"]["BUCKET"] = "my-capstone"
    task = Task.from_yaml_config(sky)
    (resources,) = task.resources
    assert (task.num_nodes, resources.accelerators) == (1, {"H100": 8})
    autostop = resources.autostop_config
    assert (autostop.idle_minutes, autostop.down, autostop.wait_for.value) == (10, True, "jobs")
    assert task.storage_mounts["/bucket"].name == "my-capstone"


# --- the bucket ------------------------------------------------------------------------------------------------


def made(folder, *steps, whole=True):
    """A run's folder with checkpoints after `steps`."""
    for step in steps:
        place = folder / "checkpoints" / f"step-{step:08d}"
        place.mkdir(parents=True)
        (place / "__0_0.distcp").write_text(f"weights {step}")
        (place / ".metadata").write_text("names")
        if whole:
            (place / "manifest.json").write_text(f'{{"step": {step}}}')
    (folder / "metrics.jsonl").write_text("{}\n" * len(steps))
    (folder / "lock").write_text("this machine's")
    return folder


def bucket(action, run, place, **environment):
    return bash("labs/launch/bucket.sh", action, str(run), str(place), **environment)


def found(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def files(*steps):
    return sorted(
        [
            f"checkpoints/step-{step:08d}/{name}"
            for step in steps
            for name in (".metadata", "__0_0.distcp", "manifest.json")
        ]
        + ["metrics.jsonl"]
    )


def test_what_is_kept_comes_back(tmp_path):
    run, place = made(tmp_path / "run", 5, 10), tmp_path / "bucket" / "run"
    assert bucket("keep", run, place).returncode == 0
    assert found(place) == files(5, 10)
    shutil.rmtree(run / "checkpoints" / "step-00000005")  # the job keeps the last two
    made(run, 15)
    assert bucket("keep", run, place).returncode == 0
    assert found(place) == files(10, 15)
    assert bucket("fetch", tmp_path / "new", place).stdout == f"bucket.sh: fetched {tmp_path}/new\n"
    assert found(tmp_path / "new") == files(10, 15)
    assert bucket("fetch", run, place).stdout == f"bucket.sh: {run} is there, nothing fetched\n"


def test_a_copy_that_was_cut_short_is_no_checkpoint(tmp_path):
    run, place = made(tmp_path / "run", 5, 10), tmp_path / "bucket"
    bucket("keep", run, place)
    (place / "checkpoints" / "step-00000010" / "manifest.json").unlink()
    assert bucket("fetch", tmp_path / "new", place).returncode == 0
    assert found(tmp_path / "new") == files(5)
    bucket("keep", run, place)  # and the next one completes it
    assert found(place) == files(5, 10)
    made(tmp_path / "other", 5, whole=False)
    assert bucket("keep", tmp_path / "other", tmp_path / "second").returncode == 0
    assert found(tmp_path / "second") == ["metrics.jsonl"], "one that the job is writing is not taken"


@pytest.mark.parametrize(("at", "steps"), [(1, ()), (2, ()), (3, ()), (4, (5,)), (5, (5,))])
def test_a_machine_lost_in_a_copy_leaves_whole_checkpoints_only(tmp_path, at, steps):
    """Copies, in order: the metrics, weights and manifest of step 5, those of step 10. Killed in number `at`."""
    run, place = made(tmp_path / "run", 5, 10), tmp_path / "bucket" / "run"
    (tmp_path / "cp").write_text(
        f"#!/bin/sh\necho >> {tmp_path}/count\n"
        f'[ $(wc -l < {tmp_path}/count) != {at} ] || kill -9 0\nexec /bin/cp "$@"\n'
    )
    (tmp_path / "cp").chmod(0o755)
    done = subprocess.run(
        ["bash", "labs/launch/bucket.sh", "keep", str(run), str(place)],
        cwd=repo.ROOT,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    assert done.returncode == -9
    assert bucket("fetch", tmp_path / "new", place).returncode == 0
    assert (tmp_path / "new").exists() == bool(steps), "metrics alone tell of checkpoints that the job would miss"
    assert found(tmp_path / "new") == (files(*steps) if steps else [])


def test_a_run_without_checkpoints_leaves_those_in_the_bucket_alone(tmp_path):
    place = tmp_path / "bucket"
    bucket("keep", made(tmp_path / "run", 5), place)
    (tmp_path / "empty").mkdir()
    assert bucket("keep", tmp_path / "empty", place).returncode == 0
    assert bucket("keep", tmp_path / "missing", place).returncode == 0
    assert found(place) == files(5)


def test_a_bucket_that_takes_nothing_is_said(tmp_path):
    (tmp_path / "bucket").write_text("a file where the bucket should be")
    done = bucket("keep", made(tmp_path / "run", 5), tmp_path / "bucket" / "run")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"bucket.sh: {tmp_path}/bucket/run did not take all of {tmp_path}/run"


@pytest.mark.parametrize(
    ("words", "said"), [([], "three words are needed"), (["take", "a", "b"], "'take' is no such thing")]
)
def test_the_bucket_script_refuses_in_one_line(words, said):
    done = bash("labs/launch/bucket.sh", *words)
    assert (done.returncode, done.stderr) == (
        2,
        f"bucket.sh: {said}; say fetch, watch or keep, the run's folder and its place in the bucket\n",
    )
