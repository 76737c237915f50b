"""Who hangs, who is asked to stop, whose loss is no number, which faults can be asked for."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from test_faults import ROOT, environment, free_port, place

from scaleout.train import faults
from scaleout.train import watch as train_watch
from scaleout.train.watch import Watch, check_loss, verdict

SPECIMEN = "tests/ranks/specimen_watch.py"


def report(step=5, calls=9, collective=True, line="labs/x.py:7 in f", still=20.4, doing="step"):
    at = {"line": line, "collective": collective}
    return {"step": step, "doing": doing, "still": still, "calls": calls, "at": at}


# --- the verdict -------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("found", "guilty", "said"), [
    ({0: report(), 1: report(4, 12), 2: report()}, [1],
     "rank 1 hangs in step 4 for 20 s, at labs/x.py:7 in f; ranks 0, 2 wait for it"),
    ({0: report(), 1: report(calls=8, line="labs/x.py:3 in g"), 2: report()}, [1],
     "rank 1 hangs in step 5 for 20 s, at labs/x.py:3 in g; ranks 0, 2 wait for it"),
    ({0: report(), 1: report(collective=False), 2: report()}, [1],
     "rank 1 hangs in step 5 for 20 s, at labs/x.py:7 in f; ranks 0, 2 wait for it"),
    ({0: report(), 1: report(4), 2: report(4)}, [1, 2],
     "ranks 1, 2 hang in step 4 for 20 s, at labs/x.py:7 in f; rank 0 waits for it"),
    ({0: report(doing="checkpoint", calls=2), 1: report(), 2: report()}, [0],
     "rank 0 hangs in the checkpoint after step 5 for 20 s, at labs/x.py:7 in f; ranks 1, 2 wait for it"),
    ({0: report(), 2: report(7)}, [1],
     "rank 1 does not answer: frozen, or the machine is gone. The others wait in step 7"),
    ({0: report(), 1: report(), 2: report()}, [],
     "no rank has moved for 20 s in step 5, all at labs/x.py:7 in f: look at the network between them"),
])
def test_the_verdict_names_who_holds_the_others_up(found, guilty, said):
    assert verdict(found, 3) == (guilty, said)


def test_where_a_thread_stands_is_the_innermost_line_of_the_book():
    here = train_watch.stands(sys._getframe())
    assert here == {"line": here["line"], "collective": False}
    assert re.fullmatch(r"tests/ranks/test_watch\.py:\d+ in test_where_a_thread_stands\w+", here["line"])
    assert train_watch.stands(None) == {"line": "an unknown place", "collective": False}


# --- on real ranks -----------------------------------------------------------------------------------------

def start(how, world, tmp_path, *words):
    """The ranks of one job, without a launcher that would end them."""
    port = free_port()
    return [subprocess.Popen([sys.executable, SPECIMEN, how, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=environment(tmp_path, **place(rank, world, port, "60")))
            for rank in range(world)]


def ended(ranks):
    """[(exit code, stdout, stderr)] of processes that end by themselves."""
    found = []
    for process in ranks:
        out, errors = process.communicate(timeout=90)
        found.append((process.returncode, out, errors))
    return found


def test_hung_and_frozen_ranks_are_named_and_slow_checkpoints_are_not(tmp_path):
    """Two jobs side by side, to wait at the same time. The slow checkpoint is in step 2, the hang in step 3."""
    log = tmp_path / "failures.jsonl"
    frozen, between = start("frozen", 2, tmp_path), start("between", 2, tmp_path, str(log))
    try:
        (code, _, errors), other = ended(between)
        assert (code, other[0]) == (1, 1)
        line = re.fullmatch(r"tests/ranks/specimen_watch\.py: (rank 1 hangs in step 3 for \d+ s, "
                            r"at tests/ranks/specimen_watch\.py:\d+ in dawdle; rank 0 waits for it)\n", errors)
        assert line, errors
        assert "failed" not in other[2], "said once, by the lowest rank"
        assert json.loads(log.read_text())["failure"] == line[1]
        (code, _, errors), = ended(frozen[:1])
        assert code == 1
        assert errors == ("tests/ranks/specimen_watch.py: rank 1 does not answer: frozen, or the machine is gone. "
                          "The others wait in step 3\n")
    finally:
        for process in (*frozen, *between):
            process.kill()
            process.communicate()


def test_a_rank_that_waits_for_a_hung_one_ends_soon_after_sigterm(tmp_path):
    """Its main thread is in C++, where no handler of Python runs; else the launcher would wait 30 s and kill it."""
    ranks = start("deaf", 2, tmp_path)
    try:
        assert ranks[1].stdout.readline() == "hangs\n"
        time.sleep(0.5)
        begun = time.monotonic()
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        assert [code for code, _, _ in ended(ranks)] == [143, 143]
        assert time.monotonic() - begun < 20
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["validation", "checkpoint", "torch"])
def test_a_rank_frozen_anywhere_in_the_job_is_named(where, tmp_path):
    port, run = free_port(), tmp_path / "run"
    ranks = [subprocess.Popen([sys.executable, "tests/ranks/specimen_frozen.py", where, str(run)], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment(tmp_path, **place(rank, 2, port, "12"))) for rank in range(2)]
    try:
        (code, _, errors), = ended(ranks[:1])
        step = {"validation": 3, "torch": 3, "checkpoint": 8}[where]
        said = re.fullmatch(
            r"tests/ranks/specimen_frozen\.py: (rank 1 does not answer: frozen, or the machine is gone\. "
                            r"The others wait in step (\d+))\n", errors)
        assert code == 1
        assert said, errors
        assert int(said[2]) <= step
        kept = [json.loads(line)["failure"] for line in (run / "failures.jsonl").read_text().splitlines()]
        assert kept == [said[1]]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_slow_checkpoint_of_a_rank_that_answers_ends_no_job(tmp_path):
    port, run = free_port(), tmp_path / "run"
    ranks = [subprocess.Popen([sys.executable, "tests/ranks/specimen_frozen.py", "slow", str(run)], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment(tmp_path, **place(rank, 2, port, "12"))) for rank in range(2)]
    try:
        assert [(code, errors) for code, _, errors in ended(ranks)] == [(0, ""), (0, "")]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


# --- signals and losses ------------------------------------------------------------------------------------

@pytest.fixture
def one():
    from specimen_checkpoint import session
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


@pytest.mark.parametrize(("loss", "last", "said"), [
    (float("nan"), 10, "loss is nan at step 12; the last good checkpoint is step 10: resume from it with a lower "
                       "learning rate, or look at the batch of that step"),
    (float("inf"), None, "loss is inf at step 12; there is no checkpoint yet: lower the learning rate, or look at the "
                         "batch of that step")])
def test_a_loss_that_is_no_number_is_one_line(loss, last, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check_loss(loss, 12, last)
    check_loss(2.5, 12, last)


# --- faults to ask for -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "said"), [
    ("burn:1", "--inject burn:1: use one of kill, hang, nan, full"),
    ("kill:1", "--inject kill:1: write it as kill:RANK:STEP or kill:RANK:saving:STEP (kill:1:7)"),
    ("kill:1:x:7", "--inject kill:1:x:7: write it as kill:RANK:STEP or kill:RANK:saving:STEP (kill:1:7)"),
    ("nan:-1", "--inject nan:-1: write it as nan:STEP (nan:7)"),
    ("nan:3,full", "--inject full: write it as full:STEP or full:RANK:STEP (full:6)"),
    ("hang:2:7", "--inject hang:2:7: there is no rank 2 among 2, which are 0 to 1")])
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
