"""What a write-up says of Records: rates with their spread, what scales, how far predictions were; no layout."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from scaleout.records.results import Record
from scaleout.timing.scaling import strong_efficiency, weak_efficiency
from scaleout.words.amounts import STOPWATCH, amount, listed, quantity, took

VARIES = ("ranks", "replicas", "accumulation", "micro_batch")  # fields of a recipe that follow the number of devices
MIN_TIMED = 8  # timed steps; below it quartiles say little


@dataclass(frozen=True)
class Run:
    """A Record under the name it has on the page."""

    name: str
    record: Record

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the timed steps' seconds; both the value itself where there is one step."""
        timed = self.record.timed
        if len(timed) == 1:
            return timed[0], timed[0]
        first, _, third = statistics.quantiles(timed, n=4, method="inclusive")
        return first, third


def runs(records: Sequence[Record], names: Sequence[str] | None = None) -> list[Run]:
    """Records with names of their own: the given ones, else "run 1", "run 2". ValueError for none, or for twins."""
    names = [f"run {i + 1}" for i in range(len(records))] if names is None else list(names)
    if not records:
        raise ValueError("a write-up needs at least one Record")
    if len(names) != len(records) or len(set(names)) != len(names):
        raise ValueError(f"a write-up needs one name for each of {len(records)} Records, all different")
    return [Run(name, record) for name, record in zip(names, records, strict=True)]


def places(runs: Sequence[Run]) -> list[str]:
    """On what the runs ran, one text for each device, in words that cannot be taken for another kind of device."""
    groups: dict[tuple, set[int]] = {}
    for r in (run.record for run in runs):
        groups.setdefault((r.device_kind, r.device, r.nodes), set()).add(r.device_count)
    lines = []
    for (kind, device, nodes), counts in groups.items():
        numbers = listed([str(count) for count in sorted(counts)])
        nodes_text = "" if nodes == 1 else f", on {nodes} nodes"
        if kind == "cpu":
            lines.append(f"On a CPU: {numbers} {'process' if counts == {1} else 'processes'} on a {device}{nodes_text}")
        else:
            lines.append(f"On GPUs: {numbers} x {device}{nodes_text}")
    return lines


def together(lines: Sequence[tuple[str, str]], everyone: int) -> list[str]:
    """Texts of runs, (run, text), each once with the runs that say it; of a page of `everyone` runs."""
    by_text: dict[str, list[str]] = {}
    for name, text in lines:
        by_text.setdefault(text, []).append(name)
    return [text if len(names) == everyone else f"{', '.join(names)}: {text}" for text, names in by_text.items()]


# --- scaling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling:
    """Runs of one job on several numbers of devices. kind: "strong" (one batch shared) or "weak" (one batch each)."""

    kind: str
    runs: tuple[Run, ...]

    @property
    def efficiency(self) -> dict[int, float]:
        """By device count; 1 at the fewest."""
        efficiency_of = strong_efficiency if self.kind == "strong" else weak_efficiency
        return efficiency_of({run.record.device_count: run.record.median for run in self.runs})

    @property
    def title(self) -> str:
        """ "Strong scaling", with the strategy where the Records name one: "Strong scaling, fsdp"."""
        strategy = self.runs[-1].record.recipe.get("strategy")
        return f"{self.kind.capitalize()} scaling" + (f", {strategy}" if strategy else "")


def scalings(runs: Sequence[Run]) -> list[Scaling]:
    """Sets of at least two runs that differ in the number of devices and in nothing else that matters.

    A run on one device whose recipe has the strategy "one" belongs to every set of the same job: there is nothing to
    shard or to copy yet. Of two runs of one set on as many devices the later one counts.
    """
    groups: dict[tuple, dict[int, Run]] = {}
    ordered = sorted((run for run in runs if run.record.tokens), key=lambda run: run.record.started)
    for run in (run for run in ordered if not _alone(run)):
        for kind in ("strong", "weak"):
            groups.setdefault((kind, *_set_key(run.record, kind)), {})[run.record.device_count] = run
    for run in (run for run in ordered if _alone(run)):
        for (kind, *key), group in groups.items():
            job, recipe = _set_key(run.record, kind)
            if job == key[0] and recipe <= key[1]:
                group[1] = run
    return [
        Scaling(kind, tuple(group[n] for n in sorted(group))) for (kind, *_), group in groups.items() if len(group) > 1
    ]


