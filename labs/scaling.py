"""Rung 11: the training job on several numbers of processes, in strong and weak scaling, with FSDP and DDP.

    python labs/scaling.py --worlds 1,2,4 --mode strong,weak --strategies fsdp,ddp
    python labs/scaling.py --worlds 1,2 --tier cpu --steps 60 --folder runs     writes a Record of each run to runs
    python labs/scaling.py --predict 4:21000      compares your prediction for 4 processes with a run
    python labs/scaling.py --read                 the table and the figure of earlier runs in --folder

The lab starts torchrun itself. Before the runs of each size it calibrates the machine with that number of processes,
and predicts from that. Options that it does not know go to labs/capstone.py.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from scaleout.exercises.capstone import exit_check
from scaleout.lab import ddp_scaling, fits, launch, ms
from scaleout.lab import options as lab_options
from scaleout.records import profiles, results
from scaleout.train import curves, worlds
from scaleout.train import options as train_options

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results" / "scaling"
STEPS = {"smoke": "30", "cpu": "40", "gpu": "30"}  # enough for a median; the job's own numbers train


def parser():
    """The options of this lab; others are the job's."""
    result = lab_options.Parser(__doc__)
    result.add_argument("--worlds", default="1,2,4", metavar="N,N", help="numbers of processes, 1 among them")
    result.add_argument("--mode", default="strong,weak", metavar="MODES", help="strong, weak or both")
    result.add_argument("--strategies", default="fsdp,ddp", metavar="NAMES", help="fsdp, ddp or both")
    result.add_argument("--tier", choices=lab_options.TIERS, default="smoke", help="size of the job")
    result.add_argument(
        "--folder",
        metavar="FOLDER",
        help="for a series of your own: Records are written to it and read from it "
        "(default: none is written, labs/results/scaling is read)",
    )
    result.add_argument(
        "--save",
        nargs="?",
        const="auto",
        metavar="FOLDER",
        help="write a Record of each run (alone: to labs/results/scaling/)",
    )
    result.add_argument("--plot", metavar="FILE.svg", help="draw efficiency, tokens/s, MFU, communication and memory")
    result.add_argument("--seconds", type=float, default=0.2, help="time for each calibrated number; 0: no predictions")
    result.add_argument(
        "--predict",
        metavar="N:TOKENS",
        help="your prediction on N processes, twice those of a run in --folder: runs N and compares",
    )
    result.add_argument("--read", action="store_true", help="run nothing: show the runs in --folder")
    return result


def options(argv):
    """(options of this lab, words for the job, options of the job). ValueError, one line, for what cannot be."""
    o, words = parser().parse_known_args(argv)
    usual = parser().parse_args([])
    if o.read:
        lab_options.check_idle("--read", o, usual, ("worlds", "mode", "strategies", "save", "seconds", "predict"))
        if words:
            raise ValueError(f"--read runs nothing and does not use {' '.join(words)[:80]}: leave it out")
    if o.predict:
        lab_options.check_idle("--predict", o, usual, ("worlds", "plot"))
        curves.parse_guess(o.predict)
    o.worlds = ddp_scaling.worlds(o.worlds, "--worlds")
    o.mode = worlds.choices(o.mode, worlds.MODES, "--mode")
    o.strategies = worlds.choices(o.strategies, worlds.STRATEGIES, "--strategies")
    o.save = RESULTS if o.save == "auto" else Path(o.save or o.folder) if o.save or o.folder else None
    o.folder = Path(o.folder) if o.folder else RESULTS
    lab_options.check_folder(o.folder, "--folder")
    lab_options.check_folder(o.save, "--save")
    if not 0 <= o.seconds <= 60:
        raise ValueError(f"--seconds is {o.seconds:g}: it must be from 0 to 60")
    lab_options.check_target(o.plot, (".svg",))
    if not any(word.split("=")[0] == "--steps" for word in words):
        words = ["--steps", STEPS[o.tier], *words]
    job = worlds.job(o.tier, words)
    for world in o.worlds:
        _ = job.shape, job.sharding(world)  # refused here rather than by the runs
    return o, ["--tier", o.tier, *words], job


def refuse(job, runs, kind):
    """ValueError, one line, for what the job would refuse in any of its runs: before the first, and its calibration."""
    from scaleout.train import batches  # asks for torch

    cut = "fsdp" if any(run.strategy == "fsdp" for run in runs) else "ddp"  # whose runs hear what is said of shards
    for run in runs:
        resolved = job if run.strategy == cut else train_options.unsharded(job)[0]
        resolved = replace(resolved, strategy=run.strategy, batch=run.batch)
        train_options.check(resolved, SimpleNamespace(world=run.world, device=SimpleNamespace(type=kind)))
        if kind == "cpu":
            fits.host(resolved.shape, run.world)
    batches.read(job.dataset, job.held_out, max(run.batch for run in runs) * job.seq + 1)


def device_kind():
    """ "cuda" or "cpu", as the job will choose. torch is asked for only here."""
    from scaleout.lab import session

    return session.pick_device(os.environ.get("LAB_DEVICE")).type


def calibrate(o, world, folder):
    """File of the profile of this machine with so many processes at work, measured now; None with --seconds 0."""
    if not o.seconds:
        return None
    path = Path(folder) / f"machine-{world}.json"
    size = "gpu" if o.tier == "gpu" else "smoke"
    words = ["--tier", size, "--seconds", str(o.seconds), "--no-kernels", "--out", str(path)]
    launch.started(str(FOLDER / "calibrate.py"), words, world)
    return path


