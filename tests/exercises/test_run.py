"""What runs in other processes: a check in a kernel, and the sandbox of its front end."""

import inspect
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from cases import each, refused

from scaleout import exercises
from scaleout.exercises.engine import apart
from scaleout.page import live, sandbox, widget

pytestmark = pytest.mark.slow
EXERCISE = exercises.exercise("memory", "states-function")
SECONDS = 20  # far more than a call takes, so that a busy machine changes nothing

SOLUTION = re.search(r"```python\n(.*?)```", EXERCISE.solution, re.S).group(1)


def judged(source, seconds=SECONDS):
    return sandbox.call("check", {"stem": "memory", "key": EXERCISE.key, "answer": source}, seconds)


def all_judged(sources, seconds=SECONDS):
    """The verdicts on several sources, two at a time: most of a process is its start."""
    with ThreadPoolExecutor(2) as two:
        return list(two.map(partial(judged, seconds=seconds), sources))


def test_the_sandbox_says_what_a_direct_call_says():
    for source in (SOLUTION, "x = 1 / 0", None):
        assert judged(source) == live.call("check", {"stem": "memory", "key": EXERCISE.key, "answer": source})


def test_the_sandbox_runs_other_methods_too():
    assert sandbox.call("nope", {}, SECONDS) == live.call("nope", {})
    unknown = sandbox.call("check", {"stem": "memory", "key": "nope", "answer": 1}, SECONDS)
    assert "no exercise" in unknown["error"]


def test_code_without_an_end_is_stopped():
    stopped = live.STOPPED.replace(f"{live.LEARNER_SECONDS} seconds", "1 seconds")
    assert stopped != live.STOPPED
    for result in all_judged(
        (
            "import time\ntime.sleep(1000)",
            "while True: print('x' * 1000)",
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ),
        seconds=1,
    ):
        assert (result["ok"], result["slip"], result["message"]) == (False, "endless-loop", stopped)


def test_a_check_in_a_kernel_returns_whatever_the_code_does(monkeypatch):
    """It is a function like any other in a notebook's cell: also beside the main thread, and of C that never looks up.
    Nothing of the code runs here, and what is right is right."""

    def check(source, seconds=1):
        return exercises.check("memory", EXERCISE.key, source, seconds)

    message = (
        "Your code did not end within 1 s, and was stopped. "
        "Look for a loop whose condition never becomes false, or for a busy machine."
    )
    endless = (
        "while True: pass",
        "import itertools\nsum(itertools.repeat(0))",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    )
    with ThreadPoolExecutor(2) as two:
        for result in two.map(check, endless):
            assert result == {"ok": False, "message": message, "slip": "endless-loop"}
    assert check("while True: pass") == {"ok": False, "message": message, "slip": "endless-loop"}
    assert check(SOLUTION, SECONDS)["ok"] and check("import os\nos._exit(3)", SECONDS)["slip"] == "exit"
    assert check(PATCHES["isclose"] + WRONG, SECONDS)["slip"] == check(WRONG, SECONDS)["slip"] == "wrong-result"
    refused(lambda: check(SOLUTION, 0), "seconds must be a finite number above 0, not 0")
    monkeypatch.setattr(apart, "POSSIBLE", False)
    monkeypatch.setattr(apart, "call", None)
    assert check(SOLUTION)["ok"], "as in a page, where there are no processes"


def test_the_code_has_as_long_in_a_kernel_as_in_the_page():
    assert inspect.signature(exercises.check).parameters["seconds"].default == live.LEARNER_SECONDS


