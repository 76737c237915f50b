"""What runs in other processes: the sandbox of the kernel, and the exercise of the lab on two ranks."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scaleout import exercises, live, widget
from scaleout.exercises import sandbox

ROOT = Path(__file__).resolve().parents[1]
ONE = exercises.exercise("memory", "states-function")
LAB = exercises.exercise("memory", "bytes-held")
SECONDS = 20  # far more than a call takes, so that a busy machine changes nothing

GIVEN = re.search(r"```python\n(.*?)```", ONE.solution, re.S).group(1)
LAB_GIVEN = re.search(r"```python\n(.*?)```", LAB.solution, re.S).group(1)


def judged(source, seconds=SECONDS):
    return sandbox.call("check", {"stem": "memory", "key": ONE.key, "answer": source}, seconds)


@pytest.mark.parametrize("source", [GIVEN, ONE.stub, "def f(:", "x = 1 / 0", None])
def test_the_sandbox_says_what_a_direct_call_says(source):
    assert judged(source) == live.call("check", {"stem": "memory", "key": ONE.key, "answer": source})


def test_the_sandbox_runs_other_methods_too():
    assert sandbox.call("nope", {}, SECONDS) == live.call("nope", {})
    unknown = sandbox.call("check", {"stem": "memory", "key": "nope", "answer": 1}, SECONDS)
    assert "no exercise" in unknown["error"]


@pytest.mark.parametrize("source", [
    "while True: pass",
    "while True: print('x' * 1000)",
    "import time\ntime.sleep(1000)",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
])  # fmt: skip
def test_code_without_an_end_is_stopped(source):
    start = time.monotonic()
    result = judged(source, seconds=1)
    assert time.monotonic() - start < 5
    assert (result["ok"], result["slip"]) == (False, "endless-loop")
    stopped = live.STOPPED.replace(f"{live.LEARNER_SECONDS} seconds", "1 seconds")
    assert result["message"] == stopped != live.STOPPED


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are a POSIX notion")
def test_nothing_that_the_code_started_lives_on(tmp_path):
    mark = tmp_path / "pid"
    source = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
    source += f"open({str(mark)!r}, 'w').write(str(child.pid))\nwhile True: pass"
    assert judged(source, seconds=2)["slip"] == "endless-loop"
    state = Path(f"/proc/{mark.read_text()}/stat")
    for _ in range(50):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("the process that the code started still runs")


@pytest.mark.parametrize(("source", "slip", "words"), [
    ("import os\nos._exit(0)", "exit", "ended Python"),
    ("import os\nos._exit(3)", "exit", "ended Python"),
    ("import sys\nsys.exit()", "exit", "Line 2"),
    ("raise KeyboardInterrupt", "exit", "KeyboardInterrupt"),
    ("import os\nos.abort()", "crash", "crashed"),
    ("import os\nos.kill(os.getpid(), 9)", "memory", "filled the memory"),
    ("input()", "exception", "Line 1: EOFError"),
    (f"print('x' * 10**7)\n{GIVEN}", "", "Right"),
    (f"import sys\nprint('x' * 10**7, file=sys.__stdout__)\n{GIVEN}", "", "Right"),
    (f"import threading as t, time\nt.Thread(target=time.sleep, args=(99,)).start()\n{GIVEN}", "", "Right"),
])  # fmt: skip
def test_other_ways_to_end_are_one_clear_line(source, slip, words):
    start = time.monotonic()
    result = judged(source)
    assert time.monotonic() - start < SECONDS / 2
    assert result["slip"] == slip
    assert result["ok"] == (slip == "")
    assert words in result["message"]
    assert "\n" not in result["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize("source", [
    "hog = [0] * 10**10",
    "hog = bytearray(8 * 2**30)",
    "hog = []\nwhile True: hog.append(bytearray(10**7))",
])  # fmt: skip
def test_code_that_fills_memory_is_stopped(source):
    result = judged(source)
    assert (result["ok"], result["slip"]) == (False, "memory")
    assert "Line " in result["message"]


def test_two_calls_at_once_do_not_mix():
    results = {}

    def ask(name, source):
        results[name] = judged(source)["slip"]

    threads = [threading.Thread(target=ask, args=pair) for pair in (("right", GIVEN), ("stub", ONE.stub))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"right": "", "stub": "stub"}

WRONG = "def states_bytes(params, optimizer, precision): return 1\n"
PATCHES = {
    "verdict": "import scaleout.exercises.engine as e, scaleout.exercises.function as f\n"
    "class Right:\n    ok, message, slip = True, 'Right', ''\n    def __init__(self, *a): pass\n"
    "    def to_dict(self): return {'ok': True, 'message': 'Right', 'slip': ''}\ne.Verdict = f.Verdict = Right\n",
    "isclose": "import math, scaleout.exercises.nested as n\nmath.isclose = n.same = lambda *a, **k: True\n",
    "builtins": "import builtins\nbuiltins.abs = lambda a: 0\nbuiltins.all = lambda a: True\n"
    "builtins.zip = lambda *a, **k: ()\n",
    "cases": "import scaleout.exercises.memory as m\nfor one in m.EXERCISES:\n"
    "    object.__setattr__(one, 'reference', lambda *a: 1)\n"
    "    object.__setattr__(one, 'judge_run', lambda *a: 1 / 0)\n",
    "answer": "import json\nkept = json.dump\n"
    "json.dump = lambda given, out: kept({'ok': True, 'message': 'Right', 'slip': ''}, out)\n",
    "error": "import json\nkept = json.dump\n"
    "json.dump = lambda given, out: kept({'error': 'Right', 'ok': True}, out)\n",
    "garbage": "import json\njson.dump = lambda given, out: out.write('garbage')\n",
    "deep": "import json\njson.dump = lambda given, out: out.write('[' * 10**6)\n",
    "flood": "import json\ndef dump(given, out):\n    while True: out.write('1' * 10**6)\njson.dump = dump\n",
    "few": "import json\nkept = json.dump\njson.dump = lambda given, out: kept({'results': [1]}, out)\n",
    "words": "import json\nkept = json.dump\njson.dump = lambda given, out: kept({'results': ['Right'] * 10}, out)\n",
}


def test_code_that_patches_the_package_makes_no_wrong_answer_right():
    """Not its own, and not the next: what the code gives is judged where it never ran."""
    for patch, source in PATCHES.items():
        result = judged(source + WRONG)
        assert result.get("ok", False) is False, patch
        assert not result.get("message", "").startswith("Right"), patch
    assert judged(WRONG)["slip"] == "wrong-result"


def test_the_kernel_judges_apart_from_the_code(monkeypatch):
    """A notebook's front end asks to check; the code runs elsewhere and the verdict is made here."""
    monkeypatch.setattr(live, "LEARNER_SECONDS", SECONDS)
    asked = {"stem": "memory", "key": ONE.key}
    assert not widget.answer("check", {**asked, "answer": PATCHES["verdict"] + WRONG})["ok"]
    assert widget.answer("check", {**asked, "answer": GIVEN})["ok"]


