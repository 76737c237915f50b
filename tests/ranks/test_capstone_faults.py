"""The training job under faults: killed, hung, asked to stop, out of numbers, out of disk, with a damaged checkpoint.

What it is compared with is one run on two ranks that nobody disturbs. A kill right after a checkpoint loses no work and
would prove nothing: these fall while one is written, and a step later. tools/bench_faults.py does many more.
"""

import os
import random
import re
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pool
import pytest
from bench_faults import TINY, Run

from scaleout.records import checkpoints

STEPS = 100
WORDS = ["--steps", str(STEPS), "--checkpoint-every", "5", "--validate-every", "50"]
CLOSE = {"rel": 2e-4}  # other numbers of ranks add in another order, and a hundred steps let the difference grow
PATIENCE_S = 8

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks through /proc")


@contextmanager
def running(folder, ranks, words=WORDS, **more):
    run = Run(folder, ranks, words, **more)
    try:
        yield run
    finally:
        run.stop()


class Ended(Run):
    """A run to its end that no launcher starts again, for what it leaves in its folder."""

    def __init__(self, folder, ranks):
        self.folder, self.log = folder, folder / "log.txt"
        done = pool.lab(["labs/capstone.py", *TINY, *WORDS, "--folder", folder], ranks, XDG_CACHE_HOME=str(folder))
        assert done.returncode == 0, done.stderr
        self.log.write_text(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """The run on two ranks that nobody disturbs, ended."""
    run = Ended(tmp_path_factory.mktemp("quiet"), 2)
    assert sorted(run.losses()) == list(range(1, STEPS + 1))
    return run


def good(run):
    """Steps of the checkpoints, newest first; all of them whole, and nothing unfinished beside them."""
    found = checkpoints.listing(run.checkpoints())
    assert [checkpoints.problem(path, checkpoints.manifest(path)["files"]) for path in found] == [None] * len(found)
    assert all(path.name.startswith(checkpoints.DONE) for path in run.checkpoints().iterdir())
    return [checkpoints.step_of(path) for path in found]


def events(run):
    return [row["event"] for row in run.rows() if "event" in row]


# --- killed and hung ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hung_then_killed_twice_it_ends_at_the_same_loss_bit_for_bit(quiet, tmp_path):
    chance = random.Random(11)
    with running(
        tmp_path / "run", 2, [*WORDS, "--inject", "hang:1:8"], restarts=3, LAB_TIMEOUT=str(2 * PATIENCE_S)
    ) as run:
        assert run.until(lambda: any("hangs" in line for line in run.said()))
        assert run.until(lambda: run.step() > 10 and run.writing()), "restarted, and at work on another checkpoint"
        assert run.kill(chance.randrange(2))
        at = run.step()
        assert run.until(lambda: run.step() > at + 5 and run.step() % 5 == 1), "a step after a checkpoint"
        time.sleep(chance.uniform(0, 0.05))
        assert run.kill(chance.randrange(2))
        assert run.step() < STEPS, "it must have had work left"
        assert run.end() == 0, run.log.read_text()
    assert run.losses() == quiet.losses(), "every loss, bit for bit"
    assert run.weights() == quiet.weights()
    assert good(run)[0] == STEPS
    (line,) = [line for line in run.said() if "hangs" in line]
    assert re.fullmatch(
        r"rank 1 hangs in step 8 for \d+ s, at scaleout/train/faults.py:\d+ in hang; rank 0 waits "
        "for it",
        line,
    )
    assert [
        f"restart {n}: resumes after step" in event
        for n, event in enumerate((e for e in events(run) if e.startswith("restart")), 1)
    ] == [True] * 3, events(run)


def test_killed_before_any_checkpoint_it_begins_again_with_its_own_lines(quiet, tmp_path):
    words = [*WORDS, "--checkpoint-every", "none", "--inject", "kill:1:9"]
    with running(tmp_path / "run", 2, words, restarts=1) as run:
        assert run.end() == 0, run.log.read_text()
    assert run.losses() == quiet.losses()
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, STEPS + 1))
    (event,) = events(run)
    assert event.startswith("restart 1: resumes after step 0 on 2 process(es); ")
    assert not (run.folder / "metrics.1.jsonl").exists()


