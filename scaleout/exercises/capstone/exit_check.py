"""The exit check of `capstone`, on a reader's own Records: a run on several processes is there, its scaling was read.

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

CLOSE, NEAR = 0.10, 0.25  # of a prediction
READ = 0.03  # of an efficiency that was read off, absolute
ALONE = "one"  # the strategy in the recipe of a single process


@dataclass(frozen=True)
class Missing:
    """What is not there yet: a short name, and one line that says what would be right."""

    name: str
    words: str


@dataclass(frozen=True)
class Outcome:
    """`rows`: (kind of scaling, processes, tokens a second, efficiency) of every size that was found."""

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
        lines += [f"missing ({one.name}): {one.words}" for one in self.missing]
        return "\n".join(lines or ["nothing was given"]) + (
            "\nright: you have run it on several processes, and you have read its scaling" if self.ok else ""
        )


def read(records: Sequence[str | Path]) -> list[Record]:
    """Records from paths, or from JSON texts, which begin with a brace. ValueError, one line, for the first bad one."""
    found = []
    for number, one in enumerate(records, 1):
        if isinstance(one, str) and one.lstrip().startswith("{"):
            try:
                found.append(from_dict(json.loads(one)))
            except (ValueError, OverflowError, RecursionError) as error:  # JSONDecodeError is a ValueError
                raise ValueError(f"Record {number}: {error}") from None
        else:
            found.append(load(one))
    return found


def curves(records: Sequence[Record]) -> list[Scaling]:
    """Sets of Records that differ in the number of processes only. What one process trained without sharding, or any
    other strategy, is the start of every strategy's curve."""
    several = [one for one in records if one.device_count > 1]
    joined = list(records)
    for one in records:
        if one.device_count == 1 and one.recipe.get("strategy") == ALONE:
            joined += [replace(one, recipe=_like(other.recipe)) for other in several]
    found = scalings(runs(joined)) if joined else []
    return [one for one in found if any(run.record.device_count > 1 for run in one.runs)]


def _like(recipe: dict) -> dict:
    return {name: value for name, value in recipe.items() if name not in VARIES}


def exit_check(records: Sequence[str | Path], efficiency: float | None = None) -> Outcome:
    """What is missing before the rung is done. ValueError, one line, for a file that is no Record.

    records: paths or JSON texts; one that is given twice counts once. efficiency: what the reader reads off at
    the most processes, above 0, 1 is ideal.
    """
    if efficiency is not None and not 0 < efficiency < math.inf:
        raise ValueError(f"an efficiency is a number above 0, such as 0.81, not {efficiency:g}")
    every = read(records)
    trained = [one for one in every if one.losses]
    several = [one for one in trained if one.device_count > 1]
    found = curves(trained)
    rows = tuple(
        (_name(one), ranks, run.record.rate, share)
        for one in found
        for run, (ranks, share) in zip(one.runs, one.efficiency.items(), strict=True)
    )
    missing = [
        _records(every, trained, several),
        *(_sound(one) for one in several),
        None if found or not several else _one_size(trained),
        _read_off(found, efficiency) if found else None,
    ]
    return Outcome(tuple(one for one in missing if one), rows)


def _records(every: list, trained: list, several: list) -> Missing | None:
    if not every:
        return Missing("no-records", "give the Records of your runs: labs/scaling.py writes one for each size")
    if not trained:
        return Missing("no-training", f"the {len(every)} Record(s) are of labs that train nothing: run labs/scaling.py")
    if not several:
        return Missing("one-process", "every run was on one process: start one on several, torchrun --nproc-per-node 2")
    return None


