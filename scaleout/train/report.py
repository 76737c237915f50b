"""What the training job prints and draws. Standard library only, but for the plot."""

import statistics
import time

from scaleout.lab.picture import picture
from scaleout.lab.report import verdicts
from scaleout.lab.text import figure, ratio, table

SLOW, STARVED = 5, 0.05  # times the median that makes a step slow; share of its time spent waiting for data


def stalls(metrics, warmup):
    """What a run waited for (list of str): steps far slower than the others, and its input."""
    timed = metrics.steps[warmup:]
    usual = statistics.median(row["seconds"] for row in timed)
    slow = [row for row in timed if row["seconds"] > SLOW * usual]
    lines = []
    if slow:
        worst = max(slow, key=lambda row: row["seconds"])
        lines.append(
            f"{len(slow)} of {len(timed):,} steps took over {SLOW} times the median of {usual * 1e3:,.1f} ms; "
            f"step {worst['step']:,} took {worst['seconds'] * 1e3:,.0f} ms"
        )
    waited = sum(row["wait"] for row in timed) / sum(row["seconds"] for row in timed)
    if waited > STARVED:
        lines.append(f"the steps waited for data {waited:.0%} of their time: the input pipeline is too slow")
    return lines


def closing(r, files):
    """What a run says at its end, from its Record. files: how many were held out to validate on."""
    rows = [
        (
            name,
            *(figure(name, table_[name], ",.1f", ",.0f") for table_ in (r.prediction, r.measurement)),
            ratio(r.prediction[name], r.measurement[name]),
        )
        for name in r.prediction
        if r.measurement[name]
    ]
    blocked, validation = r.series["checkpoint blocked seconds"], r.series["validation nats a byte"][-1]
    lines = [
        "",
        *([table(("one rank", "predicted", "measured", "ratio"), rows), ""] if rows else []),
        f"loss {r.losses[0]:.3f} to {r.losses[-1]:.3f} in {len(r.losses):,} steps, "
        f"{r.tokens_per_second:,.0f} tokens/s; validation loss {validation:.3f} nats per byte on "
        f"{files} held-out file(s)",
        f"MFU {r.mfu:.2f} of {r.mfu_peak['flops_per_second'] / 1e9:,.0f} GFLOP/s: {r.mfu_peak['source']}",
        *(note for note in r.notes if note.startswith("loss scale ")),
        f"data wait {sum(r.series['data wait seconds']) / sum(r.step_seconds):.2%} of the step time",
    ]
    if blocked:
        lines.append(
            f"{len(blocked)} checkpoint(s) blocked training for {sum(blocked):.2f} s in all, "
            f"{sum(blocked) / (sum(r.step_seconds) + sum(blocked)):.2%} of the time"
        )
    return "\n".join([*lines, *verdicts(r.checks, r.skipped, r.stalls, r.failures)])


class Progress:
    """One line a time on rank 0, every `pause` seconds at first and ever less often as the run gets longer."""

    def __init__(self, s, steps, tokens, pause=5.0):
        """tokens: of one step, over all ranks."""
        self.s, self.steps, self.tokens, self.pause = s, steps, tokens, pause
        self.start = self.last = time.perf_counter()

    def show(self, metrics, force=False, saved=""):
        """Print the newest step, if it is time or `force`. saved: the checkpoint there is, and when the next comes."""
        time_now = time.perf_counter()
        pause = max(self.pause, (time_now - self.start) / 15)
        if not metrics.steps or (time_now - self.last < pause and not force):
            return
        self.last = time_now
        recent = metrics.steps[-20:]
        loss = statistics.fmean(row["loss"] for row in recent)
        rate = self.tokens * len(recent) / sum(row["seconds"] for row in recent)
        remaining = (self.steps - recent[-1]["step"]) * statistics.median(row["seconds"] for row in recent)
        self.s.say(
            f"step {recent[-1]['step']:>6,} of {self.steps:,}  loss {loss:.3f}  {rate:,.0f} tokens/s  "
            f"{remaining:,.0f} s to go{'; ' if saved else ''}{saved}"
        )


def plot(metrics, path, title):
    """Draw loss and validation over steps, and beneath them seconds per step and the wait for data, to `path` (SVG)."""
    with picture(path, 2, figsize=(7, 5.5), sharex=True, height_ratios=(2, 1)) as (_, (top, bottom)):
        steps = metrics.column("step")
        top.plot(steps, metrics.column("loss"), color="C0", linewidth=0.8, alpha=0.6, label="training")
        top.plot(
            [row["step"] for row in metrics.validations],
            [row["validation"] for row in metrics.validations],
            color="C1",
            marker="o",
            label="validation",
        )
        top.set(ylabel="loss, nats per byte", title=title)
        bottom.plot(steps, [1e3 * x for x in metrics.column("seconds")], color="C0", linewidth=0.8, label="step")
        bottom.plot(steps, [1e3 * x for x in metrics.column("wait")], color="C1", linewidth=0.8, label="wait for data")
        bottom.set(ylabel="ms", xlabel="step", ylim=(0, None))
        for axes in (top, bottom):
            axes.legend()


def readable(sample):
    """Bytes that a model wrote, as text to print: what is no UTF-8 becomes a mark."""
    return sample.decode("utf-8", "replace").replace("\0", "\N{SYMBOL FOR NULL}")
