"""labs/tour.py with labs of its own: python tests/ranks/specimen_tour.py FOLDER [words of the tour].

FOLDER/labs has the scripts. A lab that hangs is out of time once two of its ranks have said, in FOLDER, that they are
there: no test waits for seconds. A lab that chatters is out of lines sooner than in earnest.
"""

import sys
import time
from pathlib import Path

import repo

sys.path.insert(0, str(repo.ROOT / "labs"))

import tour

from scaleout.lab import launch, tour_visit

FOLDER = Path(sys.argv.pop(1))
watched = tour_visit.watched


def watched_until_it_hangs(lab, path, until):
    if "fsdp" in path.parent.name:
        while len([*FOLDER.glob("rank-*")]) < 2 and lab.poll() is None:
            time.sleep(0.02)
        until = min(until, time.monotonic() + ("wait" in (FOLDER / "how").read_text()) * 1e6)
    return watched(lab, path, until)


tour_visit.watched, tour_visit.MOST_SAID, tour_visit.KEPT = watched_until_it_hangs, 10**6, 10**4
tour_visit.POLITE = 0.2
tour.FOLDER, tour.machine = FOLDER / "labs", lambda o: (tour.lab_tour.Machine(2, facts={"processor": "a loom"}), "")
launch.command(tour.main, "labs/tour.py")
