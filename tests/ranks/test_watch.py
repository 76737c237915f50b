"""Who hangs, who is asked to stop, whose loss is no number, which faults can be asked for."""

import contextlib
import json
import os
import re
import signal
import sys
import time

import pool
import pytest
from specimen_checkpoint import session

from scaleout.train import faults
from scaleout.train import watch as train_watch
from scaleout.train.finite import check_loss
from scaleout.train.watch import Watch, verdict

SPECIMEN = "tests/ranks/specimen_watch.py"


def report(step=5, calls=9, collective=True, line="labs/x.py:7 in f", still=20.4, doing="step"):
    at = {"line": line, "collective": collective}
    return {"step": step, "doing": doing, "still": still, "calls": calls, "at": at}


# --- the verdict -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "guilty", "said"),
    [
        (
            {0: report(), 1: report(4, 12), 2: report()},
            [1],
            "rank 1 hangs in step 4 for 20 s, at labs/x.py:7 in f; ranks 0, 2 wait for it",
        ),
        (
            {0: report(), 1: report(calls=8, line="labs/x.py:3 in g"), 2: report()},
            [1],
            "rank 1 hangs in step 5 for 20 s, at labs/x.py:3 in g; ranks 0, 2 wait for it",
        ),
        (
            {0: report(), 1: report(collective=False), 2: report()},
            [1],
            "rank 1 hangs in step 5 for 20 s, at labs/x.py:7 in f; ranks 0, 2 wait for it",
        ),
        (
            {0: report(), 1: report(4), 2: report(4)},
            [1, 2],
            "ranks 1, 2 hang in step 4 for 20 s, at labs/x.py:7 in f; rank 0 waits for it",
        ),
        (
            {0: report(doing="checkpoint", calls=2), 1: report(), 2: report()},
            [0],
            "rank 0 hangs in the checkpoint after step 5 for 20 s, at labs/x.py:7 in f; ranks 1, 2 wait for it",
        ),
        (
            {0: report(), 2: report(7)},
            [1],
            "rank 1 does not answer: frozen, or the machine is gone. The others wait in step 7",
        ),
        (
            {0: report(), 1: report(), 2: report()},
            [],
            "no rank has moved for 20 s in step 5, all at labs/x.py:7 in f: look at the network between them",
        ),
    ],
)
def test_the_verdict_names_who_holds_the_others_up(found, guilty, said):
    assert verdict(found, 3) == (guilty, said)


def test_where_a_thread_stands_is_the_innermost_line_of_the_book():
    here = train_watch.stands(sys._getframe())
    assert here == {"line": here["line"], "collective": False}
    assert re.fullmatch(r"tests/ranks/test_watch\.py:\d+ in test_where_a_thread_stands\w+", here["line"])
    assert train_watch.stands(None) == {"line": "an unknown place", "collective": False}


# --- on real ranks -----------------------------------------------------------------------------------------


def start(how, *words):
    """A job of two ranks, without a launcher that would end them."""
    return pool.Job([SPECIMEN, how, *words], 2, LAB_TIMEOUT="60")


def end_of_rank_0(job):
    """(exit code, its stderr): rank 1 may be frozen."""
    return job.processes[0].wait(), job.read("err", 0)


def test_hung_and_frozen_ranks_are_named_and_slow_checkpoints_are_not(tmp_path):
    """Two jobs side by side, to wait at the same time. The slow checkpoint is in step 2, the hang in step 3."""
    log = tmp_path / "failures.jsonl"
    with start("frozen") as frozen, start("between", log) as between:
        assert between.wait(together=False) == [1, 1]
        errors = between.read("err", 0)
        line = re.fullmatch(
            r"ranks/specimen_watch\.py: (rank 1 hangs in step 3 for \d+ s, "
            r"at tests/ranks/specimen_watch\.py:\d+ in dawdle; rank 0 waits for it)\n",
            errors,
        )
        assert line, errors
        assert "failed" not in between.read("err", 1), "said once, by the lowest rank"
        assert json.loads(log.read_text())["failure"] == line[1]
        assert end_of_rank_0(frozen) == (
            1,
            "ranks/specimen_watch.py: rank 1 does not answer: frozen, or the machine is gone. The others wait "
            "in step 3\n",
        )


