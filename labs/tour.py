"""All labs on this machine within a number of minutes: one page of predictions and measurements.

    python labs/tour.py --minutes 8 --out FOLDER
    python labs/tour.py --minutes 3 --out FOLDER --only memory,ddp      some labs, without the others

Finds out what the machine is (a CPU, one GPU, or a node with several) and chooses the size and the number of ranks of
each lab. A lab that does not fit into the time is skipped. A lab that fails or hangs is stopped, its log is kept, and
the next lab runs.

FOLDER gets three files: the page, tour.md; all Records in one file; an archive of logs, Records and the machine's
profiles. They exist however the tour ends. Exit code 0 if every lab that ran passed, else 1.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import datetime
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scaleout.lab import launch, limits, tour_page, tour_visit
from scaleout.lab import options as lab_options
from scaleout.lab import tour as lab_tour
from scaleout.records import provenance

BEGUN = time.monotonic()  # the minutes count from here
FOLDER = Path(__file__).resolve().parent
CLOSING = 8.0  # seconds kept for ending a lab and writing the page
ASKING = 90.0  # seconds, at most, for torch to say what the machine is


def options(argv):
    """The parsed command line; ValueError on bad input."""
    parser = lab_options.Parser(__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="for the whole tour, from 1 to 1440", metavar="X")
    parser.add_argument("--out", default="runs/tour", help="for the three files (runs/tour)", metavar="FOLDER")
    parser.add_argument("--only", help="labs to run, as in memory,ddp (all)", metavar="LAB,LAB")
    o = parser.parse_args(argv)
    if not (math.isfinite(o.minutes) and 1 <= o.minutes <= 1440):
        raise ValueError(f"--minutes is {o.minutes:g}: it must be from 1 to 1440")
    lab_options.check_folder(o.out, "--out")
    o.out, o.only = Path(o.out), () if o.only is None else tuple(word.strip() for word in o.only.split(","))
    for name in o.only:
        if name not in lab_tour.SECONDS:
            raise ValueError(f"--only: there is no lab {name!r} on the tour: use some of {', '.join(lab_tour.SECONDS)}")
    return o


def left(o):
    """Seconds that a lab may still take."""
    return BEGUN + o.minutes * 60 - CLOSING - time.monotonic()


def machine(o):
    """(lab.tour.Machine, what went wrong in asking for it, in words)."""
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "scaleout.lab.machine"],
            capture_output=True,
            text=True,
            timeout=min(ASKING, left(o) / 2),
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, [str(tour_visit.ROOT), os.environ.get("PYTHONPATH")]))},
        )
        if answer.returncode == 0:
            return lab_tour.Machine(**json.loads(answer.stdout.splitlines()[-1])), ""
        message = (answer.stderr.strip() or "nothing").splitlines()[-1]
    except subprocess.TimeoutExpired:
        message = "no answer, perhaps a driver hangs"
    facts = {"processor": f"{limits.cores()} core(s)", "Python": sys.version.split()[0]}
    return lab_tour.Machine(limits.cores(), facts=facts), f"Torch could not find out what this machine is: {message}"


def walk(o, tour, work):
    """Run stop after stop, and write the files after each."""
    stops = lab_tour.plan(tour.machine, o.minutes, o.only)
    print(f"{tour_page.headed(tour.machine)}: {len(stops)} stops, {o.minutes:g} minutes", flush=True)
    for number, stop in enumerate(stops, 1):
        slower = lab_tour.pace(
            (visit.stop.seconds, visit.seconds)
            for visit in tour.visits
            if visit.stop.on == stop.on and visit.verdict == tour_visit.PASSED
        )
        seconds, needed = lab_tour.limit(stop, left(o), slower), stop.seconds * slower
        words = f"[{number}/{len(stops)}] {tour_page.named(stop)}"
        if seconds is None:
            tour.dropped.append((stop, f"takes about {needed:.0f} s here, and {max(0.0, left(o)):.0f} s were left"))
            print(f"{words}: skipped, it {tour.dropped[-1][1]}", flush=True)
            continue
        print(f"{words}, about {needed:.0f} s", flush=True)
        visit = tour_visit.visit(stop, work, FOLDER, seconds)
        tour.visits.append(visit)
        keep(o, tour, work)
        print(f"    {tour_page.verdict(visit)} in {visit.seconds:.0f} s{visit.why and ': ' + visit.why}", flush=True)


def keep(o, tour, work):
    """The files, as far as the tour has come."""
    tour.seconds = time.monotonic() - BEGUN
    tour_page.write(tour, o.out, work)


def main(argv=None):
    """Find out the machine, plan, run the stops, write the files, and exit with the result."""
    o = options(argv)
    if (o.out / tour_page.PAGE).exists():
        raise ValueError(f"--out {o.out}: has a tour already: choose another folder")
    device, reason = machine(o)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tour = tour_page.Tour(device, o.minutes, provenance.command_line(), started, note=reason)
    with tempfile.TemporaryDirectory(prefix="tour-", ignore_cleanup_errors=True) as work:
        try:
            walk(o, tour, Path(work))
        except (KeyboardInterrupt, SystemExit) as stop:
            number = stop.code - 128 if isinstance(stop, SystemExit) else signal.SIGINT
            tour.note = f"Stopped by {signal.Signals(number).name} before its end. {reason}".strip()
            raise
        finally:
            with launch.later():  # no second signal gets between the first and the page
                keep(o, tour, Path(work))
            print(
                f"{tour_page.summed(tour)}\nin {o.out}: {tour_page.PAGE}, {tour_page.RECORDS}, {tour_page.ARCHIVE}",
                flush=True,
            )
    sys.exit(0 if tour.passed else 1)


if __name__ == "__main__":
    launch.command(main, "labs/tour.py")
