"""labs/hang.py: dumps of jobs that hang, the table that names the culprit, and the judge; real runs and recorded."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import ready
from lab_runs import ENVIRONMENT, ROOT, lab_module, run
from torch.distributed.flight_recorder import fr_trace

from scaleout.exercises.ddp import hang as ddp_hang
from scaleout.exercises.engine import kinds
from scaleout.lab import hang as lab_hang
from scaleout.lab.text import table
from scaleout.records import flight

RECORDED = ROOT / "labs" / "results" / "hang"
ALONE = """
import runpy, sys
sys.executable, sys.argv = sys.argv[1], ["labs/hang.py", *sys.argv[2:]]
runpy.run_path("labs/hang.py", run_name="__main__")
"""


def hang(*words, **more):
    """The lab; its forks have no py-spy beside their python."""
    return run(["labs/hang.py", *words], PATH=f"{Path(ready.REAL).parent}:{ENVIRONMENT['PATH']}", **more)


def without_py_spy(folder, *words):
    """The same in an environment that has no py-spy beside its python."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return run(["-c", ALONE, python, *words], PATH="/usr/bin:/bin")


def ours():
    """Processes of the hanging job that are alive; of a fork that which stands for it."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"hang_job.py" in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


# --- real runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "seed"), [("mismatch", 11), ("stop", 11), ("skip", 3)])
def test_a_real_hang_is_dumped_and_its_culprit_found(kind, seed, tmp_path, caplog):
    """Stacks are py-spy's, or where there is none, as in the first run here, the ranks' own."""
    folder = tmp_path / "dumps"
    start = partial(without_py_spy, tmp_path) if kind == "mismatch" else hang
    done = start("--inject", kind, "--seed", seed, "--out", folder)
    assert done.returncode == 0, done.stderr + (folder / "log.txt").read_text()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [
            "job.json",
            "log.txt",
            *(f"{name}-{rank}.{end}" for rank in range(3) for name, end in (("flight", "json"), ("stack", "txt"))),
            *(f"fr_trace_{rank}" for rank in range(3)),
        ]
    )
    job = json.loads((folder / "job.json").read_text())
    assert lab_hang.opened(job.pop("sealed")) == seed and sorted(job) == ["inject", "processes", "timeout_seconds"]
    truth = lab_hang.truth(seed, 3, kind)
    odd = flight.odd(flight.load(folder))
    assert odd.ranks == (truth.rank,)
    assert odd.kind == ("missing" if kind == "stop" else "different")
    assert odd.skipped == (kind == "skip")
    stack = (folder / f"stack-{truth.rank}.txt").read_text()
    assert kind != "mismatch" or stack.startswith("from faulthandler")
    lines = [int(line) for line in re.findall(r'hang_job\.py(?::|", line )(\d+)', stack)]
    if kind == "skip":
        assert int(odd.expected.where.split(":")[1]) in truth.lines
    else:
        assert truth.lines & set(lines), "the culprit's own stack shows the line"
    assert lab_hang.judge(f"{truth.rank}:{max(truth.lines)}", folder).ok
    texts = "".join(path.read_text() for path in folder.iterdir() if path.suffix)
    assert str(ROOT) not in texts
    assert str(tmp_path) not in texts
    assert "Timed out waiting 6000ms" in texts
    assert "Root Cause" in texts
    if kind == "mismatch":
        fr_trace.main([str(folder), "-p", "fr_trace_"])
        assert f"Culprit rank {truth.rank}; Error type: COLLECTIVE_TYPE_MISMATCH" in caplog.text


def left(folder):
    """Processes of the run in this folder that are alive; waits for those that are on their way out."""
    end = time.monotonic() + 60
    while (found := [path for path in ours() if str(folder).encode() in read(path)]) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def begun(folder, sign, moment):
    """A run that gets a signal: at once, while its ranks start, or when they run."""
    job = subprocess.Popen(
        [sys.executable, "labs/hang.py", "--inject", "stop", "--out", str(folder)],
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    there = {
        "at once": lambda: folder.exists(),
        "ranks start": lambda: sum(str(folder).encode() in read(path) for path in ours()) > 1,
        "ranks run": lambda: list(folder.glob(".pid-*")),
    }[moment]
    end = time.monotonic() + 60
    while not there() and time.monotonic() < end:
        time.sleep(0.01)
    job.send_signal(sign)
    return job


@pytest.mark.parametrize(
    ("sign", "moment", "code"),
    [
        (signal.SIGTERM, "at once", 143),
        (signal.SIGINT, "ranks start", 130),
        (signal.SIGKILL, "ranks start", -9),
        (signal.SIGTERM, "ranks run", 143),
    ],
    ids=str,
)
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the processes through /proc")
def test_an_interrupted_run_leaves_no_process(sign, moment, code, tmp_path):
    job = begun(tmp_path / "dumps", sign, moment)
    try:
        assert job.wait(40) == code
        assert left(tmp_path / "dumps") == []
        assert (tmp_path / "dumps").exists() is (sign == signal.SIGKILL), "nothing half-written"
        assert job.stderr.read() == ("labs/hang.py: stopped\n" if sign == signal.SIGINT else "")
    finally:
        job.kill()
        job.communicate()


# --- the table -------------------------------------------------------------------------------------------


def call(sequence, name="all_reduce", size=8, line=10, group="0"):
    return flight.Call(group, sequence, name, ((size,),), "Float", f"labs/hang_job.py:{line}")


def flights(*columns):
    members = {"0": tuple(range(len(columns)))}
    return {rank: flight.Flight(rank, tuple(calls), members) for rank, calls in enumerate(columns)}


def test_ranks_in_step_have_nobody_to_blame():
    same = flights(*[[call(1), call(2, "broadcast")]] * 3)
    assert flight.odd(same) is None
    assert all(">" not in cell for row in flight.side_by_side(same)[1] for cell in row)


@pytest.mark.parametrize(
    "other", [call(2, "broadcast"), call(2, size=9), flight.Call("0", 2, "all_reduce", ((8,),), "Half")]
)
def test_another_name_size_or_dtype_is_odd(other):
    odd = flight.odd(flights([call(1), call(2)], [call(1), other], [call(1), call(2)]))
    assert (odd.sequence, odd.ranks, odd.kind, odd.skipped) == (2, (1,), "different", False)
    assert odd.found == other


def test_a_rank_that_stopped_is_missing_and_a_late_one_beside_a_wrong_one_is_not_blamed():
    stopped = flights([call(1), call(2)], [call(1)], [call(1), call(2)])
    odd = flight.odd(stopped)
    assert (odd.ranks, odd.kind, odd.found) == ((1,), "missing", None)
    both = flights([call(1), call(2)], [call(1), call(2, "broadcast")], [call(1)], [call(1), call(2)])
    assert flight.odd(both).ranks == (1,)


def test_rings_that_begin_at_different_numbers_are_compared_where_all_have_calls():
    late = flights([call(n) for n in range(1, 6)], [call(n) for n in range(3, 6)], [call(n) for n in range(2, 6)])
    assert sorted(flight.aligned(late)) == [3, 4, 5]
    assert flight.odd(late) is None


def test_groups_are_read_apart_and_a_rank_without_a_dump_is_named():
    both = flights(
        [call(1), call(1, "broadcast", group="7")],
        [call(1), call(1, "barrier", group="7")],
        [call(1), call(1, "broadcast", group="7")],
    )
    assert flight.odd(both).group == "7"
    del both[1]
    assert flight.absent(both) == (1,)
    assert flight.odd(both) is None
    assert flight.side_by_side({}) == (("number",), [])


def test_paths_are_shortened():
    assert flight.shorten("/home/x/book/.venv/lib/python3.11/site-packages/torch/a.py", "/home/x/book") == "torch/a.py"
    assert flight.shorten("/home/x/book/labs/hang_job.py", "/home/x/book") == "labs/hang_job.py"
    assert flight.shorten("/usr/lib/python3.11/threading.py") == ".../threading.py"
    assert flight.shorten("labs/hang_job.py", "/home/x") == "labs/hang_job.py"
    clean = lab_module("hang").clean
    assert clean("see https://pytorch.org/docs at /opt/a/b.py:3", Path("/tmp")) == (
        "see https://pytorch.org/docs at .../b.py:3"
    )


# --- the recorded dumps, the judge and the exercises -------------------------------------------------------


def recorded_lines():
    """{line of labs/hang_job.py in the recorded dumps: its source}."""
    source = (ROOT / "labs" / "hang_job.py").read_text().splitlines()
    return {
        int(c.where.split(":")[1]): source[int(c.where.split(":")[1]) - 1].strip()
        for one in flight.load(RECORDED).values()
        for c in one.calls
    }


def test_the_recorded_dumps_fit_the_source():
    shown = {line: text for line, text in recorded_lines().items() if "barrier" not in text}
    assert {line: text.split("(")[0] for line, text in shown.items()} == {
        81: "self.dist.all_reduce",
        91: "self.dist.all_gather",
        100: "self.dist.broadcast",
    }
    assert lab_hang.truth(1, 4, "skip").rank == flight.odd(flight.load(RECORDED)).ranks[0] == 2
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 80_000


def test_the_exercises_show_what_was_recorded():
    header, rows = flight.side_by_side(flight.load(RECORDED), 5)
    short = [[re.sub(r"^> |\(\d+\)", "", cell) for cell in row] for row in rows]  # the chapter has the sizes
    assert table(header, short) + "\n" == ddp_hang.TABLE
    log = re.findall(r"^\d+\.\d+ (rank .*)$", (RECORDED / "log.txt").read_text(), re.M)
    assert "\n".join(log) + "\n" == ddp_hang.LOG
    for rank, line in enumerate(ddp_hang.STACKS.splitlines()):
        name, function, where = line.replace(" from ", " ").split(": ")[1].split()
        stack = (RECORDED / f"stack-{rank}.txt").read_text()
        assert f"    {name} (torch/" in stack
        assert f"    Job.{function} {where}\n" in stack


def test_the_right_answers_are_the_true_ones():
    rank, what = ddp_hang.EXERCISES
    assert isinstance(rank, kinds.Choice)
    odd = flight.odd(flight.load(RECORDED))
    assert [o.name for o in rank.options if o.right] == [f"rank-{odd.ranks[0]}"]
    assert [o.name for o in what.options if o.right] == ["left-out"]
    assert (odd.skipped, odd.expected.name) == (True, "broadcast")
    for exercise in (rank, what):
        wrong = [exercise.judge(o.name) for o in exercise.options if not o.right]
        assert len({verdict.message for verdict in wrong}) == len(wrong) >= 3
        assert not any(verdict.ok for verdict in wrong)


@pytest.mark.parametrize(
    ("answer", "slip"),
    [
        ("2:100", ""),
        ("2:labs/hang_job.py:95", ""),
        ("2:81", "where-it-waits"),
        ("2:91", "line"),
        ("0:81", "first-report"),
        ("1:100", "line-only"),
        ("3:81", "waiting"),
    ],
)
def test_the_judge_names_the_misconception(answer, slip):
    verdict = lab_hang.judge(answer, RECORDED)
    assert (verdict.ok, verdict.slip) == (not slip, slip)


def test_a_lonely_stack_is_no_proof_and_a_root_cause_no_culprit(tmp_path):
    for path in RECORDED.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    log = (tmp_path / "log.txt").read_text().splitlines()
    log.sort(key=lambda line: " rank 1:" not in line)
    (tmp_path / "log.txt").write_text("\n".join(["1.000 rank 1: Timed out", *log[1:]]))
    assert lab_hang.judge("1:81", tmp_path).slip == "first-report"
    assert lab_hang.judge("0:81", tmp_path).slip == "root-cause"
    (tmp_path / "log.txt").write_text("1.000 rank 1: Timed out")
    assert lab_hang.judge("0:81", tmp_path).slip == "odd-stack"


@pytest.mark.parametrize(("kind", "line", "slip"), [("mismatch", "usual", "usual-call"), ("stop", "last", "last-call")])
def test_a_right_rank_with_the_wrong_line(kind, line, slip, tmp_path):
    """The dumps of another bug with the same culprit."""
    seed = next(n for n in range(500) if lab_hang.truth(n, 4, kind).rank == 2)
    for path in RECORDED.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "job.json").write_text(json.dumps({"sealed": lab_hang.seal(seed), "inject": kind, "processes": 4}))
    usual = lab_hang.truth(seed, 4, kind).usual
    assert lab_hang.judge(f"2:{usual if line == 'usual' else 81}", tmp_path).slip == slip


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processes", "2"], "--processes is 2: it must be from 3 to 8 (two ranks have no majority)"),
        (["--timeout", "1"], "--timeout is 1: it must be from 3 to 30 seconds, to leave time for the dumps"),
        (["--inject", "cable"], "invalid choice: 'cable'"),
        (["--check", "two", "labs/results/hang"], "--check two: give RANK:LINE, for example 1:83"),
        (["--check", "7:81", "labs/results/hang"], "this job has the ranks 0 to 3"),
        (["--check", "1:81", "gone"], "gone/job.json: no such file (python labs/hang.py writes such a folder)"),
        (["--read", "labs"], "labs: holds no flight-RANK.json (python labs/hang.py writes them)"),
        (["--out", "labs"], "labs exists already: give another --out, or remove it"),
    ],
)
def test_bad_input_is_one_line(words, said):
    done = hang(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("labs/hang.py: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_dump_is_one_line(tmp_path):
    (tmp_path / "flight-0.json").write_text("{}")
    with pytest.raises(ValueError, match=r"flight-0\.json: is not a flight recorder's dump"):
        flight.load(tmp_path)


def test_a_wrong_answer_ends_with_1():
    done = hang("--check", "0:81", "labs/results/hang")
    assert done.returncode == 1
    assert "reported its timeout first" in done.stdout