def test_ctrl_c_ends_what_runs_apart(monkeypatch):
    """The interrupt goes to the notebook; the process that it waits for is another's group."""
    begun = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            begun.append(self)
            if len(begun) == 1:
                raise KeyboardInterrupt
            return super().communicate(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        exercises.check("memory", EXERCISE.key, "while True: pass", SECONDS)
    assert begun[0].poll() is not None


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


ENDS = [
    ("import os\nos._exit(3)", "exit", "ended Python"),
    ("import sys\nsys.exit()", "exit", "Line 2"),
    ("raise KeyboardInterrupt", "exit", "KeyboardInterrupt"),
    ("import os\nos.abort()", "crash", "crashed"),
    ("import os\nos.kill(os.getpid(), 9)", "memory", "filled the memory"),
    ("input()", "exception", "Line 1: EOFError"),
    (f"print('x' * 10**7)\n{SOLUTION}", "", "Right"),
    (f"import sys\nprint('x' * 10**7, file=sys.__stdout__)\n{SOLUTION}", "", "Right"),
    (f"import threading as t, time\nt.Thread(target=time.sleep, args=(99,)).start()\n{SOLUTION}", "", "Right"),
]


def test_other_ways_to_end_are_one_clear_line():
    for (source, slip, words), result in zip(ENDS, all_judged([case[0] for case in ENDS]), strict=True):
        assert (result["ok"], result["slip"]) == (slip == "", slip), source
        assert words in result["message"] and "\n" not in result["message"], source


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_code_that_fills_memory_is_stopped():
    for result in all_judged(("hog = [0] * 10**10", "hog = []\nwhile True: hog.append(bytearray(10**8))")):
        assert (result["ok"], result["slip"]) == (False, "memory")
        assert "Line " in result["message"]


def test_two_calls_at_once_do_not_mix():
    assert [result["slip"] for result in all_judged((SOLUTION, EXERCISE.stub))] == ["", "stub"]


WRONG = "def states_bytes(params, optimizer, precision): return 1\n"
PATCHES = {
    "verdict": "import scaleout.exercises.engine.kinds as e, scaleout.exercises.engine.function as f\n"
    "class Right:\n    ok, message, slip = True, 'Right', ''\n    def __init__(self, *a): pass\n"
    "    def to_dict(self): return {'ok': True, 'message': 'Right', 'slip': ''}\ne.Verdict = f.Verdict = Right\n",
    "isclose": "import math, scaleout.exercises.engine.nested as n\nmath.isclose = n.equal = lambda *a, **k: True\n",
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
    for patch, result in zip(PATCHES, all_judged([source + WRONG for source in PATCHES.values()]), strict=True):
        assert result.get("ok", False) is False, patch
        assert not result.get("message", "").startswith("Right"), patch
    assert judged(WRONG)["slip"] == "wrong-result"


def test_the_kernel_judges_apart_from_the_code(monkeypatch):
    """A notebook's front end asks to check; the code runs elsewhere and the verdict is made here."""
    monkeypatch.setattr(live, "LEARNER_SECONDS", SECONDS)
    request = {"stem": "memory", "key": EXERCISE.key}
    assert not widget.answer("check", {**request, "answer": PATCHES["verdict"] + WRONG})["ok"]
    assert widget.answer("check", {**request, "answer": SOLUTION})["ok"]


@each(
    [
        None,
        [],
        7,
        "Right",
        {},
        {"ok": True},
        {"results": None},
        {"results": [1]},
        {"results": [[]] * 10},
        {"results": ["Right"] * 10},
        {"results": [None] * 10},
        {"results": [True] * 10},
        {"results": [{}] * 10},
        {"results": [float("nan")] * 10},
        {"results": [[[1]]] * 10},
        {"stopped": 3, "slip": []},
        {"stopped": "Right\n" * 1000, "slip": "", "printed": {}},
    ]
)
def test_an_outcome_that_is_none_is_told_in_one_line(outcome):
    for stem in exercises.stems():
        for exercise in exercises.catalogue(stem):
            if exercise.kind == "function":
                result = exercises.judge(stem, exercise.key, outcome)
                assert not result["ok"] and result["slip"]
                assert "\n" not in result["message"] and len(result["message"]) < 1500


def test_only_functions_are_run():
    assert "asks for no function" in live.call("run", {"stem": "memory", "key": "zero-1", "answer": "1"})["error"]
