"""Predictions, Records and the table of labs/tensor.py --link: tensor parallelism beside DDP over a slow link.

Standard library only.
"""

import statistics
from dataclasses import asdict

from scaleout.lab.hosts import GOODPUT, burst
from scaleout.lab.text import megabytes, ratio, table
from scaleout.records import Record, provenance, results

NAMES = {"tensor": "tensor parallel", "ddp": "DDP"}


def predicted(found, rate):
    """Seconds of a tensor-parallel step on a link of `rate` bit/s, from what measure.tensor_link found at full speed.

    Every message is exposed, and takes what is longer: what it took at full speed, or its bytes at the link's payload
    rate. What the link lets through at once (`burst`) fills up again while the ranks compute between two messages.
    """
    messages, quiet = found["messages"], found["quiet_seconds"]
    if rate is None:
        return quiet + sum(seconds for _, seconds in messages)
    speed = rate * GOODPUT / 8
    free = min(burst(rate), quiet / len(messages) * rate / 8)
    return quiet + sum(max(seconds, (size - free) / speed) for size, seconds in messages)


def records(tier, o, world, found):
    """A Record of each rate: tensor parallelism's steps, and DDP's on the same batches as a series."""
    facts = found["facts"] | {"commit": provenance.commit(), "command": provenance.command_line(), "nodes": world}
    made = []
    by = {(case["rate"], case["way"]): case for case in found["cases"]}
    for rate in dict.fromkeys(rate for rate, _ in by):
        mine, ddp = by[rate, "tensor"], by[rate, "ddp"]
        limit = f"{rate / 1e6:g} Mbit/s by tbf" if rate else "no limit"
        median = {way: statistics.median(by[rate, way]["step_seconds"]) for way in NAMES}
        facts |= {"interconnect": f"{world} network namespaces on one machine, veth and a bridge, {limit}"}
        made.append(Record(
            stem="tensor", tier=tier, **facts, model=asdict(o.shape),
            recipe={"link Mbit/s": rate and rate / 1e6, "tp": world}, effective_batch=o.micro_batch,
            sequence_length=o.seq, precision="fp32", checkpoint_cadence="none", step_seconds=mine["step_seconds"],
            warmup_steps=0, losses=mine["losses"], peak_memory={},
            tokens_per_second=results.tokens_per_second(mine["step_seconds"], 0, o.micro_batch, o.seq),
            prediction={"seconds a step": predicted(found, rate)},
            measurement={"seconds a step": median["tensor"], "seconds a step, DDP": median["ddp"],
                         "seconds that compute": found["quiet_seconds"],
                         **{f"bytes sent a rank and step, {name}": found["sent_bytes"][way]
                            for way, name in NAMES.items()}},
            series={"seconds a step, DDP": ddp["step_seconds"]}))
    return made


def show(made):
    """The Records of a run as text."""
    rows = []
    for r in made:
        m, wanted = r.measurement, r.prediction["seconds a step"]
        rate = r.recipe["link Mbit/s"]
        rows.append(("unlimited" if rate is None else f"{rate:g} Mbit/s", f"{m['seconds a step'] * 1e3:,.0f}",
                     f"{wanted * 1e3:,.0f}", ratio(wanted, m["seconds a step"]),
                     f"{max(0.0, 1 - m['seconds that compute'] / m['seconds a step']):.0%}",
                     f"{m['seconds a step, DDP'] * 1e3:,.0f}"))
    sent = {name: made[0].measurement[f"bytes sent a rank and step, {name}"] for name in NAMES.values()}
    return table(("link", "tensor parallel, ms", "predicted", "ratio", "in messages", "DDP, ms"), rows) + (
        "\nsent a rank and step: " + ", ".join(f"{name} {megabytes(size)}" for name, size in sent.items()))