@pytest.mark.parametrize("outcome", [
    None, [], 7, "Right", {}, {"ok": True}, {"results": None}, {"results": [1]}, {"results": [[]] * 10},
    {"results": ["Right"] * 10}, {"results": [None] * 10}, {"results": [True] * 10}, {"results": [{}] * 10},
    {"results": [float("nan")] * 10}, {"results": [[[1]]] * 10}, {"stopped": 3, "slip": []},
    {"stopped": "Right\n" * 1000, "slip": "", "printed": {}},
])  # fmt: skip
def test_an_outcome_that_is_none_is_told_in_one_line(outcome):
    for stem in exercises.STEMS:
        for one in exercises.catalogue(stem):
            if one.kind == "function":
                result = exercises.judge(stem, one.key, outcome)
                assert not result["ok"] and result["slip"]
                assert "\n" not in result["message"] and len(result["message"]) < 1500


def test_only_functions_are_run():
    assert "asks for no function" in live.call("run", {"stem": "memory", "key": "zero-1", "answer": "1"})["error"]


# What a reader writes in the lab, and the slip it is answered with.
WRITTEN = {
    "": LAB_GIVEN,
    "stub": LAB.stub,
    "counted-numbers": LAB_GIVEN.replace(" * t.element_size()", ""),
    "four-bytes": LAB_GIVEN.replace("t.element_size()", "4"),
    "tied-twice": LAB_GIVEN.replace("size(weights)", "size(model.state_dict().values())"),
    "frozen": LAB_GIVEN.replace("size(w.grad for w in weights if w.grad is not None)", "size(weights)"),
    "no-gradient": LAB_GIVEN.replace(" if w.grad is not None", ""),
    "nothing": LAB_GIVEN.replace("size(states)", "0"),
    "sum": LAB_GIVEN.replace("ReduceOp.MAX", "ReduceOp.SUM"),
    "own-total": LAB_GIVEN.replace("    dist.all_reduce(largest, dist.ReduceOp.MAX)\n", ""),
    "shape": LAB_GIVEN.replace("return mine, largest.item()", "return mine, torch.zeros(2)"),
    "wrong-size": LAB_GIVEN.replace("size(weights)", "17"),
}

