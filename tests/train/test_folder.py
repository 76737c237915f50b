"""The folder of a run: one job at a time, named to the next; metrics with bad lines; a run beside another."""

import builtins
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from repo import ROOT
from samples import HOLD, holder

from scaleout.train import folder as train_folder
from scaleout.train.metrics import FILES, Metrics

ROW = {"loss": 2.0, "rate": 1e-3, "norm": 1.0, "seconds": 0.5, "wait": 0.0}


# --- who writes here ---------------------------------------------------------------------------------------


def test_a_second_job_is_refused_and_told_which_process_is_the_first(tmp_path):
    folder = tmp_path / "new" / "run"
    with holder(folder) as first:
        with pytest.raises(ValueError, match=r"another job writes in .*run \(process") as caught:
            train_folder.claim(folder, patience_s=0.3)
        for part in (f"process {first.pid} on {os.uname().nodename} since 20", " UTC: python ", "--folder"):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)
        first.communicate("\n")
    with train_folder.claim(folder) as mine:  # free again, and signed anew
        assert json.loads((folder / "lock").read_text())["pid"] == os.getpid()
        assert mine.name == str(folder / "lock")


def test_a_killed_holder_holds_nothing(tmp_path):
    with holder(tmp_path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        train_folder.claim(tmp_path, patience_s=0).close()


def test_of_many_that_start_at_once_one_writes(tmp_path):
    code = (
        "import sys\nfrom scaleout.train import folder\nprint('up', flush=True)\ninput()\n"
        "try:\n    kept, line = folder.claim(sys.argv[1], patience_s=0.5), 'mine'\n"
        "except ValueError as error:\n    line = error\nprint(line, flush=True)\ninput()"
    )
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    assert [job.stdout.readline() for job in jobs] == ["up\n"] * 4
    for job in jobs:
        job.stdin.write("\n")
    said = [job.stdout.readline() for job in jobs]
    owners = [job.pid for job, line in zip(jobs, said, strict=True) if line == "mine\n"]
    for job in jobs:
        job.communicate("\n")
    assert len(owners) == 1, said
    assert sum(f"process {owners[0]} on" in line for line in said) == 3, said


LAUNCH = (
    "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]], "
    "stdin=0, stdout=2).pid, flush=True)\ntime.sleep(600)"
)


def test_a_job_whose_launcher_was_killed_is_named_with_what_ends_it(tmp_path):
    """SIGKILL of torchrun leaves its ranks, which go on and hold the folder."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "x"},
    )
    rank = int(launcher.stdout.readline())
    assert launcher.stderr.readline() == "mine\n"
    with pytest.raises(ValueError, match=rf"\(process {rank} on .*\): wait for its end, or use another --folder$"):
        train_folder.claim(tmp_path, patience_s=0)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    if Path("/proc/self/stat").exists():
        with pytest.raises(
            ValueError,
            match=rf"and its launcher, process {launcher.pid}, is gone: kill {rank} lets it "
            r"save and end, or use another --folder$",
        ):
            train_folder.claim(tmp_path, patience_s=0)
    launcher.stdin.close()  # which ends the rank
    assert launcher.stderr.read().endswith("EOF when reading a line\n")
    train_folder.claim(tmp_path, patience_s=0).close()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"{}", b'{"host": 1}', b"7"])
def test_a_lock_with_garbage_in_it_is_a_lock(content, tmp_path):
    with holder(tmp_path) as first:
        (tmp_path / "lock").write_bytes(content)
        with pytest.raises(ValueError, match=r"another job writes in .* \(.*lock does not say which\): wait for its"):
            train_folder.claim(tmp_path, patience_s=0)
        first.communicate("\n")
    (tmp_path / "lock").write_bytes(content)
    train_folder.claim(tmp_path, patience_s=0).close()


def test_what_a_lock_says_cannot_play_with_the_screen(tmp_path):
    facts = {"host": "a\nb\x1b[2J", "pid": 1, "started": "now", "command": "x" * 1000}
    with holder(tmp_path) as first:
        (tmp_path / "lock").write_text(json.dumps(facts))
        with pytest.raises(ValueError, match=r"process 1 on a\?b") as caught:
            train_folder.claim(tmp_path, patience_s=0)
        first.communicate("\n")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_machine_or_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    import fcntl

    def refuses(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with holder(tmp_path) as first:
        monkeypatch.setattr(fcntl, "lockf", refuses)
        train_folder.claim(tmp_path, patience_s=0).close()
        real = builtins.__import__
        monkeypatch.setattr(
            builtins, "__import__", lambda name, *more: real("nowhere" if name == "fcntl" else name, *more)
        )
        train_folder.claim(tmp_path, patience_s=0).close()
        monkeypatch.undo()
        first.communicate("\n")


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--folder .*x: cannot be written \(Not a directory: .*: choose a folder"):
        train_folder.claim(tmp_path / "file" / "x")
    (tmp_path / "taken" / "lock").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"taken/lock is no file: remove it, or use another --folder"):
        train_folder.claim(tmp_path / "taken")
    (tmp_path / "odd" / "plot.svg").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"odd/plot.svg is no file: remove it, or use another --folder"):
        train_folder.claim(tmp_path / "odd", FILES)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(train_folder.os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\): make room, or choose"):
        train_folder.claim(tmp_path / "full")


def test_a_node_finds_out_whether_the_folder_is_shared(tmp_path):
    with train_folder.claim(tmp_path / "one"), train_folder.claim(tmp_path / "other"):
        written = train_folder.signature(tmp_path / "one")
        assert json.loads(written)["pid"] == os.getpid()
        (tmp_path / "other" / "lock").write_text("another")
        assert train_folder.shared(tmp_path / "one", written, 0)
        assert not train_folder.shared(tmp_path / "other", written, 0)
        assert not train_folder.shared(tmp_path / "nowhere", written, 0)


# --- the metrics that lie there ----------------------------------------------------------------------------


def write(folder, rows):
    (folder / "metrics.jsonl").write_bytes(
        b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
    )


def begin(folder, done, fresh=False):
    metrics = Metrics(folder, True)
    return metrics, *metrics.begin(done, fresh)


BAD = {
    "zeros": b"\0" * 4096,
    "half a line": b'{"step": 3, "lo',
    "no dict": b"[1, 2]",
    "no UTF-8": b"\xff\xfe",
    "no number": b'{"step": 3, "validation": NaN}',
    "infinite": b'{"step": 3, "checkpoint": 1e999}',
    "a field too few": b'{"step": 3, "loss": 1.0}',
    "no step": b'{"event": "x"}',
    "no time": b'{"step": 3, "loss": 2.0, "rate": 1.0, "norm": 1.0, "seconds": 0, "wait": 0.0}',
    "back in time": b'{"step": 3, "loss": 2.0, "rate": 1.0, "norm": 1.0, "seconds": -1.0, "wait": 0.0}',
    "a text": b'{"step": "3", "event": "x"}',
    "two lines": b'{"step": 3, "event": "a\\nb"}',
    "control": b'{"step": 1, "event": "\\u001b[2J"}',
    "surrogate": b'{"step": 1, "event": "\\ud800"}',
    "deep": b"[" * 60_000,
    "huge": b"9" * 300_000,
    "large": b'{"step": 3, "validation": 1' + b"0" * 400 + b"}",
    "torn": b'{"step": 9',
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_skipped_counted_and_said_and_all_others_count(kind, tmp_path):
    steps = [{"step": n} | ROW for n in range(1, 9)]
    last = kind == "torn"
    rows = [*steps[:2], *([] if last else [BAD[kind] + b"\n"]), *steps[4:], *([BAD[kind]] if last else [])]
    write(tmp_path, rows)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    metrics, lost, said = begin(tmp_path, 8)
    assert metrics.column("step") == [1, 2, 5, 6, 7, 8]
    assert lost == 0
    assert said == [
        f"metrics.jsonl: 1 of 7 line(s) cannot be read, the first is line {7 if last else 3}; 2 step(s) "
        "are missing between those that can",
        "kept as found: metrics.jsonl as metrics.1.jsonl",
    ]
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before
    assert begin(tmp_path, 8)[2] == [], "said once: the line is gone"


def test_zeros_before_a_line_do_not_take_it_with_them(tmp_path):
    write(tmp_path, [{"step": 1} | ROW, b"\0" * 4096, {"step": 2} | ROW])
    assert begin(tmp_path, 2)[0].column("step") == [1, 2]


def test_lines_of_a_run_without_a_checkpoint_are_kept_aside(tmp_path):
    write(tmp_path, [{"step": n} | ROW for n in range(1, 8)])
    (tmp_path / "failures.jsonl").write_text('{"time": 1.0, "failure": "rank 1 hangs"}\n')
    (tmp_path / "sample.txt").write_text("def f")
    (tmp_path / "plot.svg").write_text("<svg/>")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    metrics, lost, said = begin(tmp_path, 0, fresh=True)
    assert (metrics.steps, lost) == ([], 0)
    assert said == [
        "the folder holds 7 step(s) of an earlier run that came to no checkpoint",
        "kept as found: metrics.jsonl as metrics.1.jsonl, failures.jsonl as failures.1.jsonl, "
        "sample.txt as sample.1.txt, plot.svg as plot.1.svg",
    ]
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    assert (tmp_path / "plot.1.svg").read_text() == "<svg/>"
    assert not {"sample.txt", "plot.svg", "failures.jsonl"} & {path.name for path in tmp_path.iterdir()}
    assert "rank 1 hangs" in (tmp_path / "failures.1.jsonl").read_text()
    metrics.add([{"step": 1} | ROW])
    begin(tmp_path, 0, fresh=True)
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before, "the next one gets the next number"
    assert (tmp_path / "metrics.2.jsonl").read_text() == json.dumps({"step": 1} | ROW) + "\n"


def test_no_run_begins_beside_one_that_came_to_a_checkpoint(tmp_path):
    write(tmp_path, [row for n in (1, 2) for row in ({"step": n} | ROW, {"step": n, "checkpoint": 0.1})])
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(
        ValueError,
        match=r"2 steps of a run that made checkpoints, and .*checkpoints has none: bring "
        r"them back, or use another --folder",
    ):
        begin(tmp_path, 0, fresh=True)
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds a run with checkpoints, and --checkpoint-every none does not go on"):
        begin(tmp_path, 0, fresh=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl"]


def test_words_of_a_watch_that_are_no_words_are_left_out(tmp_path):
    write(tmp_path, [{"step": 1} | ROW])
    (tmp_path / "failures.jsonl").write_text('[]\n{"failure": 7}\n{"time": 1}\n\0\0\n{"failure": "rank 1 hangs"}\n')
    assert [row["event"] for row in begin(tmp_path, 1)[0].events] == ["rank 1 hangs"]
