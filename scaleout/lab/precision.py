"""What the lab of precisions prints: one step from the same weights, training next to fp32, gradients by power of two,
what a fault looks like and which it is. Standard library only."""

import math
import statistics
import textwrap

from scaleout.lab.text import ms, table
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import Histogram, fate

LAST = 8  # steps whose mean loss is compared
BAR = 40  # columns of the longest bar
HUGE = 1e300  # stands for infinity, which no Record can hold


def percent(share):
    """A share as text."""
    return "-" if share is None else f"{100 * share:.2f}%"


def one_step(rows, words):
    """Gradients of one step from the same weights, as text. rows: measure.precision_runs.compare."""
    lines = []
    for name, row in rows.items():
        errors = dict(row["errors"])
        overall, worst = errors.pop("all"), max(errors, key=errors.get)
        lines.append(
            (
                words[name],
                size(overall),
                size(errors[worst]),
                worst if errors[worst] else "-",
                percent(row["zero"]),
                percent(row["predicted"]),
            )
        )
    return table(("one step, the same weights", "gradient error", "largest", "in", "zeros", "predicted"), lines)


def training(runs, words):
    """Losses of all ways as text. runs: {way: [Run] by seed}, "fp32" among them."""
    lines = []
    for name, seeds in runs.items():
        ends = [run.end(LAST) for run in seeds]
        differences = [a - b.end(LAST) for a, b in zip(ends, runs["fp32"], strict=True)]
        lines.append(
            (
                words[name],
                f"{statistics.mean(ends):.4f}",
                "-" if name == "fp32" else signed(differences),
                str(sum(run.skipped for run in seeds)) if len(set(seeds[0].scales)) > 1 else "-",
                percent(seeds[0].stuck[1]) if seeds[0].stuck else "-",
            )
        )
    return table((f"loss of the last {LAST} steps", "mean", "minus fp32's", "skipped", "weights not changed"), lines)


