"""What all checkers of lab exercises share: a lost rank is told in one line, and the next file is still checked."""

import importlib
from pathlib import Path

import answers
import lab_runs
import pytest
import torch
from cases import refused
from specimen_check import CHECK

from scaleout import exercises
from scaleout.exercises.ranks import guard

HERE = Path(__file__).resolve().parent
RANK = "import io, os, sys, time\nimport torch\nimport torch.distributed as dist\ndef two():\n    {}\n    return 2\n"
STORE = """store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for key in ("told", "wrong", "verdict", "said/0", "ended/0", "0/2/report/0", "0/2/verdict"):
        store.set(key, "garbage")
    return 3"""
JUDGE = """here = sys.modules["__main__"]
    object.__setattr__(here.CHECK, "judge", lambda *reports: here.Verdict(True, "right: [2, 2]"))
    object.__setattr__(here.CHECK, "rank_report", lambda *rank: 2)
    return 3"""
WRITTEN = {
    "-right": RANK.format("pass"),
    "-quiet": RANK.format("import sys; print('about 2', file=sys.stderr)"),
    "not-two": RANK.format("return 3"),
    "no-end": RANK.format("while dist.get_rank() == 1: pass"),
    "no-end-anywhere": RANK.format("while True: pass"),
    "died": RANK.format("dist.get_rank() == 1 and os.kill(os.getpid(), 9)"),
    "died-first": RANK.format("dist.get_rank() == 0 and os._exit(0)"),
    "died-with-code": RANK.format("dist.get_rank() == 1 and os._exit(7)"),
    "mismatch": RANK.format("os.abort()"),
    "exception": RANK.format("raise SystemExit('enough')"),
    "deadlock": RANK.format("dist.get_rank() == 1 and dist.barrier()"),
    "died-at-the-end": RANK.format("dist.get_rank() == 1 and os._exit(0)"),
    "died-at-once": "import os\nos._exit(0)\n" + RANK.format("pass"),
    "exception-on-one": RANK.format("1 / (1 - dist.get_rank())"),
    "exception-before-the-others": RANK.format("dist.get_rank() and 1 / 0; dist.barrier()"),
    "exception-of-its-own": "class Odd(BaseException):\n    __str__ = None\n" + RANK.format("raise Odd"),
    "exception-no-input": RANK.format("input()"),
    "replaced": RANK.format("torch.equal = lambda *pair: True"),
    "replaced-at-once": "import torch.distributed as dist\ndist.all_reduce = print\n" + RANK.format("pass"),
    "replaced-judge": RANK.format("sys.modules['__main__'].judge = sys.modules['__main__'].rank_report = print"),
    "not-two-judge": RANK.format(JUDGE),
    "not-two-garbage": RANK.format(STORE),
    "-forked": RANK.format("os.fork()"),
    "-closed": RANK.format("sys.stdout = io.StringIO(); os.close(1)"),
    "-left": RANK.format("dist.destroy_process_group()"),
    "unread": "raise SystemExit\n" + RANK.format("pass"),
    "-last": RANK.format("dist.barrier()"),
    "-late": RANK.format("""while dist.get_rank() == 1 and time.thread_time() < LATE: pass
    dist.barrier()""")
    + "LATE = time.thread_time() + 1.4\n",
}


SLIPS = ("no-end", "died", "exception", "replaced", "not-two")