class Series:
    """The runs of one call: made, predicted, kept."""

    def __init__(self, o, words, job, kind):
        self.o, self.words, self.job, self.kind, self.share = o, words, job, kind, None
        self.found, self.profiles = {}, {}

    def path(self, run, temporary):
        """Where the Record of a run is written."""
        return (self.o.save or Path(temporary)) / run.name(self.o.tier, self.kind)

    def run(self, run, temporary):
        """One run, or the one like it that was made before; with its prediction, and kept where that is asked for."""
        path = self.path(run, temporary)
        twin = next((one for one in self.found if one.work == run.work), None)
        if twin:
            self.found[run] = self.found[twin]
            return self.found[run]
        if run.world not in self.profiles:
            self.profiles[run.world] = calibrate(self.o, run.world, temporary)
        machine = self.profiles[run.world]
        words = worlds.command(run, self.words, path, machine)
        record = launch.started(str(FOLDER / "capstone.py"), words, run.world, path)
        if machine:
            record = self.predicted(run, record, profiles.load(machine))
        results.save(record, path)
        self.found[run] = record
        guess = record.prediction.get(worlds.FROM_ONE)
        spent, rate = ms(record.median), record.rate
        print(
            f"{run.mode}, {run.strategy}, {run.world} process(es) x {run.batch // run.world} sequences: {spent} ms per "
            f"step (predicted {ms(guess)}), {rate:,.0f} tokens/s",
            flush=True,
        )
        return record

    def predicted(self, run, record, profile):
        """The Record with a prediction, where one can be made: the first run on one process calibrates the others."""
        profile = worlds.at_the_time(profile, record)
        if run.world == 1 and self.share is None:
            self.share = worlds.efficiency(profile, record, replace(self.job, batch=run.batch))
        if self.share is None:
            return record
        predicted = worlds.with_prediction(record, worlds.predict(run, self.job, profile, self.share))
        return replace(predicted, notes=[*predicted.notes, worlds.basis(profile, self.share, self.job.precision)])


def graded(o, words, job, kind):
    """Run what a reader has predicted, and say what the prediction is worth."""
    world, guess = curves.parse_guess(o.predict)
    mode, strategy = o.mode[0], o.strategies[0]
    known = worlds.found_in(o.folder, o.tier, kind)
    name = strategy if world > 2 else worlds.ONE
    half = next((one for one in known if (one.mode, one.world, one.strategy) == (mode, world // 2, name)), None)
    if half is None:
        raise ValueError(
            f"--predict {o.predict}: there is no {mode} run of {name} on {world // 2} process(es) in "
            f"{o.folder.name}: run --worlds 1,{world // 2} --mode {mode} --strategies {strategy} first"
        )
    batch = half.batch if mode == "strong" else 2 * half.batch
    if batch % world:
        raise ValueError(f"--predict {o.predict}: {world} processes do not divide {batch} sequences")
    run, series = worlds.Run(mode, world, strategy, batch), Series(o, words, job, kind)
    refuse(job, [run], kind)
    start = next((known[one] for one in known if one.mode == mode and one.strategy == worlds.ONE), None)
    with tempfile.TemporaryDirectory() as temporary:
        if start is not None and o.seconds:
            profile = worlds.at_the_time(profiles.load(calibrate(o, 1, temporary)), start)
            series.share = worlds.efficiency(profile, start, replace(job, batch=start.effective_batch))
        record = series.run(run, temporary)
        real = record.rate
        path = results.save(
            replace(
                record,
                prediction=record.prediction | {worlds.READER: guess},
                measurement=record.measurement | {worlds.READER: real},
            ),
            series.path(run, temporary),
        )
        print(exit_check.grade(guess, [worlds.file_of(o.folder, half, o.tier, kind), path]).message)
    print(curves.doubling(known[half].rate, real, curves.predicted_rate(record)))


def show(o, records, kind):
    """The table, what limits, and the figure."""
    if not records:
        raise ValueError(f"--read: {o.folder.name} holds no runs of tier {o.tier} on {kind}: run the lab first")
    print("\n" + curves.report(records))
    if o.plot:
        first = next(iter(records.values()))
        curves.plot(records, o.plot, f"{first.device}, {o.tier}: the training job on several processes")
        print(f"figure saved: {Path(o.plot).name}")


def main():
    """Run every size, or read what was run, or grade a prediction."""
    o, words, job = options(sys.argv[1:])
    kind = device_kind()
    if o.predict:
        graded(o, words, job, kind)
        return
    if o.read:
        show(o, worlds.found_in(o.folder, o.tier, kind), kind)
        return
    from scaleout.lab import preflight

    preflight.check_tier(o.tier)
    todo = worlds.plan(o.worlds, o.mode, o.strategies, job.batch)
    refuse(job, todo, kind)
    series = Series(o, words, job, kind)
    with tempfile.TemporaryDirectory() as temporary:
        for run in todo:
            series.run(run, temporary)
    show(o, series.found, kind)


def shielded():
    """`main`; where a run fails, its last words in one line and exit code 1."""
    try:
        main()
    except RuntimeError as error:
        print(f"labs/scaling.py: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    launch.command(shielded, "labs/scaling.py")
