"""One run of a lab from its options to its Record: check, predict, measure, record, print.

A lab makes a `Lab`, refuses what cannot work, and then adds to it: `equality` and `check` what must hold, `predict`
what was predicted beside what was measured, `skip` what was left out and why. `record` makes the Record of all that,
`report` prints and keeps it, and `end` gives exit code 1 where a check failed. labs/STEM.py has what is its own.
"""

import statistics
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from scaleout.lab import fits, options, recording, session
from scaleout.lab import report as lab_report
from scaleout.parallel import parity
from scaleout.records import profiles
from scaleout.timing import calibrated

BYTES = 0.02  # by which predicted and measured bytes may differ, and what the book promises
FILES = {"trace": (".json",), "plot": (".svg", ".png", ".pdf"), "snapshot": (".pickle",)}  # options, and their endings
PERFETTO = "; open it at https://ui.perfetto.dev"
NO_PROFILE = "seconds by the machine's profile: there is none (labs/calibrate.py at this number of processes)"


class Lab:
    """A run of labs/STEM.py: session `s`, options `o` and their `tier`, and what its Record will hold."""

    def __init__(self, s, file, doc, tiers, argv=None, *, names=None, warmup=0, defaults="smoke"):
        """file, doc, tiers: the script, its docstring and its sizes. argv: the words of the command. names: {way: in
        words}. warmup: steps whose seconds do not count. ValueError for words that are no options."""
        self.s, self.names, self.warmup = s, names or {}, warmup
        self.tier, self.o = options.parse(tiers, doc, argv, defaults)
        self.usual = tiers[self.tier]  # the options as they are where nobody asks for another value
        self.stem = Path(file).stem
        self.results = Path(file).resolve().parent / "results" / self.stem
        self.prediction, self.measurement, self.checks, self.series = {}, {}, {}, {}
        self.notes, self.skipped, self.stalls = [], [], []

    # --- before any work ------------------------------------------------------------------------------------

    def refuse(self, least=fits.WEIGHTS, folder=False):
        """ValueError, one line, for what could not be run or kept. least: of `fits`, what a rank needs, None where no
        model is made. folder: --save names a folder, for several Records."""
        o = self.o
        options.check_sound(o.save, getattr(o, "fault", None) or getattr(o, "inject", None))
        if least:
            fits.check(self.s, o.shape, least)
        if folder:
            options.check_folder(self.folder, "--save")
        else:
            options.check_save(o.save, self.results)
        for name, endings in FILES.items():
            options.check_target(getattr(o, name, None), endings)
        _ = self.profile  # a wrong one is refused here

    def refuse_idle(self, flag, *fields):
        """ValueError where one of these options is asked for, beside a flag that shows something by itself."""
        options.check_idle(flag, self.o, self.usual, fields)

    @cached_property
    def profile(self):
        """What labs/calibrate.py measured of this machine with as many processes (dict); None where it has not."""
        return profiles.find(getattr(self.o, "machine", None), self.s.device.type, self.s.world)

    @property
    def folder(self):
        """The folder of --save (Path), for several Records; None where none is kept."""
        return {None: None, "auto": self.results}.get(self.o.save, self.o.save and Path(self.o.save))

    @cached_property
    def text(self):
        """The text of --dataset, a tensor. ValueError where it is no longer than a sequence."""
        return session.dataset(self.o.dataset, self.o.seq)

    def batches(self, step, alone=False, o=None):
        """Batches of a step as `session.batches` gives them, for these options or others."""
        return session.batches(self.s, o or self.o, self.text, step, alone)

    def begin(self, words):
        """Read the text, and print the machine, the model and `words`."""
        _ = self.text
        self.s.say(f"{recording.heading(self.s, self.o.shape)}, {words}")

    # --- check ----------------------------------------------------------------------------------------------

    def check(self, name, error, tolerance=parity.TOLERANCE):
        """Add a check: an error (float) that may be as large as the tolerance."""
        self.checks[name] = parity.check(error, tolerance)

    def check_prediction(self, name, predicted, measured, tolerance=BYTES):
        """Check that two numbers differ by a part of the measured one, at most; of two lists, each pair."""
        pairs = zip(predicted, measured, strict=True) if isinstance(predicted, list) else [(predicted, measured)]
        self.check(name, max(abs(p / m - 1) if m else p for p, m in pairs), tolerance)

    def short(self, tokens, **changes):
        """The options of a comparison with one process: fp32, at most so many tokens per sequence, which every rank
        also has of all ranks."""
        fewest = {"micro_batch": 1, "precision": "fp32"}
        changes = {name: value for name, value in fewest.items() if hasattr(self.o, name)} | changes
        return replace(self.o, seq=min(self.o.seq, tokens), **changes)

    def equality(self, trained, ways, names=None, shared=False):
        """Check each way against one process, and return {way: {kind: error}}.

        trained(way): the result of a few steps, as `parity.trained` gives it; for the way "one", of this process alone
        on the batches of all ranks. names: {way: in words}. shared: each rank's loss is that of all.
        """
        wanted, errors = trained("one"), {}
        for way in ways:
            errors[way] = parity.errors(self.s, trained(way), wanted, shared)
        self.equal(errors, names)
        return errors

    def equal(self, errors, names=None):
        """Add the checks of {way: {kind: error}} against one process."""
        for way, kinds in errors.items():
            for kind, error in kinds.items():
                self.check(f"{(names or self.names)[way]}: {kind} equal{'s' * (kind == 'loss')} one process", error)

    # --- predict and measure --------------------------------------------------------------------------------

    def predict(self, name, predicted, measured):
        """Add a prediction beside its measurement."""
        self.prediction[name], self.measurement[name] = predicted, measured

    def predict_ways(self, rows, figures, names=None):
        """Add every figure that a way has both of. rows: {way: {"predicted", "measured": {figure: number}}}; figures:
        {figure: in words}."""
        prediction, measurement = lab_report.pairs(rows, names or self.names, figures)
        self.prediction |= prediction
        self.measurement |= measurement

    def by_profile(self, seconds, ways):
        """{way: step time by this machine's profile}; without a profile {}, and a note. seconds(profile,
        way): None where they are not known."""
        self.skip(self.profile is None and NO_PROFILE, *calibrated.lacking(self.profile))
        guesses = {way: seconds(self.profile, way) for way in ways} if self.profile else {}
        return {way: guess for way, guess in guesses.items() if guess is not None}

    def skip(self, *reasons):
        """Add what this run leaves out, and why; what is false or empty is no reason."""
        self.skipped += filter(None, reasons)

    def stall(self, seconds, what):
        """Add each of these steps, or whatever else was timed, that took three times the median."""
        middle = statistics.median(seconds[self.warmup :])
        self.stalls += [
            f"{what} {i} took {spent:.3g} s, the median is {middle:.3g} s"
            for i, spent in enumerate(seconds)
            if i >= self.warmup and spent > 3 * middle
        ]

    def note(self, ways):
        """Note what was built. ways: {way: Way}."""
        self.notes += [f"{self.names[name]}: {way.built}" for name, way in ways.items()]

    # --- record and print -----------------------------------------------------------------------------------

    def record(self, seconds, losses, recipe, batch, **fields):
        """The Record of this run. seconds, losses: of the steps of the recorded way, or {way: those}, of which --via
        names it. recipe: a dict. batch: sequences of a step, of all ranks. fields: what differs from most labs."""
        o, shape = self.o, getattr(self.o, "shape", None)
        if isinstance(seconds, dict):
            self.series |= {f"seconds per step, {self.names[way]}": spent for way, spent in seconds.items()}
            seconds, losses = seconds[o.via], losses[o.via]
        values = {
            "dataset": getattr(o, "dataset", None),
            "model": shape and asdict(shape),
            "recipe": recipe,
            "effective_batch": batch,
            "sequence_length": getattr(o, "seq", None),
            "precision": getattr(o, "precision", "fp32"),
            "step_seconds": seconds,
            "warmup_steps": self.warmup,
            "losses": losses,
            "peak_memory": session.allocator(self.s),
        }
        gathered = ("notes", "prediction", "measurement", "checks", "skipped", "stalls", "series")
        values |= {name: getattr(self, name) for name in gathered}
        return recording.record(self.s, self.stem, self.tier, **values | fields)

    def report(self, r, *lines, way="torch", checks=None):
        """Print the lines and what the Record says of its checks, and keep it where --save asks for it.

        way: what the file's name ends with, but for torch. checks: those that are printed, where not all are.
        """
        words = lab_report.verdicts(r.checks if checks is None else checks, r.skipped, r.stalls, r.failures)
        self.s.say("\n".join([*lines, *words]))
        recording.keep(self.s, r, self.o.save, self.results, way)

    def write(self, option, write, hint=""):
        """Write the file that an option asks for, by write(path), on rank 0, and say its name."""
        path = getattr(self.o, option)
        if path and self.s.main:
            write(path)
            self.s.say(f"{'picture' if option == 'plot' else option}: {Path(path).name}{hint}")

    def end(self):
        """Exit code 1 on all ranks where a check failed on any."""
        recording.end(self.s, self.checks)