@pytest.mark.slow
def test_every_way_to_be_lost_is_one_line_and_the_next_file_is_checked(tmp_path):
    for name, source in WRITTEN.items():
        (tmp_path / f"file{name}.py").write_text(source, encoding="utf-8")
    result = answers.forked(CHECK, *(tmp_path / f"file{name}.py" for name in WRITTEN))
    assert result.returncode == 2
    # Of a reader's own prints, and nothing of gloo's.
    assert set(result.stderr.splitlines()) == {"about 2", f"{tmp_path / 'fileunread.py'}: SystemExit"}
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(said) == [f"file{name}.py" for name in WRITTEN if name != "unread"]
    for name in set(WRITTEN) - {"unread"}:
        slip = next((one for one in SLIPS if name.startswith(one)), name)
        start = "right: [2, 2]" if name[0] == "-" else f"not yet ({slip}): "
        assert said[f"file{name}.py"].startswith(start), said[f"file{name}.py"]
    assert "rank 1 of 2" in said["fileno-end.py"] and "within 2 s" in said["fileno-end.py"]
    assert "rank 1 was ended by signal 9" in said["filedied.py"]
    assert "rank 0 ended Python" in said["filedied-first.py"]
    assert "rank 1 ended Python (exit code 7)" in said["filedied-with-code.py"]
    assert "rank 1 ended Python (exit code 0)" in said["filedied-at-the-end.py"]
    assert "rank 1: ZeroDivisionError" in said["fileexception-on-one.py"]
    assert "replaces torch.equal: leave" in said["filereplaced.py"]
    assert "for 1 s: a deadlock, or a busy machine" in said["filedeadlock.py"]


def test_no_file_and_too_few_processes_are_one_line_and_exit_code_2(tmp_path, monkeypatch):
    file = tmp_path / "two.py"
    file.write_text(WRITTEN["-right"], encoding="utf-8")
    none = answers.forked(CHECK)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    for result, words in (
        (none, "say which file holds your two: python -m specimen_check two.py"),
        (answers.forked(CHECK, file), "this exercise is for 2 processes, not 1"),
    ):
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.splitlines() == [words]


WITH_RANKS = [stem for stem in exercises.stems() if any(one.kind == "torch" for one in exercises.catalogue(stem))]


@pytest.mark.parametrize("stem", WITH_RANKS)
def test_every_checker_wants_its_function_in_a_file(tmp_path, stem):
    check = importlib.import_module(f"scaleout.exercises.{stem}.ranks").CHECK
    (tmp_path / "mine.py").write_text("x = 1\n")
    for name, words in (
        ("gone.py", f"there is no file {tmp_path}/gone.py: save your {check.function} in it"),
        ("mine.py", f"{tmp_path}/mine.py has no function {check.function}"),
    ):
        result = answers.forked(check, tmp_path / name)
        assert (result.returncode, result.stdout, result.stderr) == (2, "", f"{words}\n")


@pytest.mark.slow
def test_it_runs_under_torchrun_too(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(WRITTEN["-last"], encoding="utf-8")
    result = lab_runs.torchrun(["-m", "specimen_check", file], PYTHONPATH=f"{lab_runs.ROOT}:{HERE}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["two.py: right: [2, 2]"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "there is no file"),
        (b"", "has no function two"),
        (b"x = 1\n", "has no function two"),
        (b"# \xff\ndef two(): return 2\n", "not text in UTF-8"),
        (b"#\n#\n# \xff\ndef two(): return 2\n", "not text in UTF-8"),
        (b"def two(): return 2\0\n", "null bytes"),
        (b"def two(:\n", "line 1: "),
        (b"two = " + b"(" * 500, "two.py"),
        (b"two = " + b"-" * 100_000 + b"1", "two.py"),
    ],
)
def test_a_file_that_cannot_hold_the_function_is_one_line_and_does_not_run(tmp_path, source, words):
    file = tmp_path / "two.py"
    if source is not None:
        file.write_bytes(source)
    refused(lambda: guard.inspect(str(file), "two"), words)
    with pytest.raises(ValueError, match="is a folder: name the file that holds your two"):
        guard.inspect(str(tmp_path), "two")


def test_what_was_replaced_is_put_back():
    kept, were = guard.Originals(), (torch.equal, torch.Tensor.sum, torch.allclose.__doc__)
    torch.equal, torch.Tensor.sum = print, print
    guard.line.__code__ = (lambda error, longest=3: "right").__code__
    assert set(kept.put_back()) == {"torch.equal", "Tensor.sum", "scaleout.exercises.ranks.guard.line"}
    assert (torch.equal, torch.Tensor.sum, torch.allclose.__doc__) == were
    assert guard.line(ValueError("one\ntwo")) == "ValueError: one two"
    assert kept.put_back() == []
