"""What all checkers of lab exercises share: a lost rank is told in one line, and the next file is still checked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
RANK = "import os\nimport torch.distributed as dist\ndef two():\n    {}\n    return 2\n"
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
    "-last": RANK.format("dist.barrier()"),
}


def run(*files, **env):
    return subprocess.run(
        [sys.executable, "-m", "specimen_check", *map(str, files)], cwd=HERE, capture_output=True, text=True,
        timeout=200, env=os.environ | {"PYTHONPATH": str(HERE.parent)} | env,
    )  # fmt: skip


@pytest.mark.slow
def test_every_way_to_be_lost_is_one_line_and_the_next_file_is_checked(tmp_path):
    for name, source in WRITTEN.items():
        (tmp_path / f"file{name}.py").write_text(source, encoding="utf-8")
    start = time.monotonic()
    result = run(*(tmp_path / f"file{name}.py" for name in WRITTEN))
    assert time.monotonic() - start < 150
    assert result.returncode == 1
    assert set(result.stderr.splitlines()) == {"about 2"}  # of a reader's own prints, and nothing of gloo's
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(said) == [f"file{name}.py" for name in WRITTEN]
    for name in WRITTEN:
        slip = next((one for one in ("no-end", "died") if name.startswith(one)), name)
        start = "right: [2, 2]" if name[0] == "-" else f"not yet ({slip}): "
        assert said[f"file{name}.py"].startswith(start), said[f"file{name}.py"]
    assert "rank 1 of 2" in said["fileno-end.py"] and "within 3 s" in said["fileno-end.py"]
    assert "rank 1 was ended by signal 9" in said["filedied.py"]
    assert "rank 0 ended Python" in said["filedied-first.py"]
    assert "rank 1 ended Python (exit code 7)" in said["filedied-with-code.py"]
    assert "for 2 s: a deadlock" in said["filedeadlock.py"]


@pytest.mark.slow
def test_no_file_and_too_few_processes_are_one_line_and_exit_code_2(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(WRITTEN["-right"], encoding="utf-8")
    for result, words in (
        (run(), "say which file holds your two: python -m specimen_check two.py"),
        (run(file, RANK="0", WORLD_SIZE="1"), "this exercise is for 2 processes, not 1"),
    ):
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.splitlines() == [words]


@pytest.mark.slow
def test_it_runs_under_torchrun_too(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(WRITTEN["-last"], encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*command, "-m", "specimen_check", str(file)], cwd=HERE, capture_output=True, text=True,
                            timeout=100, env=os.environ | {"PYTHONPATH": str(HERE.parent)})  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["two.py: right: [2, 2]"]
