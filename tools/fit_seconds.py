"""Fit the constants of `spec.program` and `timing.rates` to published steps, and judge each series by a fit without it.

    python tools/fit_seconds.py             the errors of the constants as they stand, by series
    python tools/fit_seconds.py --fit       new constants from all rows, printed
    python tools/fit_seconds.py --cross     for each series: fit to all others, errors on that one
    python tools/fit_seconds.py --table FILE    ERRORS of timing/band.py, from what --cross --out FILE wrote

A constant that no row tells anything about stays where it was: each is drawn to its value at the start with a weight
like one row's. Sum of |log(predicted / measured)| ** 1.3 over rows, a series of n rows weighing sqrt(n).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import median

import measured

from scaleout.spec.program import PROGRAMS
from scaleout.timing import band, machine, rates
from scaleout.timing.band import ninth
from scaleout.timing.job import step_on

POWER = 1.3
PULL = 0.02  # of a constant towards where it started, against the errors of rows
SPREAD = 0.5  # by how much, in logarithm, a constant may be off before that weighs
LAYERS = (3, 5)  # blocks from which a deep model's seconds are found while fitting


def names() -> list[str]:
    """The constants that are fitted."""
    found = [
        "depth",
        "wave",
        "memory",
        *(f"matmul {family}" for family in FAMILIES),
        "triton ampere 0",
        "triton ampere 1",
        "triton hopper 0",
        "triton hopper 1",
    ]
    return found + [f"all {cost}" for cost in COMMON] + [f"{program} {cost}" for program in FITTED for cost in OWN]


FAMILIES = ("ampere", "hopper", "blackwell")
FITTED = ("eager", "compiled", "composer", "megatron-2021", "megatron")
COMMON = ("kernel_seconds", "contention", "action_seconds")  # one value for all programs
OWN = ("moves", "update_passes", "step_seconds")


# Where a fit begins, and where a constant stays that no row tells anything of: round numbers.
PRIOR = {"depth": 120, "wave": 0.8, "memory": 0.8, "matmul ampere": 0.79, "matmul hopper": 0.64,
         "matmul blackwell": 0.45, "triton ampere 0": 0.5, "triton ampere 1": 0.3, "triton hopper 0": 0.25,
         "triton hopper 1": 0.18, "kernel_seconds": 5e-6, "contention": 0.2, "action_seconds": 3e-5, "moves": 1.3,
         "update_passes": 1.5, "step_seconds": 0.01}  # fmt: skip


def prior() -> dict[str, float]:
    return {name: PRIOR.get(name, PRIOR.get(kind(name))) for name in names()}


def standing() -> dict[str, float]:
    """The constants as they stand in the package."""
    found = {"depth": rates.DEPTH, "wave": rates.WAVE, "memory": rates.MEMORY}
    found |= {f"matmul {family}": rates.MATMUL[family] for family in FAMILIES}
    found |= {
        f"triton {family} {i}": rates.ATTENTION["triton"][family][i] for family in ("ampere", "hopper") for i in (0, 1)
    }
    found |= {f"all {cost}": getattr(PROGRAMS["megatron"], cost) for cost in COMMON}
    return found | {f"{name} {cost}": getattr(PROGRAMS[name], cost) for name in FITTED for cost in OWN}


def use(values: dict[str, float]) -> dict:
    """Put constants in place; the programs that they make."""
    rates.DEPTH, rates.WAVE, rates.MEMORY = values["depth"], values["wave"], values["memory"]
    for family in FAMILIES:
        rates.MATMUL[family] = values[f"matmul {family}"]
    for family in ("ampere", "hopper"):
        rates.ATTENTION["triton"][family] = tuple(values[f"triton {family} {i}"] for i in (0, 1))
    common = {cost: values[f"all {cost}"] for cost in COMMON}
    return {
        name: replace(PROGRAMS[name], **common, **{cost: values[f"{name} {cost}"] for cost in OWN}) for name in FITTED
    }


def seconds(row: measured.Row, program, quick: bool = False) -> float:
    """What is predicted of a row."""
    return measured.seconds(row, program, lambda job: _seconds(job, quick))


def _seconds(job, quick: bool) -> float:
    layers = job.shape.layers
    if not quick or job.layout.pp > 1 or layers <= LAYERS[1]:
        return step_on(job, machine.from_datasheet(job)).seconds
    few, more = (step_on(one, machine.from_datasheet(one)).seconds for one in (job.other(layers=n) for n in LAYERS))
    return few + (layers - LAYERS[0]) * (more - few) / (LAYERS[1] - LAYERS[0])


def errors(rows, values, quick=False) -> list[float]:
    programs = use(values)
    return [log(seconds(row, programs[row.job.program.name], quick) / row.seconds) for row in rows]


class Fit:
    """Coordinate descent: each constant in turn a step up or down, kept where it lowers the loss."""

    def __init__(self, rows: list[measured.Row], values: dict[str, float]) -> None:
        self.rows, self.first, self.values = rows, dict(values), dict(values)
        count = defaultdict(int)
        for row in rows:
            count[row.series] += 1
        self.weights = [count[row.series] ** -0.5 for row in rows]
        self.errors = errors(rows, values, quick=True)

    def touched(self, name: str) -> list[int]:
        """The rows that a constant changes."""
        word = name.split()[0]
        if word in FITTED:
            return [i for i, row in enumerate(self.rows) if row.job.program.name == word]
        if word in ("matmul", "triton"):
            family = name.split()[1]
            return [
                i
                for i, row in enumerate(self.rows)
                if rates.family(row.job.device) == family
                and (word == "matmul" or row.job.program.attention == "triton")
            ]
        return list(range(len(self.rows)))

    def loss(self, found: list[float], values: dict[str, float]) -> float:
        rows = sum(w * min(abs(e), 0.7) ** POWER for w, e in zip(self.weights, found, strict=True)) / sum(self.weights)
        pull = sum((log((values[n] + SMALL[kind(n)]) / (self.first[n] + SMALL[kind(n)])) / SPREAD) ** 2 for n in values)
        return rows + PULL / len(self.rows) * pull

    def run(self, rounds: int, log_to=None) -> dict[str, float]:
        steps = dict.fromkeys(self.values, 0.15)
        best = self.loss(self.errors, self.values)
        for turn in range(rounds):
            for name in names():
                rows = self.touched(name)
                if not rows:
                    continue
                for way in (1, -1):
                    tried = self.values | {name: moved(name, self.values[name], way * steps[name])}
                    found = list(self.errors)
                    for i, error in zip(rows, errors([self.rows[i] for i in rows], tried, True), strict=True):
                        found[i] = error
                    loss = self.loss(found, tried)
                    if loss < best - 1e-7:
                        best, self.values, self.errors = loss, tried, found
                        steps[name] *= 1.3
                        break
                else:
                    steps[name] *= 0.6
            if log_to:
                print(f"round {turn}: {best:.5f}", file=log_to, flush=True)
        return self.values


# What counts as nothing of a constant, so that 0 has a logarithm.
SMALL = {"kernel_seconds": 1e-6, "action_seconds": 1e-5, "step_seconds": 2e-3, "contention": 0.02}
SMALL = defaultdict(float, SMALL)
MOST = {"wave": 1.0, "memory": 0.95, "contention": 0.9, "update_passes": 3.0, "step_seconds": 0.02}


def kind(name: str) -> str:
    return name.split()[-1]


def moved(name: str, value: float, by: float) -> float:
    small = SMALL[kind(name)]
    new = (value + small) * exp(by) - small
    most = 0.95 if name.startswith(("matmul", "triton")) else MOST.get(kind(name), float("inf"))
    return min(most, max(1.0 if kind(name) in ("moves", "update_passes") else 0.0, new))


def table(rows, found: list[float]) -> str:
    by = defaultdict(list)
    for row, error in zip(rows, found, strict=True):
        by[row.series].append(error)
    by["all"] = found
    lines = []
    for series, some in by.items():
        size = sorted(map(abs, some))
        lines.append(
            f"{series:28s} n {len(some):3d}  median {100 * median(size):5.1f}%  "
            f"90th {100 * ninth(size):5.1f}%  "
            f"worst {100 * max(some, key=abs):6.1f}%  mean {100 * sum(some) / len(some):6.1f}%"
        )
    return "\n".join(lines)


def cross(rows, rounds: int) -> list[tuple[measured.Row, float]]:
    """Each row with its error under constants that its series did not make."""
    judged = []
    for series in dict.fromkeys(apart(row) for row in rows):
        rest = [row for row in rows if apart(row) != series]
        own = [row for row in rows if apart(row) == series]
        found = errors(own, Fit(rest, prior()).run(rounds))
        judged += list(zip(own, found, strict=True))
        print(table(own, found).splitlines()[-1].replace("all" + " " * 25, f"{series:28s}"), flush=True)
    return judged


def apart(row: measured.Row) -> str:
    """The series that are left out together: all of one project on one family of cards."""
    return f"{row.series.split()[0]} {row.job.device.architecture}"


def judged(file: Path, rows: list[measured.Row]) -> list[tuple[measured.Row, float]]:
    """The rows with log(predicted / measured) that `--cross --out FILE` wrote; rows of one name keep their order.
    ValueError for a file that lacks a row."""
    written: dict[tuple[str, str], list[float]] = defaultdict(list)
    for series, name, error in json.loads(file.read_text()):
        written[series, name].append(error)
    if lacking := [row.name for row in rows if not written[row.series, row.name]]:
        raise ValueError(f"{file} lacks {lacking[0]}: run --cross again")
    return [(row, written[row.series, row.name].pop(0)) for row in rows]


def band_table(file: Path, rows: list[measured.Row]) -> str:
    """The lines of `timing.band.ERRORS`."""
    found = band.errors((row.job, exp(error) - 1) for row, error in judged(file, rows))
    return "\n".join(f"    {key}: Errors{tuple(errors)},".replace("'", '"') for key, errors in found.items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="make new constants from all rows")
    parser.add_argument("--cross", action="store_true", help="judge each series by a fit without it")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of bands")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where --cross writes each row's error")
    o = parser.parse_args(argv)
    rows, values = measured.rows(), standing()
    if o.table:
        print(band_table(o.table, rows))
        return 0
    if o.cross:
        found = cross(rows, o.rounds)
        print(table([row for row, _ in found], [error for _, error in found]))
        if o.out:
            o.out.write_text(json.dumps([[row.series, row.name, round(error, 4)] for row, error in found], indent=0))
        return 0
    if o.fit:
        values = Fit(rows, prior()).run(o.rounds, sys.stderr)
        print(json.dumps({name: float(f"{value:.3g}") for name, value in values.items()}, indent=1))
    print(table(rows, errors(rows, values)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