def _alone(run: Run) -> bool:
    return run.record.recipe.get("strategy") == "one"


def _set_key(r: Record, kind: str) -> tuple[tuple, frozenset]:
    """What runs of one set have in common: (device, threads, versions, batch of all or of each; model), (recipe)."""
    ignored = (*VARIES, "strategy") if r.recipe.get("strategy") == "one" else VARIES
    recipe = frozenset((k, repr(v)) for k, v in r.recipe.items() if k not in ignored)
    model = frozenset((k, repr(v)) for k, v in r.model.items())
    batch = (r.effective_batch or 0) / (1 if kind == "strong" else r.device_count)  # None only where nothing trains
    threads = tuple(note for note in r.notes if "CPU thread" in note)
    machine = (r.device_kind, r.device, threads, frozenset(r.versions.items()))
    return (r.stem, r.tier, r.precision, r.sequence_length, batch, model, machine), recipe


def predicted_step(run: Run) -> float | None:
    """Predicted time of the step that `step_seconds` timed, or None where the Record has none.

    A lab that times several ways to train has one prediction for each ("seconds per step, torch DDP"). The one meant
    is the one whose measurement is the median of the timed steps; of several, the last, which labs/scaling.py adds
    from the run on one process.
    """
    r = run.record
    predictions = [
        r.prediction[name]
        for name, measured in r.measurement.items()
        if name.startswith("seconds per step") and abs(measured - run.record.median) <= 1e-9 * run.record.median
    ]
    return predictions[-1] if predictions else None


# --- prediction against measurement ------------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """One figure of a run that was predicted and measured."""

    run: Run
    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float | None:
        """predicted / measured; None where either is 0 or below."""
        return self.predicted / self.measured if self.predicted > 0 and self.measured > 0 else None

    @property
    def factor(self) -> float:
        """How many times too high or too low, from 1 up; without a ratio 1 where both are equal, else infinite."""
        if self.ratio is None:
            return 1.0 if self.predicted == self.measured else float("inf")
        return max(self.ratio, 1 / self.ratio)


def guesses(runs: Sequence[Run]) -> list[Guess]:
    """Every figure of every run that has both, in the order of the runs."""
    return [
        Guess(run, name, predicted, run.record.measurement[name])
        for run in runs
        for name, predicted in run.record.prediction.items()
    ]


# --- words for numbers -------------------------------------------------------------------------------------


seconds = partial(took, units=STOPWATCH)
data_bytes = partial(amount, digits=4)


def figure(name: str, value: float) -> str:
    """A figure with the unit that its name says."""
    if re.search(r"/s\b|\b(?:a|per) second\b|%|\bfraction\b", name):
        return quantity(value, 4)
    if re.search(r"\bseconds\b", name):
        return seconds(value)
    if re.search(r"\bbytes\b", name):
        return data_bytes(value)
    return f"{value:,.0f}" if value == int(value) else quantity(value, 4)


def spread(run: Run, transform=lambda value: value) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile) of `of(seconds of a step)` over the timed steps."""
    low, high = sorted(transform(edge) for edge in run.quartiles)
    return transform(run.record.median), low, high


def series(run: Run, *words: str) -> list[float]:
    """The first series whose name holds all of the words, its warm-up left out where it has one value a step."""
    for name, values in run.record.series.items():
        if values and all(word in name for word in words):
            return values[run.record.warmup_steps :] if len(values) == len(run.record.step_seconds) else values
    return []