# --- asked to stop, and other numbers of ranks -------------------------------------------------------------


def stopped(run, at_least, ask):
    """Wait for a step, ask the run to stop; (exit code, the step that it says it saved)."""
    assert run.until(lambda: run.step() >= at_least)
    ask()
    code = run.end()
    (step,) = re.findall(
        r"stopped by SIGTERM after step (\d+) of 100: saved; the same command resumes from there", run.log.read_text()
    )[-1:]
    assert good(run)[0] == int(step) == run.step()
    return code, int(step)


@pytest.mark.slow
def test_sigterm_saves_and_the_job_goes_on_with_four_two_and_four_ranks(quiet, tmp_path):
    folder = tmp_path / "run"
    with running(folder, 4) as run:
        code, first = stopped(run, 10, run.process.terminate)  # as Slurm does: the launcher is asked
        # torchrun's own, whatever its ranks say; on a busy machine its threads have aborted it on the way out
        assert code in (1, -signal.SIGABRT)
        assert "SignalException" in run.log.read_text()
    with running(folder, 2) as run:
        ask = lambda: os.kill(run.workers()[1], signal.SIGTERM)  # noqa: E731
        _, second = stopped(run, first + 10, ask)  # one rank is asked: all stop at the same step
        assert second > first
    run = Ended(folder, 4)
    assert [re.sub(r"\d+ logged", "N logged", event) for event in events(run) if event.startswith("started")] == [
        f"started again: resumes after step {step} on {ranks} process(es); N logged step(s) after it will be repeated"
        for step, ranks in ((first, 2), (second, 4))
    ]
    losses = run.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert [losses[n] for n in sorted(losses)] == pytest.approx([quiet.losses()[n] for n in sorted(losses)], **CLOSE)
    assert losses != quiet.losses(), "four ranks round differently: equal losses would be a copy"


# --- numbers, disk, damage ---------------------------------------------------------------------------------


def assert_ended_for_good(run, line, last, restarts):
    """The launch is over, said in one line that each restart repeats, and no step was made again."""
    assert run.said() == [
        line,
        *[f"restart {n + 1} does nothing, because it would end the same way: {line}" for n in range(restarts)],
    ]
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, last + 1))
    assert events(run) == [], "no restart began a step"
    assert run.log.read_text().count("M parameters") == 1, "nor a model"
    assert good(run) == [10, 5]


def test_a_loss_that_is_no_number_stops_all_ranks_with_the_step_and_the_last_good_checkpoint(tmp_path):
    """It is no accident of the machine: a restart would come to the same step."""
    with running(tmp_path / "run", 2, [*WORDS, "--inject", "nan:13"], restarts=2) as run:
        assert run.end() != 0
    assert_ended_for_good(
        run,
        "loss is nan at step 13; the last good checkpoint is step 10: resume from it with a "
        "lower learning rate, or look at the batch of that step",
        12,
        2,
    )


def test_a_full_disk_is_one_line_with_the_last_good_checkpoint_intact(tmp_path):
    with running(tmp_path / "run", 2, [*WORDS, "--inject", "full:0:15"], restarts=1) as run:
        assert run.end() != 0
    line = (
        f"{run.checkpoints()}: checkpoint step 15 could not be written: rank 0: no space left on device: free some "
        "space, or use a smaller --keep; the last good one is step 10"
    )
    assert_ended_for_good(run, line, max(run.losses()), 1)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(quiet, tmp_path):
    shutil.copytree(quiet.folder, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}" / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-100])
    run = Ended(tmp_path / "run", 1)
    (line,) = [event for event in events(run) if "damaged" in event]
    assert re.fullmatch(
        rf"checkpoint step {STEPS} is damaged \(__1_0.distcp has [\d,]+ bytes of [\d,]+\): using step "
        f"{STEPS - 5}",
        line,
    )
    assert line in run.log.read_text()
    assert run.losses()[STEPS] == pytest.approx(quiet.losses()[STEPS], **CLOSE)
    assert good(run)[0] == STEPS
