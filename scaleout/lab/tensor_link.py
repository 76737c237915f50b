"""Predictions, Records and the table of labs/tensor.py --link: tensor parallelism and DDP over a slow link.

Standard library only.
"""

import statistics

from scaleout.lab import nodes
from scaleout.lab.hosts import GOODPUT, burst
from scaleout.lab.slow_link import BUSY
from scaleout.lab.text import megabytes, ms, ratio, table

NAMES = {"tensor": "tensor parallel", "ddp": "DDP"}
SERIES = "seconds per step, DDP"


def predicted(figures, rate):
    """Seconds of a tensor-parallel step on a link of `rate` bit/s, from what measure.tensor_link found at full speed.

    Every message is exposed, and takes what is longer: what it took at full speed, or its bytes at the link's payload
    rate. What the link lets through at once (`burst`) fills up again while the ranks compute between two messages.
    """
    messages, quiet = figures["messages"], figures["quiet_seconds"]
    if rate is None:
        return quiet + sum(seconds for _, seconds in messages)
    speed = rate * GOODPUT / 8
    free = min(burst(rate), quiet / len(messages) * rate / 8)
    return quiet + sum(max(seconds, (size - free) / speed) for size, seconds in messages)


def records(tier, plan, world, figures):
    """A Record of each rate: tensor parallelism's steps, and DDP's on the same batches as a series. plan: what the
    ranks were asked to do."""
    quiet = figures["quiet_seconds"]
    sent = {f"bytes a rank sends, {NAMES[way]}": size for way, size in figures["sent_bytes"].items()}
    records_ = []
    cases = {(case["rate"], case["way"]): case for case in figures["cases"]}
    for rate in dict.fromkeys(rate for rate, _ in cases):
        mine, ddp = cases[rate, "tensor"], cases[rate, "ddp"]
        seconds, middle = predicted(figures, rate), statistics.median(mine["step_seconds"])
        records_.append(
            nodes.record(
                "tensor",
                tier,
                figures["facts"],
                world,
                nodes.limited(rate),
                plan["micro_batch"],
                plan["seq"],
                mine,
                model=plan["model"],
                recipe={"link Mbit/s": rate and rate / 1e6, "tp": world} | sent,
                prediction={"seconds per step": seconds, "share of the step that computes": quiet / seconds},
                measurement={"seconds per step": middle, "share of the step that computes": quiet / middle},
                series={SERIES: ddp["step_seconds"]},
            )
        )
    return records_


def show(records):
    """The Records of a run as text."""
    rows = []
    for r in records:
        p, m, rate = r.prediction, r.measurement, r.recipe["link Mbit/s"]
        rows.append(
            (
                "unlimited" if rate is None else f"{rate:g} Mbit/s",
                ms(m["seconds per step"]),
                ms(p["seconds per step"]),
                ratio(p["seconds per step"], m["seconds per step"]),
                f"{m['share of the step that computes']:.0%}",
                ms(statistics.median(r.series[SERIES])),
            )
        )
    sent = ", ".join(f"{name} {megabytes(records[0].recipe[f'bytes a rank sends, {name}'])}" for name in NAMES.values())
    busy = any(r.measurement["share of the step that computes"] > 1 for r in records)
    return table(("link", "tensor parallel, ms", "predicted", "ratio", "computes", "DDP, ms"), rows) + (
        f"\nsent per rank and step: {sent}{BUSY * busy}"
    )