def test_a_rank_that_waits_for_a_hung_one_ends_after_sigterm():
    """Its main thread is in C++, where no handler of Python runs; else the launcher would wait 30 s and kill it."""
    with start("deaf") as job:
        job.until("hangs\n")
        time.sleep(0.5)
        for process in job.processes:
            process.terminate()
        waiting, hung = job.wait(together=False)
        assert hung == 143
        assert waiting in (143, -signal.SIGTERM), "by itself, or as the other is gone; not by the collective's time-out"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """{where: (training job, its folder)}: all at once, for most of the time they wait."""
    folder = tmp_path_factory.mktemp("frozen")
    with contextlib.ExitStack() as stack:
        yield {
            where: (
                stack.enter_context(
                    pool.Job(["tests/ranks/specimen_frozen.py", where, folder / where], 2, LAB_TIMEOUT="12")
                ),
                folder / where,
            )
            for where in ("validation", "checkpoint", "torch", "slow")
        }


@pytest.mark.slow
@pytest.mark.parametrize(("where", "step"), [("validation", 3), ("checkpoint", 8), ("torch", 3)])
def test_a_rank_frozen_anywhere_in_the_job_is_named(where, step, jobs):
    job, folder = jobs[where]
    code, errors = end_of_rank_0(job)
    said = re.fullmatch(
        r"ranks/specimen_frozen\.py: (rank 1 does not answer: frozen, or the machine is gone\. "
        r"The others wait in step (\d+))\n",
        errors,
    )
    assert code == 1
    assert said, errors
    assert int(said[2]) <= step
    kept = [json.loads(line)["failure"] for line in (folder / "failures.jsonl").read_text().splitlines()]
    assert kept == [said[1]]


@pytest.mark.slow
def test_a_slow_checkpoint_of_a_rank_that_answers_ends_no_job(jobs):
    job, _ = jobs["slow"]
    assert (job.wait(), job.read("err")) == ([0, 0], "")


# --- signals and losses ------------------------------------------------------------------------------------


@pytest.fixture
def one():
    return session(0, 1)


def test_a_signal_is_noted_and_handlers_come_back(one):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Watch(one) as watch:
        assert watch.asked is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.asked == signal.SIGTERM == 15
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_ctrl_c_twice_ends_at_once(one):
    with Watch(one) as watch:
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("loss", "last", "said"),
    [
        (
            float("nan"),
            10,
            "loss is nan at step 12; the last good checkpoint is step 10: resume from it with a lower "
            "learning rate, or look at the batch of that step",
        ),
        (
            float("inf"),
            None,
            "loss is inf at step 12; there is no checkpoint yet: lower the learning rate, or look at the "
            "batch of that step",
        ),
    ],
)
def test_a_loss_that_is_no_number_is_one_line(loss, last, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check_loss(loss, 12, last)
    check_loss(2.5, 12, last)


# --- faults to ask for -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("burn:1", "--inject burn:1: use one of kill, hang, nan, full"),
        ("kill:1", "--inject kill:1: write it as kill:RANK:STEP or kill:RANK:saving:STEP (kill:1:7)"),
        ("kill:1:x:7", "--inject kill:1:x:7: write it as kill:RANK:STEP or kill:RANK:saving:STEP (kill:1:7)"),
        ("nan:-1", "--inject nan:-1: write it as nan:STEP (nan:7)"),
        ("nan:3,full", "--inject full: write it as full:STEP or full:RANK:STEP (full:6)"),
        ("hang:2:7", "--inject hang:2:7: there is no rank 2 among 2, which are 0 to 1"),
    ],
)
def test_a_fault_that_cannot_be_is_one_line(text, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        faults.parse(text, 0, 2)


def test_faults_are_those_of_this_rank_and_of_the_first_attempt():
    kinds = lambda *place: [fault.kind for fault in faults.parse("kill:1:7,hang:0:3,nan:5,full:1:2", *place).mine]  # noqa: E731
    assert kinds(0, 2) == ["hang", "nan"]
    assert kinds(1, 2) == ["kill", "nan", "full"]
    assert kinds(1, 2, 1) == ["nan", "full"], "arithmetic and disks fail again, a kill does not come back"
    assert faults.parse(None, 0, 1).mine == faults.parse("", 0, 1).mine == []
    with pytest.raises(ValueError, match="needs ranks that wait for each other"):
        faults.parse("hang:0:3", 0, 1)
    assert faults.parse("nan:5", 0, 1).loss(4, 2.0) == 2.0
    assert str(faults.parse("nan:5", 0, 1).loss(5, 2.0)) == "nan"
