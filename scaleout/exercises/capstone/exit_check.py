"""The exit check of `capstone` on a reader's Records: is there a run on several processes, was its scaling read?

    python -m scaleout.exercises.capstone.exit_check labs/results/scaling/*.json --efficiency 0.81

Exit code 0 when nothing is missing, 1 when something is, 2 when a file is no Record. `grade` judges a prediction for
twice the processes against the Records of both sizes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from scaleout.exercises.engine import Verdict
from scaleout.records.results import Record, from_dict, load
from scaleout.spec.command import Parser
from scaleout.writeup.facts import VARIES, Run, Scaling, runs, scalings

CLOSE, REGION = 0.10, 0.25  # of a prediction
READ = 0.03  # of an efficiency that was read off, absolute
ALONE = "one"  # the strategy in the recipe of a single process


@dataclass(frozen=True)
class Missing:
    """What is missing: a short name, and one line that says what to do."""

    name: str
    words: str


@dataclass(frozen=True)
class Outcome:
    """`rows`: (kind of scaling, processes, tokens per second, efficiency) of every size that was found."""

    missing: tuple[Missing, ...]
    rows: tuple[tuple[str, int, float, float], ...]

    @property
    def ok(self) -> bool:
        return not self.missing

    def words(self) -> str:
        """All of it as text: the curve, then what is missing. Efficiencies only once they were read off."""
        lines = []
        for kind, ranks, rate, share in self.rows:
            known = f", efficiency {share:.2f}" if self.ok else ""
            lines.append(f"{kind} scaling, {ranks} process{'' if ranks == 1 else 'es'}: {rate:,.0f} tokens/s{known}")
        lines += [f"missing ({lack.name}): {lack.words}" for lack in self.missing]
        return "\n".join(lines or ["no Records were given"]) + (
            "\nright: you have run the job on several processes, and you have read its scaling" if self.ok else ""
        )


def read(records: Sequence[str | Path]) -> list[Record]:
    """Records from paths, or from JSON texts, which begin with a brace. ValueError, one line, for the first bad one."""
    loaded = []
    for number, source in enumerate(records, 1):
        if isinstance(source, str) and source.lstrip().startswith("{"):
            try:
                loaded.append(from_dict(json.loads(source)))
            except (ValueError, OverflowError, RecursionError) as error:  # JSONDecodeError is a ValueError
                raise ValueError(f"Record {number}: {error}") from None
        else:
            loaded.append(load(source))
    return loaded


def curves(records: Sequence[Record]) -> list[Scaling]:
    """Sets of Records that differ in the number of processes only. What one process trained without sharding, or any
    other strategy, is the start of every strategy's curve."""
    distributed = [record for record in records if record.device_count > 1]
    joined = list(records)
    for record in records:
        if record.device_count == 1 and record.recipe.get("strategy") == ALONE:
            joined += [
                replace(record, recipe={name: value for name, value in several.recipe.items() if name not in VARIES})
                for several in distributed
            ]
    scaling_sets = scalings(runs(joined)) if joined else []
    return [curve for curve in scaling_sets if any(run.record.device_count > 1 for run in curve.runs)]


def exit_check(records: Sequence[str | Path], efficiency: float | None = None) -> Outcome:
    """What is missing before the rung is done. ValueError, one line, for a file that is no Record.

    records: paths or JSON texts; one that is given twice counts once. efficiency: what the reader reads off at
    the most processes, above 0, 1 is ideal.
    """
    if efficiency is not None and not 0 < efficiency < math.inf:
        raise ValueError(f"an efficiency is a number above 0, such as 0.81, not {efficiency:g}")
    loaded = read(records)
    trained = [record for record in loaded if record.losses]
    distributed = [record for record in trained if record.device_count > 1]
    sets = curves(trained)
    rows = tuple(
        (_name(curve), ranks, run.record.rate, share)
        for curve in sets
        for run, (ranks, share) in zip(curve.runs, curve.efficiency.items(), strict=True)
    )
    missing = [
        _records(loaded, trained, distributed),
        *(_sound(record) for record in distributed),
        None if sets or not distributed else _one_size(trained),
        _read_off(sets, efficiency) if sets else None,
    ]
    return Outcome(tuple(lack for lack in missing if lack), rows)


