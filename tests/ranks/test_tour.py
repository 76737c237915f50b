"""labs/tour.py with labs that pass, fail, hang, chatter, and leave what is no Record: each has its line, the next one
runs, no process stays, and the page has the Records' numbers. Stopped or killed, it takes its labs along."""

import importlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_runs import ENVIRONMENT, ROOT, run
from test_commands import SHRUNK

from scaleout.lab.tour_page import figure
from scaleout.memory import account, usable
from scaleout.records import results
from scaleout.spec import DEVICES, Recipe, total_parameters

REAL = f"""import runpy, sys
import scaleout.lab.start
sys.argv += {[*SHRUNK["memory"], "--steps", "5", "--seq", "16"]!r}
runpy.run_path({str(ROOT / "labs" / "memory.py")!r}, run_name="__main__")
"""
SCRIPTS = {
    "memory": REAL,
    "collectives": "import sys; print('labs/collectives.py: out of luck'); sys.exit(1)",
    "ddp": "while True: print('la' * 1000)",
    "fsdp": """import scaleout.lab.start
import os, pathlib, signal, time
scaleout.lab.start.begin()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path({folder!r}) / f"rank-{{os.getpid()}}").touch()
time.sleep(1e6)
""",
    "tensor": "open('record.json', 'w').write('garbage')",
    "zero": "print('done')",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "labs").mkdir()
    for name, text in SCRIPTS.items():
        (tmp_path / "labs" / f"{name}.py").write_text(text.format(folder=str(tmp_path)) if name == "fsdp" else text)
    (tmp_path / "how").write_text("end it")
    (tmp_path / "tmp").mkdir()  # a tour that is killed leaves its folder
    return tmp_path


def tour(folder, only):
    """The running tour of some labs."""
    return subprocess.Popen(
        [
            sys.executable,
            "tests/ranks/specimen_tour.py",
            folder,
            "--minutes",
            "20",
            "--out",
            str(folder / "out"),
            "--only",
            only,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/tools:{ROOT}", "TMPDIR": str(folder / "tmp")},
    )


def ranks(folder):
    """Process ids of the ranks that hang."""
    return [int(path.name.removeprefix("rank-")) for path in folder.glob("rank-*")]


def until(holds):
    """Wait for something that has to come."""
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.02)
    pytest.fail("it did not come")


def gone(folder):
    """None of the ranks that hung is there any more."""
    until(lambda: not any(alive(pid) for pid in ranks(folder)))


def alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_each_lab_has_its_turn_whatever_the_others_do(folder):
    done = tour(folder, "memory,collectives,ddp,fsdp,tensor,zero")
    said, _ = done.communicate(timeout=240)
    assert done.returncode == 1, said
    assert len(ranks(folder)) == 2
    gone(folder)
    data = json.loads((folder / "out" / "records.json").read_text())
    assert {stop["lab"]: stop["verdict"] for stop in data["stops"]} == {
        "memory": "passed",
        "collectives": "failed",
        "ddp": "ended",
        "fsdp": "ended",
        "tensor": "failed",
        "zero": "failed",
    }
    why = {stop["lab"]: stop["why"] for stop in data["stops"]}
    assert why["collectives"] == "it ended with exit code 1: labs/collectives.py: out of luck"
    assert "it had printed more than 1 MiB" in why["ddp"]
    assert "its time was over" in why["fsdp"]
    assert why["tensor"] == "its Record is invalid: not JSON (line 1: Expecting value)"
    assert why["zero"] == "it wrote no Record"
    assert "1 of 6 stops passed, 3 failed, 2 ended by the tour. None of them ran on a GPU." in said
    on_the_page(folder / "out", data)


def on_the_page(out, data):
    """The numbers in the page's tables are those of the Record."""
    text = (out / "tour.md").read_text()
    record = results.from_dict(data["stops"][0]["records"][0])
    assert (record.stem, record.device_kind, record.device_count) == ("memory", "cpu", 2)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text.split("### memory")[1], re.M)[2:]
    assert len(rows) >= 8
    for name, predicted, measured, over in rows:
        wanted = record.prediction[name], record.measurement[name]
        assert (predicted, measured) == tuple(figure(name, value) for value in wanted)
        assert over == "-" or float(over) == pytest.approx(wanted[0] / wanted[1], abs=6e-4)
    head = next(line for line in text.splitlines() if line.startswith("| memory | smoke | passed, 6 checks |"))
    assert head.split(" | ")[3:7] == [
        "peak bytes",
        figure("bytes", record.prediction["peak bytes"]),
        figure("bytes", record.measurement["peak bytes"]),
        rows[0][3],
    ]
    assert "labs/collectives.py: out of luck" in text.split("## What went wrong")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_tour_that_is_ended_takes_its_lab_along(number, folder):
    (folder / "how").write_text("wait")
    done = tour(folder, "collectives,fsdp")
    until(lambda: len(ranks(folder)) == 2)
    assert all(map(alive, ranks(folder)))
    done.send_signal(number)
    done.communicate(timeout=60)
    gone(folder)
    text = (folder / "out" / "tour.md").read_text()
    assert "out of luck" in text, "what there was before"
    if number != signal.SIGKILL:
        assert done.returncode == 128 + number
        assert f"Stopped by {number.name} before its end." in text


# --- what one GPU has room for --------------------------------------------------------------------------------------


def activations(o):
    """Bytes that a step of a lab's options keeps for its backward."""
    recipe = Recipe(
        o.precision if getattr(o, "precision", "") == "autocast-bf16" else "fp32",
        checkpointing=getattr(o, "checkpointing", "none"),
    )
    moments = account(o.shape, o.micro_batch, o.seq, recipe).moments
    return max(kinds.get("activations", 0) for kinds in moments.values())


def test_what_each_lab_holds_at_once_fits_one_h100(forked_python):
    """At tier gpu, on one rank. The models, gradients and optimizers that it has side by side are counted on a small
    model; on a real one they are as many, and the activations come to them."""
    done = run(["tests/ranks/specimen_held.py"], PYTHONPATH=f"{ROOT}/tests:{ROOT}/tools:{ROOT}")
    assert done.returncode == 0, done.stderr
    room, found = usable(DEVICES["h100-sxm"].memory_bytes), json.loads(done.stdout.splitlines()[-1])
    sys.path.insert(0, str(ROOT / "labs"))
    for lab, models in found.items():
        o = importlib.import_module(lab).TIERS["gpu"]
        needed = models * 4 * total_parameters(o.shape) + activations(o)
        assert needed < room, f"{lab}: {models:.1f} times its weights, {needed / 1e9:.0f} GB"
    assert found["zero"] > 20, "seven ways side by side: what twenty layers have no room for"