def _sound(one: Record) -> Missing | None:
    """What speaks against counting a run on several processes."""
    bad = [name for name, check in one.checks.items() if not check["passed"]]
    if bad:
        return Missing("failed-checks", f"the run on {one.device_count} processes failed its own check: {bad[0]}")
    part = max(1, len(one.losses) // 4)
    if mean(one.losses[-part:]) >= mean(one.losses[:part]):
        return Missing(
            "no-learning",
            f"the loss of the run on {one.device_count} processes does not fall: "
            f"{one.losses[0]:.2f} at the first step, {one.losses[-1]:.2f} at the last",
        )
    return None


def _one_size(trained: list[Record]) -> Missing:
    """Why no two Records make a curve: one size only, or jobs that differ."""
    sizes = sorted({one.device_count for one in trained})
    if len(sizes) == 1:
        return Missing(
            "one-size",
            f"all runs are on {sizes[0]} processes: run the same job on another number, such as "
            f"{sizes[0] // 2} or {2 * sizes[0]}",
        )
    pairs = [
        (_differences(one, other), one, other)
        for one in trained
        for other in trained
        if one.device_count < other.device_count
    ]
    differ, one, other = min(pairs, key=lambda pair: len(pair[0]))
    return Missing(
        "other-job",
        f"the runs on {one.device_count} and {other.device_count} processes are not the same "
        f"job: they differ in {', '.join(differ)}. Change the processes only",
    )


def _differences(one: Record, other: Record) -> list[str]:
    """What differs that should not, beside the number of processes."""
    found = [
        f"{name} ({getattr(one, name)} and {getattr(other, name)})"
        for name in ("stem", "tier", "device", "precision", "sequence_length")
        if getattr(one, name) != getattr(other, name)
    ]
    alone = ALONE in (one.recipe.get("strategy"), other.recipe.get("strategy"))
    for what in ("model", "recipe"):
        a, b = getattr(one, what), getattr(other, what)
        if what == "recipe" and alone:
            continue
        found += [
            f"{what}: {name} ({a.get(name)} and {b.get(name)})"
            for name in sorted({*a, *b} - {*VARIES})
            if a.get(name) != b.get(name)
        ]
    if one.versions != other.versions:
        found.append("versions of the software")
    a, b = one.effective_batch, other.effective_batch
    if a != b and a * other.device_count != b * one.device_count:
        found.append(f"the batch, in total ({a} and {b}) and for each process")
    return found or ["threads a process"]


def _read_off(found: list[Scaling], efficiency: float | None) -> Missing | None:
    """What is wrong with the efficiency that the reader reads off the curve at the most processes."""
    if efficiency is None:
        return Missing("unread", "say which efficiency you read off at the most processes: --efficiency 0.81")
    ends = [(_name(one), max(by), min(by), by[max(by)]) for one in found for by in [one.efficiency]]
    if any(abs(efficiency - share) <= READ for *_, share in ends):
        return None
    for _, ranks, first, share in ends:
        factor = ranks / first
        known = {
            "percent": (100 * share, "that is in percent: give a share, 1 is ideal"),
            "speed-up": (share * factor, f"that is the speed-up: divide it by the ideal one, {factor:g}"),
            "lost": (1 - share, "that is the part that is lost: the efficiency is the rest"),
            "by-all": (share / factor, f"you divided by {factor:g} once too often"),
            "inverted": (1 / share, "you divided the wrong way round: ideal over measured"),
        }
        for name, (value, words) in known.items():
            if abs(efficiency - value) <= READ * max(1, value):
                return Missing(name, f"{efficiency:g} at {ranks} processes: {words}")
    shown = " or ".join(f"that of {name} scaling at {ranks} processes" for name, ranks, *_ in ends)
    return Missing(
        "misread", f"{efficiency:g} is not {shown}: tokens a second of each process, over those at the fewest"
    )


def _name(one: Scaling) -> str:
    """ "strong", or "strong (fsdp)" where the recipe names a strategy."""
    strategy = one.runs[-1].record.recipe.get("strategy")
    return f"{one.kind} ({strategy})" if strategy else one.kind


# --- a prediction for twice the processes ---------------------------------------------------------------------


def grade(guess: float, records: Sequence[str | Path]) -> Verdict:
    """The verdict on `guess`, in tokens a second, for the most processes among the Records.

    They have to hold the same job on half as many as well, with which the guess was made; a strong curve goes before a
    weak one. ValueError, one line, where
    they do not, or for a guess that is not above 0.
    """
    if isinstance(guess, bool) or not isinstance(guess, (int, float)) or not guess > 0:
        raise ValueError(f"a prediction is a number of tokens a second above 0, not {guess!r}")
    found = curves([one for one in read(records) if one.losses])
    for one in sorted(found, key=lambda curve: curve.kind != "strong"):
        by = {run.record.device_count: run for run in one.runs}
        if max(by) / 2 in by:
            return _graded(guess, by[max(by) // 2], by[max(by)])
    raise ValueError(
        "there are no Records of the same job on some number of processes and on twice as many: run "
        "labs/scaling.py --worlds 1,2,4"
    )


def _graded(guess: float, half: Run, whole: Run) -> Verdict:
    before, real = half.record.rate, whole.record.rate
    off, ranks = guess / real - 1, whole.record.device_count
    said = f"you said {guess:,.0f} tokens/s on {ranks} processes, the run made {real:,.0f}"
    if abs(off) <= CLOSE:
        return Verdict(True, f"Close: {said}.")
    if abs(guess / (2 * before) - 1) < CLOSE / 4:
        return Verdict(
            False,
            f"You doubled the {before:,.0f} tokens/s of {ranks // 2}: linear scaling. It leaves out "
            f"what the processes send, and what they share; {said}.",
            "linear",
        )
    if abs(guess / before - 1) < CLOSE / 4:
        return Verdict(
            False,
            f"You kept the rate of {ranks // 2} processes: twice as many also bring twice the devices; {said}.",
            "unchanged",
        )
    way = (
        ("Too high", "ask how what is no compute grows", "too-high")
        if off > 0
        else ("Too low", "what is sent grows more slowly than what is computed", "too-low")
    )
    near = "in the region" if abs(off) <= NEAR else "far off"
    return Verdict(False, f"{way[0]}, and {near}: {said}. On {ranks // 2} it was {before:,.0f}: {way[1]}.", way[2])


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Prints the curve and what is missing; returns the exit code."""
    parser = Parser(__doc__.split("\n")[0], prog="python -m scaleout.exercises.capstone.exit_check")
    parser.add_argument("records", nargs="*", metavar="RECORD", help="files that the labs wrote with --save")
    parser.add_argument("--efficiency", type=float, help="what you read off at the most processes; 1 is ideal")
    try:
        options = parser.parse_args(argv)
        found = exit_check(options.records, options.efficiency)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(found.words())
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
