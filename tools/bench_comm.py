"""How good the labs on communication are here: the ring by hand beside the backend's, predictions beside measurements.

    python tools/bench_comm.py [--smallest]      2 and 4 processes, smoke size, one thread each; about two minutes

`--smallest` takes 2 processes and as few messages and rounds as give every kind of figure.
"""

import importlib
import os
import statistics
import sys
import tempfile

import launching

from scaleout.records import results

WAYS = ("naive", "buckets by hand", "torch DDP")
LABS = {"collectives": [], "ddp": []}  # and their words
SMALLEST = {
    "collectives": ["--smallest", "1024", "--largest", "16777216", "--factor", "128", "--rounds", "3"],
    "ddp": ["--layers", "1", "--hidden", "40", "--seq", "32", "--steps", "4"],
}
GOALS = {"ring": 0.8, "prediction": 0.10}


def labs(s) -> None:
    """Both labs, one after the other, in one launch. Their Records go to the folder that BENCH_FOLDER names."""
    sys.path.insert(0, str(launching.ROOT / "labs"))
    for lab, words in (SMALLEST if "--smallest" in sys.argv else LABS).items():
        importlib.import_module(lab).main(s, [*words, "--save", f"{os.environ['BENCH_FOLDER']}/{lab}.json"])


def records(processes: int, smallest: bool) -> list[results.Record]:
    """The Records of the two labs. ValueError with the last line of the launch where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        launching.run([*launching.launcher(processes), __file__, *["--smallest"] * smallest], BENCH_FOLDER=folder)
        return [results.load(f"{folder}/{lab}.json") for lab in LABS]


def show(what: str, value: str, note: str) -> None:
    print(f"{what:<58}{value:>8}  {note}", flush=True)


def main() -> None:
    """Print the table."""
    smallest, off = launching.options(__doc__).parse_args().smallest, []
    for processes in (2,) if smallest else (2, 4):
        collectives, ddp = records(processes, smallest)
        shares = {name: share for name, share in collectives.measurement.items() if name.startswith("ring over")}
        if not shares:
            raise ValueError("no size was large enough to hold the ring against the backend")
        for name, share in shares.items():
            verdict = "met" if share >= GOALS["ring"] else "MISSED"
            show(f"{name}, {processes} processes", f"{share:.2f}", f"goal: {GOALS['ring']}, {verdict}")
        for way in WAYS:
            p, m = (side[f"seconds per step, {way}"] for side in (ddp.prediction, ddp.measurement))
            off.append(abs(p / m - 1))
            show(f"step predicted / measured, {way}, {processes} processes", f"{p / m:.2f}", f"{m * 1e3:.0f} ms")
    middle = statistics.median(off)
    verdict = "met" if middle <= GOALS["prediction"] else "MISSED"
    show("error of the prediction at the median", f"{middle:.0%}", f"goal: {GOALS['prediction']:.0%}, {verdict}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        from scaleout.lab.session import run

        run(labs)
    else:
        main()
