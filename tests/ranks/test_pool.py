"""The pool itself: results by rank, a process of its own for each call, and ranks that fail, die or hang."""

import os
import signal
import time

import pool
import pytest
import torch
import torch.distributed as dist


def place(s, word):
    """Where this process stands, and a sum over all."""
    total = torch.tensor([float(s.rank + 1)])
    dist.all_reduce(total)
    return word, s.rank, s.world, total.item(), torch.get_num_threads(), os.getpid()


def spoil(s):
    """Leave what must not be found again."""
    found = torch.get_default_dtype(), torch.initial_seed(), os.environ.get("LEFT"), torch.Tensor.sum.__name__
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    os.environ["LEFT"], torch.Tensor.sum = "behind", print
    return *found, os.environ["GIVEN"]


def fail(s, how):
    """Rank 1 goes wrong while rank 0 waits for it."""
    if s.rank == 1 and how == "raise":
        raise KeyError("no such thing")
    if s.rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if s.rank == 1 and how == "hang":
        time.sleep(1000)
    s.barrier()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_function_returns_by_rank(world):
    total = world * (world + 1) / 2
    found = pool.ranks(place, world, "word")
    assert [row[:5] for row in found] == [("word", rank, world, total, 1) for rank in range(world)]
    assert len({row[5] for row in found} | {os.getpid()}) == world + 1


def test_a_call_finds_nothing_of_the_one_before():
    first, again = (pool.ranks(spoil, 1, GIVEN=word) for word in ("a", "b"))
    assert first == [(torch.float32, first[0][1], None, "sum", "a")]
    assert again == [(*first[0][:4], "b")]


@pytest.mark.parametrize(("how", "said"), [("raise", "KeyError: 'no such thing'"), ("kill", "-9"), ("hang", "in fail")])
def test_a_rank_that_fails_is_shown_and_the_next_call_is_healthy(how, said):
    with pytest.raises(AssertionError, match="exit codes") as caught:
        pool.ranks(fail, 2, how, limit=6)
    assert said in str(caught.value)
    pool.ranks(fail, 2, "not at all")


def test_a_script_is_what_python_makes_of_it(tmp_path):
    script = tmp_path / "labs" / "x.py"
    script.parent.mkdir()
    script.write_text(
        "import os, sys\nprint(__name__, sys.argv[1:], sys.path[0], os.environ.get('RANK'))\n"
        "if sys.argv[2:]:\n    sys.exit(sys.argv[2])\n"
    )
    done = pool.lab([script, "a"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"__main__ ['a'] {script.parent} None\n"
    done = pool.lab([script, "a", "the end"], 2)
    assert (done.returncode, done.stderr) == (1, "the end\nthe end\n")
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["0", "1"]
    assert pool.lab(["-m", "scaleout.timing.price", "--help"]).stdout.startswith("usage: ")


def test_nothing_is_left_of_a_job_that_is_given_up(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    with pool.Job([str(script)], 2) as job:
        job.until("here\n", ranks=2)
    assert [process.wait() for process in job.processes] == [-signal.SIGKILL] * 2
    assert not job.folder.exists()
