"""What the scaling lab prints and draws: the table, the largest loss, the result of a doubling, the figure."""

import re

from scaleout.lab.picture import picture
from scaleout.lab.text import megabytes, ms, ratio, table
from scaleout.timing import scaling
from scaleout.train.worlds import BEYOND, FROM_ONE, ONE

BUSY = 1.0  # load average beside the most processes of a series, above which seconds compare with nothing


def series(runs):
    """{(mode, strategy): {world: Record}}, each beginning with the run on one process."""
    records_by = {}
    for run, record in sorted(runs.items()):
        if run.strategy != ONE:
            records_by.setdefault((run.mode, run.strategy), {})[run.world] = record
    for (mode, _), records in records_by.items():
        start = next((record for run, record in runs.items() if run.mode == mode and run.strategy == ONE), None)
        if start is not None:
            records[1] = start
    return {key: dict(sorted(records.items())) for key, records in records_by.items()}


def shares(records, rate_of=lambda r: r.rate):
    """{world: efficiency} of one series, by the measured rate or another figure of a Record."""
    return scaling.efficiency({world: rate_of(record) for world, record in records.items()})


def predicted_shares(records):
    """{world: efficiency} by what was predicted; {} where something was not."""
    known = all(predicted_rate(record) for record in records.values())
    return shares(records, predicted_rate) if known else {}


def predicted_rate(record):
    """Tokens per second that the run on one process predicts for a Record; None where nothing was calibrated."""
    seconds = record.prediction.get(FROM_ONE)
    return record.tokens / seconds if seconds else None


def report(runs):
    """The table of all runs and one line per series on its largest loss, as text."""
    rows = []
    for (mode, strategy), records in series(runs).items():
        real, guess = shares(records), predicted_shares(records)
        for world, r in records.items():
            if world == 1 and any(row[0] == f"{mode}, {ONE}" for row in rows):
                continue
            wanted = r.prediction.get(FROM_ONE)
            rows.append(
                (
                    f"{mode}, {strategy if world > 1 else ONE}",
                    world,
                    r.effective_batch // world,
                    ms(r.median),
                    ms(wanted),
                    ratio(wanted, r.median),
                    f"{r.rate:,.0f}",
                    f"{real[world]:.2f}",
                    _two(guess.get(world)),
                    _two(r.mfu),
                    ms(beyond(r)),
                    ms(beyond(r, "prediction")),
                    megabytes(r.measurement.get("peak bytes")),
                    megabytes(r.prediction.get("peak bytes")),
                )
            )
    header = (
        "scaling",
        "processes",
        "sequences each",
        "ms per step",
        "predicted",
        "ratio",
        "tokens/s",
        "efficiency",
        "predicted",
        "MFU",
        "added by others, ms",
        "predicted",
        "peak memory",
        "predicted",
    )
    notes = [
        "",
        "Predicted step times are from the run on one process, with matmuls and collectives timed around each run. "
        "Added by others: communication, copies and waiting, measured against a rank that steps alone in the same run.",
        *busy(runs),
    ]
    return "\n".join([table(header, rows), *notes, "", *(limit(key, records) for key, records in series(runs).items())])


def busy(runs):
    """A line where the machine did much else during a run, so that its figures compare with nothing; else none."""
    loads = [
        (float(match[1]), match[0])
        for r in runs.values()
        for note in r.notes
        if (match := re.match(r"load average ([\d.]+) on (\d+) cores", note))
    ]
    load, words = max(loads, default=(0.0, ""))  # of a minute: the runs before are in it
    processes = max((run.world for run in runs), default=0)
    line = f"The machine was busy ({words}): run it again when it is idle."
    return [line] if load > processes + BUSY else []


def beyond(record, kind="measurement"):
    """Seconds per step that messages, copies and waiting add to what a rank takes alone; None for a single process,
    which is alone, and where nothing was calibrated."""
    return getattr(record, kind).get(BEYOND) if record.device_count > 1 else None


def _two(value):
    return "-" if value is None else f"{value:.2f}"


def limit(key, records):
    """One line: what costs most of the efficiency at the most processes, in these runs' own numbers."""
    (mode, strategy), last = key, max(records)
    r, first = records[last], records[min(records)]
    name = f"{mode}, {strategy}, {last} processes"
    if last == 1 or BEYOND not in r.prediction:
        return f"{name}: efficiency {shares(records)[last]:.2f}; without a calibration the reason is unknown"
    ideal = first.median * r.effective_batch / first.effective_batch / last
    lost, waits = r.median - ideal, r.measurement[BEYOND]
    if lost <= 0.02 * ideal:
        return (
            f"{name}: efficiency {shares(records)[last]:.2f}: nothing is lost compared with {min(records)} process(es)"
        )
    slower = lost - waits
    cores = re.match(r"(\d+)-core ", r.device)
    shared = f" ({last} processes on {cores[1]} cores)" if cores and int(cores[1]) < last else ""
    parts = {
        "communication, and waiting for the slowest process": waits,
        f"computation and updates, slower next to other processes{shared}": slower,
    }
    part, seconds = max(parts.items(), key=lambda item: item[1])
    return (
        f"{name}: {ms(lost)} ms per step more than the ideal {ms(ideal)} ms. The largest part, {ms(seconds)} ms: {part}"
    )


