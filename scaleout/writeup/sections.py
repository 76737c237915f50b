"""The sections of a write-up, each from the Runs of one kind of device."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from scaleout.spec.transformer import Shape, total_parameters
from scaleout.words.amounts import listed, quantity
from scaleout.writeup import facts, figures
from scaleout.writeup.blocks import Block, Code, Heading, Items, Note, Table, Text

MOST_ROWS = 24  # of a table; beyond it the rows that matter least are counted, not shown
TOLERANCE = 0.05  # an efficiency may exceed 1 by so much, by chance
LONG = 40  # characters; a fact that is longer stands in a list, not in a column
CPU_NOTE = (
    "Measured on a CPU.",
    "Its processes share the cores and the memory of their machine. The times, the "
    "rates and the MFU are those of a CPU and say nothing about a GPU.",
)


def device_part(runs: Sequence[facts.Run]) -> list[Block]:
    """All sections for runs of one kind of device."""
    note = [Note(*CPU_NOTE)] if runs[0].record.device_kind == "cpu" else []
    return [
        *note,
        *setup(runs),
        *rates(runs),
        *scaling(runs),
        *memory(runs),
        *waits(runs),
        *compared(runs),
        *checked(runs),
        *commands(runs),
    ]


# --- what ran ----------------------------------------------------------------------------------------------


def setup(runs: Sequence[facts.Run]) -> list[Block]:
    """What all runs have in common, once; then what differs, a row a run."""
    facts_by_run = {run.name: _setup_of(run) for run in runs}
    names = list(dict.fromkeys(name for facts_ in facts_by_run.values() for name in facts_))
    common = [n for n in names if len({facts_by_run[run.name].get(n) for run in runs}) == 1]
    differ = [n for n in names if n not in common]
    blocks: list[Block] = [Heading("What ran")]
    if common:
        rows: tuple[tuple[str, ...], ...] = tuple((name, facts_by_run[runs[0].name][name]) for name in common)
        blocks.append(Table(("in every run" if len(runs) > 1 else "the run", ""), rows, left=2))
    short = [n for n in differ if max(len(facts_by_run[run.name].get(n, "")) for run in runs) <= LONG]
    if short:
        rows = tuple((run.name, *(facts_by_run[run.name].get(n, "-") for n in short)) for run in runs)
        blocks.append(Table(("run", *short), rows, left=1 + len(short)))
    long = [
        line
        for n in differ
        if n not in short
        for line in facts.together(
            [(run.name, f"{n} {facts_by_run[run.name][n]}") for run in runs if n in facts_by_run[run.name]], len(runs)
        )
    ]
    return blocks + ([Items(tuple(long))] if long else [])


def _setup_of(run: facts.Run) -> dict[str, str]:
    r = run.record
    processes = "processes" if r.device_kind == "cpu" else "GPUs, one process each"
    trained = "none: this lab does not train"
    return {
        "lab": f"{r.stem}, tier {r.tier}",
        "device": f"{r.device} ({r.device_kind})",
        processes: str(r.device_count),
        "nodes": str(r.nodes),
        "interconnect": r.interconnect,
        "backend": r.backend,
        "effective batch": trained if r.tokens is None else f"{r.effective_batch} sequences ({r.tokens:,} tokens)",
        "sequence length": trained if r.tokens is None else f"{r.sequence_length} tokens",
        "precision": r.precision,
        "checkpoint cadence": r.checkpoint_cadence,
        **({"text": r.dataset} if r.dataset else {}),
        **({"model": _model(r.model)} if r.model else {}),
        **({"recipe": _facts(r.recipe)} if r.recipe else {}),
        "versions": ", ".join(f"{name} {version}" for name, version in r.versions.items()),
        "started": r.started,
        "commit": re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", r.commit),
    }


def _model(model: dict) -> str:
    try:
        count = f"{quantity(total_parameters(Shape(**model)) / 1e6)} million parameters: "
    except (TypeError, ValueError):  # another model than the book's transformer
        count = ""
    return count + _facts(model)


def _facts(table: dict) -> str:
    """The fields that say something: an absent, false or "none" one does not."""
    return (
        ", ".join(
            name if value is True else f"{name} {value}"
            for name, value in table.items()
            if value not in (None, False, "none")
        )
        or "none"
    )


# --- how fast ----------------------------------------------------------------------------------------------


def rates(runs: Sequence[facts.Run]) -> list[Block]:
    """Seconds, steps and tokens per second with their quartiles, over the steps after the warm-up; MFU and its peak."""
    rows = tuple(_rates_of(run) for run in runs)
    blocks: list[Block] = [
        Heading("Speed"),
        Text(
            "Median, and in brackets the first and third quartile, over the timed steps; the warm-up is left out. The "
            "mean of tokens/s is over all timed steps, including slow ones."
        ),
        Table(("run", "timed (warm-up)", "step time", "steps/s", "tokens/s", "tokens/s, mean", "MFU"), rows),
        figures.steps(runs),
    ]
    short_runs = [run.name for run in runs if len(run.record.timed) < facts.MIN_TIMED]
    if short_runs:
        blocks.append(
            Text(f"Fewer than {facts.MIN_TIMED} steps were timed, too few for quartiles: {', '.join(short_runs)}.")
        )
    if any(run.record.tokens for run in runs):
        blocks += [Text("", "MFU is relative to"), Items(tuple(_peaks(runs)))]
    curve = figures.losses(runs)
    return [*blocks, *([curve] if curve else [])]


def _rates_of(run: facts.Run) -> tuple[str, ...]:
    r = run.record
    low, high = run.quartiles
    step = f"{facts.seconds(r.median)} [{facts.seconds(low)}, {facts.seconds(high)}]"
    tokens = "-" if r.tokens is None else _rate(facts.spread(run, lambda s: r.tokens / s))
    return (
        run.name,
        f"{len(r.timed)} ({r.warmup_steps})",
        step,
        _rate(facts.spread(run, lambda s: 1 / s)),
        tokens,
        "-" if r.tokens_per_second is None else f"{r.tokens_per_second:,.0f}",
        "-" if r.mfu is None else f"{r.mfu:.3f}",
    )


def _rate(spread: tuple[float, float, float]) -> str:
    median, low, high = map(quantity, spread)
    return f"{median} [{low}, {high}]"


def _peaks(runs: Sequence[facts.Run]) -> Iterable[str]:
    """One line for each peak that an MFU is relative to, and one for the runs without."""
    peaks: dict[tuple, list[str]] = {}
    for run in runs:
        if peak := run.record.mfu_peak:
            peaks.setdefault((peak["flops_per_second"], peak["source"]), []).append(run.name)
    for (rate, source), names in peaks.items():
        prefix = "" if len(names) == len(runs) else f"{', '.join(names)}: "
        yield f"{prefix}{quantity(rate / 1e12)} TFLOP/s of all devices together, {source}"
    unpeaked = [run.name for run in runs if run.record.tokens and run.record.mfu is None]
    if unpeaked:
        prefix = "" if len(unpeaked) == len(runs) else f"{', '.join(unpeaked)}: "
        yield f"{prefix}nothing: no MFU is given, because the peak is unknown"


def scaling(runs: Sequence[facts.Run]) -> list[Block]:
    """A curve and a table for each set of runs that differ in the number of devices only."""
    sets = facts.scalings(runs)
    if not sets:
        return []
    meanings = {
        "strong": "All devices share one batch, and the ideal step time shrinks with their number.",
        "weak": "Every device has a batch of its own, and the ideal step time stays the same.",
    }
    blocks: list[Block] = [Heading("Scaling")]
    for i, group in enumerate(sets):
        rows = tuple(_scaled(group, run) for run in group.runs)
        header = ("run", "devices", "batch", "step time", "predicted", "ratio", "tokens/s", "efficiency")
        blocks += [
            Text(meanings[group.kind], f"{group.title}."),
            Table(header, rows),
            *_superlinear(group),
            figures.scaling(group, i + 1),
        ]
    if runs[0].record.device_kind == "cpu" and all(run.record.nodes == 1 for run in runs):
        blocks.append(
            Text(
                "The processes share the cores of one machine. The efficiency is that of sharing cores, not that "
                "of adding machines."
            )
        )
    return blocks


def _superlinear(group: facts.Scaling) -> list[Block]:
    """A note where runs did better than ideal: it says more of the machine than of the job."""
    names = [run.name for run in group.runs if group.efficiency[run.record.device_count] > 1 + TOLERANCE]
    return (
        [
            Note(
                "An efficiency above 1.",
                f"{listed(names)} did better than ideal compared with {group.runs[0].name}. "
                "Most often something else slowed the first run down. Measure all of them again on an idle machine "
                "before you believe the curve.",
            )
        ]
        if names
        else []
    )


def _scaled(group: facts.Scaling, run: facts.Run) -> tuple[str, ...]:
    guess, r = facts.predicted_step(run), run.record
    return (
        run.name,
        str(r.device_count),
        str(r.effective_batch),
        facts.seconds(r.median),
        "-" if guess is None else facts.seconds(guess),
        "-" if guess is None else f"{guess / r.median:.3f}",
        quantity(r.rate),
        f"{group.efficiency[r.device_count]:.3f}",
    )


# --- what it held, what it waited for ----------------------------------------------------------------------


def memory(runs: Sequence[facts.Run]) -> list[Block]:
    """Bytes of one rank at its peak, by kind."""
    picture = figures.memory(runs)
    if picture is None:
        return [Heading("Memory"), Text("Not measured in these runs.")]
    shown = [run for run in runs if any(run.record.peak_memory.values())]
    kinds = figures.memory_kinds(shown)
    rows = []
    for run in shown:
        sizes = [run.record.peak_memory.get(kind, 0) for kind in kinds]
        rows.append((run.name, *map(facts.data_bytes, sizes), facts.data_bytes(sum(sizes))))
    header = ("bytes per rank at the peak", *kinds, "all")
    blocks: list[Block] = [Heading("Memory"), Table(header, tuple(rows)), picture]
    band = [
        f"{run.name}: {facts.data_bytes(sizes)} {kind.removeprefix('allocator: ')}"
        for run in shown
        for kind, sizes in run.record.peak_memory.items()
        if kind.startswith("allocator: ")
    ]
    absent = [run.name for run in runs if run not in shown]
    if band:
        blocks += [Text("The GPU's allocator reserved more:"), Items(tuple(band))]
    return blocks + ([Text(f"Not measured in: {', '.join(absent)}.")] if absent else [])


WAITS = (("data wait", ("data wait", "seconds")), ("checkpoint, training blocked", ("checkpoint", "seconds")))


def waits(runs: Sequence[facts.Run]) -> list[Block]:
    """Waiting for data, checkpoints, stalls and failures."""
    rows = []
    for run in runs:
        for kind, words in WAITS:
            values = facts.series(run, *words)
            if values:
                share = sum(values) / sum(run.record.timed)
                rows.append(
                    (
                        run.name,
                        kind,
                        str(len(values)),
                        facts.seconds(statistics.median(values)),
                        facts.seconds(max(values)),
                        facts.seconds(sum(values)),
                        f"{share:.2%}",
                    )
                )
    header = ("run", "what", "times", "median", "longest", "all together", "share of the step time")
    table: list[Block] = (
        [Table(header, tuple(rows), left=2)]
        if rows
        else [Text("These runs measured neither the wait for data nor the time for checkpoints.")]
    )
    blocks: list[Block] = [Heading("Waits, stalls and failures"), *table]
    for name in ("stalls", "failures"):
        lines = [(run.name, line) for run in runs for line in getattr(run.record, name)]
        seen = tuple(facts.together(lines, len(runs)))
        text = Text("" if seen else "none seen.", f"{name.capitalize()}:")
        blocks += [text, Items(seen)] if seen else [text]
    return blocks


# --- was it as predicted, is it right ----------------------------------------------------------------------


def compared(runs: Sequence[facts.Run]) -> list[Block]:
    """Every prediction beside its measurement; the farthest ones only where there are many."""
    guesses = facts.guesses(runs)
    blocks: list[Block] = [Heading("Predicted and measured")]
    if not guesses:
        return [*blocks, Text("These runs predicted nothing.")]
    timed = [g for g in guesses if "seconds" in g.name]
    counted = [g for g in guesses if "seconds" not in g.name]
    for lead, part in (("Times:", timed), ("Everything else:", counted)):
        blocks += [Text(line, lead) for line in _ratios(part)]
    shown = guesses if len(guesses) <= MOST_ROWS else sorted(guesses, key=lambda g: -g.factor)[:MOST_ROWS]
    if len(shown) < len(guesses):
        blocks.append(Text(f"The {len(shown)} with the largest errors:"))
    rows = tuple(
        (
            g.name,
            g.run.name,
            facts.figure(g.name, g.predicted),
            facts.figure(g.name, g.measured),
            "-" if g.ratio is None else f"{g.ratio:.3f}",
        )
        for g in shown
    )
    return [*blocks, Table(("what", "run", "predicted", "measured", "ratio"), rows, left=2)]


def _ratios(part: Sequence[facts.Guess]) -> Iterable[str]:
    """One line on how far a group of predictions was from what was measured; none for a group without ratios."""
    ratios = sorted(g.ratio for g in part if g.ratio is not None)
    if ratios:
        worst = max((g for g in part if g.ratio is not None), key=lambda g: g.factor)
        yield (
            f"{len(part)} predictions. predicted / measured has the median {statistics.median(ratios):.3f} and goes "
            f"from {ratios[0]:.3f} to {ratios[-1]:.3f}; largest error: {worst.name} ({worst.run.name})."
        )


def checked(runs: Sequence[facts.Run]) -> list[Block]:
    """Checks, each once for all runs: the failed ones first, then those that passed, then what was skipped and why."""
    groups: dict[tuple, list[tuple[facts.Run, dict]]] = {}
    for run in runs:
        for name, check in run.record.checks.items():
            groups.setdefault((check["passed"], name, check["tolerance"]), []).append((run, check))
    count = {passed: sum(len(g) for key, g in groups.items() if key[0] == passed) for passed in (True, False)}
    skipped = [(run.name, line) for run in runs for line in run.record.skipped]
    blocks: list[Block] = [
        Heading("Checks"),
        Text(f"{count[True]} passed, {count[False]} failed, {len(skipped)} skipped."),
    ]
    if not groups and not skipped:
        return [Heading("Checks"), Text("These runs made no checks.")]
    rows = tuple(
        (
            name,
            "passed" if passed else "FAILED: " + ", ".join(run.name for run, _ in group),
            str(len(group)),
            f"{max(check['value'] for _, check in group):.2g}",
            f"{tolerance:g}",
        )
        for (passed, name, tolerance), group in sorted(groups.items(), key=lambda item: item[0][0])
    )
    if rows:
        blocks.append(Table(("check", "", "runs", "largest value", "at most"), rows, left=2))
    if lines := tuple(facts.together(skipped, len(runs))):
        blocks += [Text("", "Skipped:"), Items(lines)]
    return blocks


def commands(runs: Sequence[facts.Run]) -> list[Block]:
    """The commands as typed, and what the runs noted."""
    lines = "\n".join(f"{run.record.command}    # {run.name}" for run in runs)
    notes = tuple(facts.together([(run.name, line) for run in runs for line in run.record.notes], len(runs)))
    blocks: list[Block] = [Heading("Commands"), Code(lines)]
    return [*blocks, Heading("Notes of the runs"), Items(notes)] if notes else blocks