def signed(values):
    """Differences by seed as their mean and what lies between, as text."""
    if not all(map(math.isfinite, values)):
        return "not finite"
    middle, low, high = (f"{round(x, 4) + 0.0:+.4f}" for x in (statistics.mean(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def spread(runs):
    """One line: how far apart the seeds are in fp32."""
    ends = [run.end(LAST) for run in runs["fp32"]]
    return f"spread of fp32 over {len(ends)} seed(s): {max(ends) - min(ends):.4f}"


def scales(steps, run):
    """What the scaler did beside its prediction, as text. steps: numerics.scaling.Step, run: Run."""
    return table(
        ("loss scale, fp16", "predicted", "measured"),
        [
            ("after the last step", f"2^{math.log2(steps[-1].after):g}", f"2^{math.log2(run.scale):g}"),
            ("largest", f"2^{math.log2(max(step.scale for step in steps)):g}", f"2^{math.log2(max(run.scales)):g}"),
            ("steps skipped", str(sum(step.skipped for step in steps)), str(run.skipped)),
        ],
    )


def seconds(runs, words, tokens, warmup):
    """Milliseconds and tokens/s of each way as text. For a GPU: on a CPU they say nothing about one."""
    middle = {name: statistics.median(t for run in seeds for t in run.seconds[warmup:]) for name, seeds in runs.items()}
    return table(
        ("one step", "ms", "tokens/s", "times fp32"),
        [(words[name], ms(t), f"{tokens / t:,.0f}", f"{middle['fp32'] / t:.2f}") for name, t in middle.items()],
    )


def octaves(h: Histogram, title: str, format_name: str = "fp16", width: int = BAR):
    """A Histogram as text, four powers of two per line, with what the format makes of each."""
    f, rows, count = FORMATS[format_name], {}, max(sum(h.counts), 1)
    for octave, n in h.items():
        rows[octave // 4 * 4] = rows.get(octave // 4 * 4, 0) + n
    largest = max(rows.values(), default=1)
    lines = [f"{title}: {h.total:,} numbers, {percent(h.zeros / max(h.total, 1))} zero"]
    for low, n in sorted(rows.items()):
        word = (
            f"zero in {f.name}"
            if low + 3 < f.lowest_octave - f.mantissa - 1
            else ("fewer bits" if low + 3 < f.lowest_octave else "")
        )
        lines.append(
            f"  2^{low:<4} {'#' * round(width * n / largest):<{width}} {percent(n / count):>7}  {word}".rstrip()
        )
    lost = fate(h, f)
    return "\n".join([*lines, f"  in {f.name}: {percent(lost.zero)} zero, {percent(lost.few)} with fewer bits"])


# --- Records --------------------------------------------------------------------------------------------------------


def series_of(moments):
    """{moment: {kind: {part: Histogram}}} as series of a Record: first octave, zeros, largest, counts."""
    return {
        f"gradients, {moment}, {kind}, {part}": [h.first, h.zeros, h.largest, *h.counts]
        for moment, kinds in moments.items()
        for kind, parts in kinds.items()
        for part, h in parts.items()
    }


def moments_of(series):
    """The same back from a Record's series."""
    moments = {}
    for name, row in series.items():
        if name.startswith("gradients, "):
            _, moment, kind, part = name.split(", ", 3)
            first, zeros, largest, *counts = row
            moments.setdefault(moment, {}).setdefault(kind, {})[part] = Histogram(
                int(first), tuple(map(int, counts)), int(zeros), largest
            )
    return moments


# --- faults ---------------------------------------------------------------------------------------------------------

WORDS = 76  # columns of a line that a page shows whole
FAULT_SHARE = 0.5  # of gradients that are zero, or of weights that do not change: more is a fault


def diagnosis(log):
    """(which of the faults a log shows, why), of a run that has gone wrong; ("none", why) where nothing shows.

    log: rows of measure.precision_faults.Follow. First the scaler's: steps skipped say that something was not finite,
    and then the forward says whether an activation was, and the ranks whether all of them had it. No step skipped:
    gradients that are zero, or weights that do not change.
    """
    later_half = log[len(log) // 2 :]
    if any(row["skipped"] or not math.isfinite(row["loss"]) for row in later_half):
        for row in later_half:
            layer = next((name for name, value in row["forward"].items() if not math.isfinite(value)), None)
            if layer:
                return "overflow", (
                    f"the forward pass is not finite, first in {layer}: a smaller loss scale cannot help, bf16 can"
                )
            bad = [rank for rank, value in enumerate(row["ranks"]) if not math.isfinite(value)]
            if bad and len(bad) < len(row["ranks"]):
                return "bad-rank", (
                    f"every forward pass is finite, and before averaging only the gradients of rank "
                    f"{', '.join(map(str, bad))} are not: look at that machine"
                )
        return "none", "gradients overflow on every rank and the forward pass is finite: the scaler is still searching"
    zero, stayed = (statistics.mean(row[key] for row in later_half) for key in ("zero", "stayed"))
    if zero > FAULT_SHARE:
        return "underflow", f"{percent(zero)} of the gradients are zero, and no step was skipped: scale the loss"
    if stayed > FAULT_SHARE:
        return "stagnation", (
            f"gradients are not zero, and {percent(stayed)} of the weights do not change: use fp32 master weights"
        )
    return "none", "no step was skipped, gradients are not zero, weights change"


def fault(sick, sound, fixed, fix):
    """A fault's log next to a sound run and a fixed one, as text. fix: the way that fixes it."""
    steps = table(
        ("step", "loss", "fp32", fix, "loss scale", "skipped", "zeros", "weights not changed"),
        [
            (
                i + 1,
                *(f"{log_row['loss']:.4f}" for log_row in (row, sound[i], fixed[i])),
                f"2^{math.log2(row['scale']):g}",
                "yes" if row["skipped"] else "",
                percent(row["zero"]),
                percent(row["stayed"]),
            )
            for i, row in enumerate(sick)
        ],
    )
    last = sick[-1]
    layers = table(
        ("largest values of the last step", "forward", "backward"),
        [(name, size(value), size(last["backward"].get(name))) for name, value in last["forward"].items()],
    )
    ranks = "largest gradient of each rank before averaging: " + ", ".join(map(size, last["ranks"]))
    name, reason = diagnosis(sick)
    text = textwrap.fill(reason, WORDS, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([steps, "", layers, "", ranks, f"what the log says: {name}", text])


def size(value):
    """A largest value as text."""
    if value is None:
        return "-"
    return "not finite" if not math.isfinite(value) or value >= HUGE else f"{value:.1e}"
