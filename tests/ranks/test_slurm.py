"""The Slurm launch file on a real Slurm of two nodes: stopped in the middle, requeued, resumed, finished."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ready
import slurm_host
from repo import ROOT

STEPS = 300
SMALL = (
    "--layers",
    "2",
    "--hidden",
    "32",
    "--heads",
    "2",
    "--seq",
    "64",
    "--batch",
    "4",
    "--steps",
    str(STEPS),
    "--checkpoint-every",
    "100",
    "--validate-every",
    str(STEPS),
    "--log-every",
    "5",
    "--sample",
    "0",
)
LACKS = slurm_host.missing()
real = pytest.mark.skipif(bool(LACKS), reason=f"no Slurm here: {LACKS}")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    with slurm_host.Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slurm(daemons, monkeypatch, tmp_path):
    """One Slurm for all, with settings for each; BOOK_ENV is an environment whose Python has torch already."""
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / "bin").symlink_to(ready.folder())
    monkeypatch.setattr(
        daemons,
        "environment",
        daemons.environment
        | {
            "PATH": f"{Path(sys.executable).parent}:{slurm_host.PATH}",
            "PROCESSES": "1",
            "LAB_DEVICE": "cpu",
            "PORT": str(slurm_host.free_ports(1)[0]),
            "BOOK_ENV": str(environment),
        },
    )
    return daemons


def submit(slurm, out, *words, options=(), cwd=ROOT):
    """The number of a job of the launch file (str)."""
    job = slurm.run(
        "sbatch",
        "--parsable",
        "--output",
        str(out),
        *options,
        str(ROOT / "labs" / "launch" / "slurm.sh"),
        *words,
        cwd=cwd,
    )
    assert job, slurm.error
    return job


def ended(slurm, job, out):
    """Wait until a job has come to its end, which has to be a good one; what it printed."""
    slurm.wait(lambda: state(slurm, job)["JobState"] in ("COMPLETED", "FAILED"), "end of the job", 240)
    said = out.read_text() if out.exists() else ""
    assert state(slurm, job)["JobState"] == "COMPLETED", said
    return said


def state(slurm, job):
    """What Slurm says of a job: {"JobState": "RUNNING", "Restarts": "0", ...}."""
    return dict(re.findall(r"(\w+)=(\S+)", slurm.run("scontrol", "show", "job", job)))


@real
def test_a_job_is_stopped_requeued_resumed_and_finished(slurm, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.txt"
    metrics, said = run / "metrics.jsonl", lambda: out.read_text() if out.exists() else ""
    job = submit(slurm, out, "labs/capstone.py", *SMALL, "--folder", str(run), "--save", str(run / "record.json"))
    slurm.wait(lambda: metrics.exists() and '"step": 5,' in metrics.read_text(), "step 5 of the job", 240)
    assert state(slurm, job)["NumNodes"] == "2"
    slurm.run("scancel", "--batch", "--signal=TERM", job)  # what --signal=B:TERM@180 does before the limit
    slurm.wait(lambda: "slurm.sh: stopped before the end, back into the queue" in said(), "requeue", 240)
    reached = max(json.loads(line)["step"] for line in metrics.read_text().splitlines())
    assert 5 <= reached < STEPS
    assert not (run / "record.json").exists()
    ended(slurm, job, out)
    assert state(slurm, job)["Restarts"] == "1", said()
    starts = re.findall(r"slurm.sh: 2 node\(s\), meeting at (\S+), start (\d):", said())
    assert starts == [(slurm_host.NODES[0], "0"), (slurm_host.NODES[0], "1")]
    record = json.loads((run / "record.json").read_text())
    assert (record["device_count"], record["backend"], len(record["losses"])) == (2, "gloo", STEPS)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in steps if "loss" in line][-1] == STEPS
    assert f"stopped by SIGTERM after step {reached} of {STEPS}: saved" in said()
    assert f"started again: resumes after step {reached} on 2 process(es); 0 logged step(s)" in said()


@real
def test_a_cancelled_job_does_not_come_back(slurm, tmp_path):
    """What sleeps stands where torchrun does, among the processes that Slurm itself ends."""
    out = tmp_path / "out.txt"
    (tmp_path / "naps" / "bin").mkdir(parents=True)
    fake(tmp_path / "naps" / "bin", torchrun=f"touch {tmp_path}/asleep-$SLURM_PROCID\nexec sleep 100")
    slurm.environment["BOOK_ENV"] = str(tmp_path / "naps")
    job = submit(slurm, out, "x.py")
    slurm.wait(lambda: len(list(tmp_path.glob("asleep-*"))) == 2, "two sleeping processes")
    slurm.run("scancel", job)
    slurm.wait(lambda: state(slurm, job)["JobState"] == "CANCELLED", "end of the job")
    listed = ["squeue", "-h", "-j", job, "--states", "all", "-o", "%T"]
    slurm.wait(lambda: slurm.run(*listed) == "CANCELLED", "empty queue")
    assert "back into the queue" not in out.read_text()
    assert (state(slurm, job)["JobState"], state(slurm, job)["Restarts"]) == ("CANCELLED", "0"), out.read_text()


@real
def test_a_job_finds_its_environment_by_itself_and_gets_the_whole_node(slurm, tmp_path):
    """With nothing of the shell that submitted it but what is named: no PATH, no active environment."""
    out, environment = tmp_path / "out.txt", tmp_path / "environment"
    (tmp_path / "look.sh").write_text(f'echo "$SLURM_CPUS_PER_TASK $(command -v torchrun)" > {tmp_path}/found-$RANK\n')
    named = f"PROCESSES=1,PORT={slurm.environment['PORT']},BOOK_ENV={environment}"
    job = submit(slurm, out, "--no-python", "sh", str(tmp_path / "look.sh"), options=[f"--export={named}"])
    ended(slurm, job, out)
    assert [(tmp_path / f"found-{rank}").read_text() for rank in (0, 1)] == [f"2 {environment}/bin/torchrun\n"] * 2
    assert state(slurm, job)["MinMemoryNode"] == "0", "all the memory of the node"


@real
def test_where_nothing_of_the_shell_comes_along_the_venv_is_found_and_what_is_named_counts(slurm, tmp_path):
    book = tmp_path / "book"
    (book / ".venv" / "bin").mkdir(parents=True)
    found = f"{tmp_path}/found-$SLURM_JOB_ID-$SLURM_PROCID"
    fake(book / ".venv" / "bin", torchrun=f'echo "$0 $OMP_NUM_THREADS $2" > {found}')
    slurm.environment |= {"PROCESSES": "8", "BOOK_ENV": "/nowhere"}
    for words, processes in (("--export=NONE", "gpu"), ("--export=PROCESSES", "8")):
        out = tmp_path / f"out{words}"
        job = submit(slurm, out, "x.py", options=[words], cwd=book)
        ended(slurm, job, out)
        assert [(tmp_path / f"found-{job}-{rank}").read_text() for rank in (0, 1)] == [
            f"{book}/.venv/bin/torchrun 1 --nproc-per-node={processes}\n"
        ] * 2


@real
def test_a_share_of_a_node_is_asked_for_as_the_page_says(slurm, tmp_path):
    words = "--oversubscribe --cpus-per-task 32 --mem 200G"
    assert f"`{words}`" in (ROOT / "book" / "running.md").read_text()
    words = words.replace("32", "1").replace("200G", "1").split()  # of this machine's nodes
    found = {}
    for name, more in (("whole", []), ("share", words)):
        job = submit(slurm, tmp_path / name, "--no-python", "true", options=more)
        slurm.wait(lambda: state(slurm, job)["JobState"] in ("RUNNING", "COMPLETED"), "start of the job", 60)  # noqa: B023
        found[name] = [state(slurm, job)[field] for field in ("NumCPUs", "OverSubscribe", "MinMemoryNode")]
        slurm.run("scancel", job)
    assert found == {"whole": ["4", "NO", "0"], "share": ["2", "YES", "1M"]}


def fake(folder, **programs):
    """A folder of programs, {name: shell lines}, as a PATH."""
    for name, lines in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def started(tmp_path, path, *words, **environment):
    """The launch file outside Slurm, with its programs made up."""
    return subprocess.run(
        ["bash", str(ROOT / "labs" / "launch" / "slurm.sh"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={
            "PATH": path,
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "a,b",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_ON_NODE": "96",
            **environment,
        },
    )


def test_what_srun_is_told(tmp_path):
    path = fake(tmp_path, scontrol="printf 'a\\nb\\n'", srun='echo "srun $*"; echo "$SLURM_EXPORT_ENV"', torchrun="")
    said = started(tmp_path, path, "labs/preflight.py", "--gpus", "8", PROCESSES="8").stdout.splitlines()
    assert said[1:] == [
        "srun --kill-on-bad-exit=1 --cpus-per-task=96 torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d "
        "--rdzv-endpoint=a:29500 --rdzv-id=7-0 --max-restarts=3 labs/preflight.py --gpus 8",
        "ALL",
    ]
    assert "--cpus-per-task=64 " in started(tmp_path, path, "x.py", SLURM_CPUS_PER_TASK="64").stdout


def test_an_environment_that_is_none_is_refused(tmp_path):
    path = fake(tmp_path, scontrol="exit 0", srun="echo no")
    done = started(tmp_path, path, BOOK_ENV="/nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "slurm.sh: no bin/torchrun in /nowhere\n")
    done = started(tmp_path, path)
    assert (done.returncode, done.stderr) == (
        2,
        "slurm.sh: no torchrun: submit from the book's folder with its .venv, or name an environment by BOOK_ENV\n",
    )