# A mistake on one rank is told as what it is. In the last the other rank waits in its all_reduce until that
# gives up.
ONE_RANK = {
    "wrong-size": LAB_GIVEN.replace("    largest =", '    mine["weights"] += 8 * dist.get_rank()\n    largest ='),
    "tied-twice": LAB_GIVEN.replace(
        "size(weights)", "size(model.state_dict().values() if dist.get_rank() else weights)"),
    "shape": LAB_GIVEN.replace("return mine,", "return 1 if dist.get_rank() else mine,"),
    "no-gradient": LAB_GIVEN.replace("    largest =", "    if dist.get_rank(): None.numel()\n    largest ="),
}  # fmt: skip


def lab(*files):
    return subprocess.run(
        [sys.executable, "-m", "scaleout.exercises.torch_memory", *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    """One launch for all files: the reference is right, and every other is told what is wrong with it."""
    files = [tmp_path / f"{slip or 'solution'}.py" for slip in WRITTEN]
    for file, source in zip(files, WRITTEN.values(), strict=True):
        file.write_text(source, encoding="utf-8")
    assert len(set(WRITTEN.values())) == len(WRITTEN)
    result = lab(*files)
    assert result.returncode == 1, result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert said.pop("solution.py").startswith("right: the ranks hold")
    for slip in filter(None, WRITTEN):
        assert said[f"{slip}.py"].startswith(f"not yet ({slip}): "), said[f"{slip}.py"]
    assert len(set(said.values())) == len(WRITTEN) - 1


@pytest.mark.slow
def test_a_mistake_on_one_rank_is_told_and_the_next_file_is_still_checked(tmp_path):
    """The tied weight has a gradient on one rank only, so counting gradients twice is wrong on that rank alone."""
    twice = "size(w.grad for w in [*weights, model['head'].weight] if w.grad is not None)"
    sources = {
        "one_rank": LAB_GIVEN.replace("size(w.grad for w in weights if w.grad is not None)", twice),
        "tensors": LAB_GIVEN.replace("return sum(", "return torch.tensor(sum(").replace(
            "for t in tensors)", "for t in tensors))"
        ).replace("torch.tensor(sum(mine.values()))", "sum(mine.values())").replace("largest.item()", "largest"),
    }
    files = [tmp_path / f"{name}.py" for name in sources]
    for file, source in zip(files, sources.values(), strict=True):
        file.write_text(source, encoding="utf-8")
    said = dict(line.split(": ", 1) for line in lab(*files).stdout.splitlines())
    assert "gradients: " in said["one_rank.py"] and said["one_rank.py"].startswith("not yet (")
    assert said["tensors.py"].startswith("right: the ranks hold")


@pytest.mark.slow
def test_what_stops_one_rank_does_not_lose_the_other(tmp_path):
    """Also where it comes before the reader's own collective, in which the other rank waits."""
    files = [tmp_path / f"{slip}.py" for slip in ONE_RANK]
    for file, source in zip(files, ONE_RANK.values(), strict=True):
        assert source != LAB_GIVEN
        file.write_text(source, encoding="utf-8")
    result = lab(*files)
    assert result.returncode == 1, result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert {file: line.split(": ")[0] for file, line in said.items()} == {
        f"{slip}.py": f"not yet ({slip})" for slip in ONE_RANK}  # fmt: skip
    assert "rank 1" in said["wrong-size.py"] and "rank 1" in said["no-gradient.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "words"), [
    (None, "there is no file"),
    ("def bytes_held(:", "line 1: "),
    ("x = 1", "has no function bytes_held"),
    ("import no_such_module\nbytes_held = print", "ModuleNotFoundError"),
])  # fmt: skip
def test_a_file_that_cannot_be_checked_is_one_line_and_exit_code_2(tmp_path, source, words):
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source, encoding="utf-8")
    result = lab(file)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