# --- the reader's own prediction ----------------------------------------------------------------------------------


def parse_guess(text):
    """(processes, tokens per second) of "4:21000". ValueError, one line, for anything else."""
    world, colon, amount = text.partition(":")
    try:
        guess = int(world), float(amount.replace(",", ""))
    except ValueError:
        guess = (0, 0.0)
    if not (colon and 2 <= guess[0] <= 64 and guess[0] % 2 == 0 and 0 < guess[1] < 1e12):
        raise ValueError(
            f"--predict {text}: give PROCESSES:TOKENS_PER_SECOND, an even number of processes up to 64, such as 4:21000"
        )
    return guess


def doubling(half, real, model=None):
    """What twice the processes gave, as text. All in tokens per second: the run on half as many, the real run, and the
    book's own prediction where there is one. `exit_check.grade` judges the reader's."""
    lines = [
        f"Twice the processes gave {real / half:.2f} times the {half:,.0f} tokens/s of half as many: the doubling "
        f"has an efficiency of {real / half / 2:.2f}."
    ]
    if model:
        lines.append(f"The book's model predicted {model:,.0f}, {model / real:.2f} times that.")
    return "\n".join(lines)


# --- the picture --------------------------------------------------------------------------------------------------

COLOURS = {"fsdp": "C0", "ddp": "C1"}
MARKS = {"strong": "o", "weak": "s"}


def panels():
    """{title: (unit, measured of a series, predicted of a series)}, each a function from {world: Record} to
    {world: number}, for the panels of the figure."""

    def by_world(of):
        return lambda records: {world: of(r) for world, r in records.items() if of(r) is not None}

    return {
        "tokens per second": ("", by_world(lambda r: r.rate), by_world(predicted_rate)),
        "efficiency": ("of one process", shares, predicted_shares),
        "MFU": ("relative to matmuls timed in the run", by_world(lambda r: r.mfu), lambda records: {}),
        "communication, copies, waiting": (
            "ms per step",
            by_world(lambda r: _times(1e3, beyond(r))),
            by_world(lambda r: _times(1e3, beyond(r, "prediction"))),
        ),
        "peak memory": (
            "MB per process",
            by_world(lambda r: _times(1e-6, r.measurement.get("peak bytes"))),
            by_world(lambda r: _times(1e-6, r.prediction.get("peak bytes"))),
        ),
    }


def _times(factor, value):
    return None if value is None else factor * value


def plot(runs, path, title):
    """Draw every series to `path` (SVG): what was measured as points joined by lines, what was predicted dotted.
    Panels of figures that no run has are left out. With path None nothing is written. Returns the figure, which a
    notebook shows when it stands at the end of a cell."""
    shown = {
        name: panel for name, panel in panels().items() if any(panel[1](records) for records in series(runs).values())
    }
    rows = -(-len(shown) // 2)
    with picture(path, rows, 2, figsize=(8, 3 * rows)) as (figure, axes):
        for ax, (name, (unit, real, guess)) in zip(axes.flat, shown.items(), strict=False):
            _panel(ax, runs, real, guess)
            ax.set(title=name, ylabel=unit, xlabel="processes")
            ax.set_ylim(bottom=min(0, ax.dataLim.y0))
        for ax in axes.flat[len(shown) :]:
            ax.set_visible(False)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title)
    return figure


def _panel(ax, runs, real, guess):
    for (mode, strategy), records in series(runs).items():
        look = {"color": COLOURS[strategy], "marker": MARKS[mode], "fillstyle": "full" if mode == "strong" else "none"}
        for words, values_of, line in (("measured", real, "-"), ("predicted", guess, ":")):
            values = values_of(records)
            ax.plot(
                list(values),
                list(values.values()),
                linestyle=line,
                label=f"{mode}, {strategy}, {words}",
                **(look if words == "measured" else {"color": look["color"], "linewidth": 1.2}),
            )
    ax.set_xscale("log", base=2)
    ticks = sorted({run.world for run in runs})
    ax.set_xticks(ticks, [str(n) for n in ticks])
