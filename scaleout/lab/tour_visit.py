"""One stop of a tour: the lab is started, watched, stopped if its time is over, and judged. Standard library only.

A lab that a tour has started cannot outlive it. torchrun gives each rank a session of its own, so that no signal to a
group reaches them all: every process of a lab follows a leash (lab/leash.py), and is gone once the tour lets go.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scaleout.lab import launch, leash
from scaleout.lab.tour import Stop
from scaleout.records import results

POLITE, GONE = 2.0, 3.0  # seconds: from asking a lab to end to ending it, and for its processes to be gone
LOOK = 0.1  # seconds between two looks at a lab
MOST_SAID = 32 * 2**20  # bytes of a log, after which a lab is ended: it would fill the disk
KEPT = 100_000  # bytes of either end of a log that are kept
LAST_WORDS = 14  # lines of a log that the page shows
ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED, ENDED = "passed", "failed", "ended"


@dataclass
class Visit:
    """What a stop came to. verdict: PASSED, FAILED or ENDED (by the tour); why: in words, "" where it passed."""

    stop: Stop
    seconds: float
    verdict: str
    why: str = ""
    records: list = field(default_factory=list)
    log: str = ""

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.rstrip().splitlines()[-LAST_WORDS:])


def visit(stop: Stop, folder: Path, labs: Path, seconds: float) -> Visit:
    """Run a stop in a new folder of `folder`, for at most so many seconds. labs: where the scripts lie. Whatever ends
    this, no process of the lab is left."""
    place = folder / stop.name
    place.mkdir()
    path = place / "log.txt"
    pipe = folder / f".{stop.name}"
    leash_, begun = leash.Leash(pipe), time.monotonic()
    with launch.later(), path.open("wb") as log:  # a lab that nobody knows of would be left
        lab = subprocess.Popen(
            command(stop, labs),
            cwd=place,
            env=environment(stop, folder, pipe),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        ended = watched(lab, path, begun + seconds)
    finally:
        with launch.later():
            end(lab, leash_)
    spent = time.monotonic() - begun
    log_text = clipped(path)
    records_, broken = records(place)
    reason = judged(stop, lab.returncode, records_, broken, log_text)
    if ended:
        return Visit(stop, spent, ENDED, f"{ended} after {spent:.0f} s", records_, log_text)
    return Visit(stop, spent, FAILED if reason else PASSED, reason, records_, log_text)


def command(stop: Stop, labs: Path) -> list[str]:
    """What starts a stop: python for one process, torchrun for several."""
    script = str(labs / f"{stop.lab}.py")
    start = [sys.executable, script] if stop.world == 1 else launch.torchrun(stop.world, script)
    return [*start, *stop.command]


def environment(stop: Stop, folder: Path, pipe: Path) -> dict[str, str]:
    """Of a lab: profiles of this tour and of no other, this package without an install, no GPU for what runs on the
    CPU, and the leash."""
    variables = os.environ | {
        "XDG_CACHE_HOME": str(folder / "cache"),
        leash.NAME: str(pipe),
        "PYTHONUNBUFFERED": "1",
        "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR") or str(folder / "cache" / "matplotlib"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    return variables | ({"LAB_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""} if stop.on == "cpu" else {})


def watched(lab: subprocess.Popen, path: Path, until: float) -> str:
    """Wait for a lab; why it has to be ended, in words, or "" where it ended by itself. until: monotonic seconds."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            lab.wait(LOOK)
            return ""
        if time.monotonic() > until:
            return "its time was over, so the tour stopped it"
        if path.stat().st_size > MOST_SAID:
            return f"it had printed more than {MOST_SAID / 2**20:.0f} MiB, so the tour stopped it"


def end(lab: subprocess.Popen, leash_: leash.Leash) -> None:
    """No process of the lab is left on return: asked first, then let go of, then killed."""
    if lab.poll() is None:
        os.killpg(lab.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            lab.wait(POLITE)
    leash_.end(GONE)
    if lab.poll() is None:
        os.killpg(lab.pid, signal.SIGKILL)
        lab.wait()
    leash.leave_none(leash_.path)  # what stands still, or imports torch and follows nothing yet
    leash_.path.unlink()


# --- what it left ---------------------------------------------------------------------------------------------------


def clipped(path: Path) -> str:
    """The text of a log, which keeps its two ends where it is long."""
    with path.open("rb") as log:
        first = log.read(KEPT)
        size = log.seek(0, os.SEEK_END)
        log.seek(max(KEPT, size - KEPT))
        tail = log.read()
    gap = f"\n[... {size - 2 * KEPT:,} bytes are left out ...]\n".encode() if size > 2 * KEPT else b""
    text = (first + gap + tail).decode(errors="replace")
    path.write_text(text, encoding="utf-8")
    return text


def records(place: Path) -> tuple[list, str]:
    """([Record] that a lab left in its folder, what is wrong with the first that is none)."""
    loaded = []
    for path in sorted([*place.glob("record*.json"), *place.glob("records/*.json")]):
        try:
            loaded.append(results.load(path))
        except ValueError as error:
            return loaded, str(error).removeprefix(str(path)).lstrip(": ")
    return loaded, ""


def judged(stop: Stop, code: int, records_: list, broken: str, log_text: str) -> str:
    """Why a stop that ended by itself did not pass, in words; "" where it did."""
    checks = [check for record in records_ for check in record.checks.values()]
    failed = sum(not check["passed"] for check in checks)
    wrong_device = next((record.device_kind for record in records_ if record.device_kind != stop.on), None)
    if broken:
        return f"its Record is invalid: {broken}"
    if wrong_device:
        return f"it should have run on {stop.on}, but ran on {wrong_device}"
    if failed:
        return f"{failed} of {len(checks)} checks failed"
    if code:
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"it {ending}" + (f": {line}" if (line := complaint(log_text)) else "")
    return "it wrote no Record" if stop.keeps and not records_ else ""


def complaint(log_text: str) -> str:
    """The line in which a lab says what is wrong, of its log; "" where there is none."""
    lines = [line.strip() for line in log_text.splitlines() if line.startswith(("labs/", "FIX ")) and ": " in line]
    return lines[0][:200] if lines else ""