def _records(loaded: list, trained: list, distributed: list) -> Missing | None:
    if not loaded:
        return Missing("no-records", "give the Records of your runs: labs/scaling.py writes one for each size")
    if not trained:
        return Missing(
            "no-training", f"the {len(loaded)} Record(s) are from labs that do not train: run labs/scaling.py"
        )
    if not distributed:
        return Missing(
            "one-process", "every run was on one process: run the job on several, torchrun --nproc-per-node 2"
        )
    return None


def _sound(run: Record) -> Missing | None:
    """What speaks against counting a run on several processes."""
    bad = [name for name, check in run.checks.items() if not check["passed"]]
    if bad:
        return Missing("failed-checks", f"the run on {run.device_count} processes failed its own check: {bad[0]}")
    part = max(1, len(run.losses) // 4)
    if mean(run.losses[-part:]) >= mean(run.losses[:part]):
        return Missing(
            "no-learning",
            f"the loss of the run on {run.device_count} processes does not fall: "
            f"{run.losses[0]:.2f} at the first step, {run.losses[-1]:.2f} at the last",
        )
    return None


def _one_size(trained: list[Record]) -> Missing:
    """Why no two Records make a curve: one size only, or jobs that differ."""
    sizes = sorted({record.device_count for record in trained})
    if len(sizes) == 1:
        return Missing(
            "one-size",
            f"all runs are on {sizes[0]} processes: run the same job on another number, such as "
            f"{sizes[0] // 2} or {2 * sizes[0]}",
        )
    pairs = [
        (_differences(smaller, larger), smaller, larger)
        for smaller in trained
        for larger in trained
        if smaller.device_count < larger.device_count
    ]
    differ, smaller, larger = min(pairs, key=lambda pair: len(pair[0]))
    return Missing(
        "other-job",
        f"the runs on {smaller.device_count} and {larger.device_count} processes are not the same "
        f"job: they differ in {', '.join(differ)}. Change only the number of processes",
    )


def _differences(first: Record, second: Record) -> list[str]:
    """What differs that should not, beside the number of processes."""
    differences = [
        f"{name} ({getattr(first, name)} and {getattr(second, name)})"
        for name in ("stem", "tier", "device", "precision", "sequence_length")
        if getattr(first, name) != getattr(second, name)
    ]
    alone = ALONE in (first.recipe.get("strategy"), second.recipe.get("strategy"))
    for part in ("model", "recipe"):
        a, b = getattr(first, part), getattr(second, part)
        if part == "recipe" and alone:
            continue
        differences += [
            f"{part}: {name} ({a.get(name)} and {b.get(name)})"
            for name in sorted({*a, *b} - {*VARIES})
            if a.get(name) != b.get(name)
        ]
    if first.versions != second.versions:
        differences.append("versions of the software")
    a, b = first.effective_batch, second.effective_batch
    if a and b and a != b and a * second.device_count != b * first.device_count:
        differences.append(f"the batch, in total ({a} and {b}) and for each process")
    return differences or ["threads per process"]


def _read_off(sets: list[Scaling], efficiency: float | None) -> Missing | None:
    """What is wrong with the efficiency that the reader reads off the curve at the most processes."""
    if efficiency is None:
        return Missing("unread", "say which efficiency you read at the largest number of processes: --efficiency 0.81")
    ends = [
        (_name(curve), max(curve.efficiency), min(curve.efficiency), curve.efficiency[max(curve.efficiency)])
        for curve in sets
    ]
    if any(abs(efficiency - share) <= READ for *_, share in ends):
        return None
    for _, ranks, first, share in ends:
        factor = ranks / first
        known = {
            "percent": (100 * share, "that is in percent: give a share, where 1 is ideal"),
            "speed-up": (share * factor, f"that is the speed-up: divide it by the ideal speed-up, {factor:g}"),
            "lost": (1 - share, "that is the part that is lost: the efficiency is the rest"),
            "by-all": (share / factor, f"you divided by {factor:g} once too often"),
            "inverted": (1 / share, "you divided the wrong way round, ideal by measured"),
        }
        for name, (value, words) in known.items():
            if abs(efficiency - value) <= READ * max(1, value):
                return Missing(name, f"{efficiency:g} at {ranks} processes: {words}")
    shown = " or ".join(f"that of {name} scaling at {ranks} processes" for name, ranks, *_ in ends)
    return Missing(
        "misread", f"{efficiency:g} is not {shown}: divide tokens per second per process by those at the smallest size"
    )


def _name(curve: Scaling) -> str:
    """ "strong", or "strong (fsdp)" where the recipe names a strategy."""
    strategy = curve.runs[-1].record.recipe.get("strategy")
    return f"{curve.kind} ({strategy})" if strategy else curve.kind


# --- a prediction for twice the processes ---------------------------------------------------------------------


def grade(guess: float, records: Sequence[str | Path]) -> Verdict:
    """The verdict on `guess`, in tokens per second, for the most processes among the Records.

    They have to hold the same job on half as many as well, with which the guess was made; a strong curve goes before a
    weak one. ValueError, one line, where they do not, or for a guess that is not above 0.
    """
    if isinstance(guess, bool) or not isinstance(guess, (int, float)) or not guess > 0:
        raise ValueError(f"a prediction is a number of tokens per second above 0, not {guess!r}")
    sets = curves([record for record in read(records) if record.losses])
    for curve in sorted(sets, key=lambda scaling: scaling.kind != "strong"):
        runs_by_size = {run.record.device_count: run for run in curve.runs}
        if max(runs_by_size) / 2 in runs_by_size:
            return _graded(guess, runs_by_size[max(runs_by_size) // 2], runs_by_size[max(runs_by_size)])
    raise ValueError(
        "there are no Records of the same job on some number of processes and on twice as many: run "
        "labs/scaling.py --worlds 1,2,4"
    )


def _graded(guess: float, half: Run, full: Run) -> Verdict:
    half_rate, real = half.record.rate, full.record.rate
    error, ranks = guess / real - 1, full.record.device_count
    summary = f"you predicted {guess:,.0f} tokens/s on {ranks} processes, and the run reached {real:,.0f}"
    if abs(error) <= CLOSE:
        return Verdict(True, f"Close: {summary}.")
    if abs(guess / (2 * half_rate) - 1) < CLOSE / 4:
        return Verdict(
            False,
            f"You doubled the {half_rate:,.0f} tokens/s of {ranks // 2}, which is linear scaling. It leaves out "
            f"communication, and what the processes share; {summary}.",
            "linear",
        )
    if abs(guess / half_rate - 1) < CLOSE / 4:
        return Verdict(
            False,
            f"You kept the rate of {ranks // 2} processes, but twice as many also bring twice the devices; {summary}.",
            "unchanged",
        )
    way = (
        ("Too high", "ask what grows besides the computation", "too-high")
        if error > 0
        else ("Too low", "the computation per process shrinks more than you expected", "too-low")
    )
    region = "not far off" if abs(error) <= REGION else "far off"
    return Verdict(
        False, f"{way[0]}, and {region}: {summary}. On {ranks // 2} it was {half_rate:,.0f}: {way[1]}.", way[2]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Prints the curve and what is missing; returns the exit code."""
    parser = Parser(__doc__.split("\n")[0], prog="python -m scaleout.exercises.capstone.exit_check")
    parser.add_argument("records", nargs="*", metavar="RECORD", help="files that the labs wrote with --save")
    parser.add_argument("--efficiency", type=float, help="what you read at the largest number of processes; 1 is ideal")
    try:
        options = parser.parse_args(argv)
        outcome = exit_check(options.records, options.efficiency)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(outcome.words())
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
