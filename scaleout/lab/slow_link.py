"""Predictions and the table of labs/slow_link.py: DDP's step on a link of any rate, from a calibration at full speed.

Standard library only.
"""

import statistics

from scaleout.collectives.alpha_beta import cost
from scaleout.lab.hosts import GOODPUT, burst
from scaleout.lab.text import ratio, table
from scaleout.spec.topology import Wire
from scaleout.timing import ddp, profile

COMPRESSION = {"none": 1.0, "bf16": 2.0}
BUSY = "\nOver 100%: the machine was busier during calibration than in that case."


class Model:
    """DDP's step as `scaleout.timing.ddp` has it, from what measure.slow_link.Worker found at full speed (a dict)."""

    def __init__(self, figures, hosts, plan):
        self.found, self.hosts, self.plan = figures, hosts, plan
        self.layers = [ddp.Layer(*row) for row in figures["layers"]]
        self.gradient_bytes = sum(layer.gradient_bytes for layer in self.layers)
        self.compression = COMPRESSION | {"powersgd": figures["powersgd_compression"] or 1.0}

    def fast(self, size):
        """Seconds of an all-reduce at full speed, as measured: cores, not links, limit it there."""
        return profile.line_seconds(self.found["all_reduce"], size)

    def wire(self, rate, latency, compression):
        """A function from a message's bytes to the seconds of its ring all-reduce on links of `rate` bit/s.

        Payload is GOODPUT of the rate. What a step sends beyond the link's burst goes at the rate; the burst is full
        again when the next step sends, and is spread over the step's bytes here. Each of the ring's 2 (p - 1) steps
        takes its share of the alpha measured at full speed, and the latency.
        """
        steps = 2 * (self.hosts - 1)
        alpha = self.found["all_reduce"]["alpha_seconds"] / steps + latency
        if rate is None:
            return lambda size: self.fast(size) + steps * latency
        link = Wire(alpha, rate * GOODPUT / 8)
        sent = cost("all_reduce", "ring", self.gradient_bytes / compression, self.hosts, link).sent_bytes
        slow = max(0.0, 1 - burst(rate) / sent)

        def seconds(size):
            full = cost("all_reduce", "ring", size, self.hosts, link).seconds
            return steps * alpha + (full - steps * alpha) * slow

        return seconds

    def hook_seconds(self, hook):
        """What a hook adds to a step at full speed (at least 0): rounding, matrices, more messages."""
        full = {name: statistics.median(spent) for name, spent in self.found["full_seconds"].items()}
        return max(0.0, full[hook] - full["none"])

    def step(self, case, latency=0.0):
        """(seconds, exposed seconds) of a step of a case (dict: rate, hook, accumulation, sequences).

        An all-reduce takes what is longer, the link or the cores; beside compute the cores give it a share only, and
        compute loses as much of its speed as the all-reduce keeps them busy. Compute is taken to grow with the batch.
        """
        compression = self.compression[case["hook"]]
        wire, share = self.wire(case["rate"], latency, compression), self.found["kept"]
        size = min(self.gradient_bytes, self.plan["bucket_mb"] * 2**20) / compression  # of a usual message
        alone = max(wire(size), self.fast(size))
        contended = max(wire(size), self.fast(size) / share)
        scale = case["sequences"] / self.plan["micro_batch"]
        layers = [
            ddp.Layer(x.name, x.forward_seconds * scale, x.backward_seconds * scale, x.gradient_bytes)
            for x in self.layers
        ]
        timeline = ddp.ddp_step(
            layers,
            lambda n: max(wire(n), self.fast(n) / share),
            cap_bytes=self.plan["bucket_mb"] * 2**20,
            first_cap_bytes=self.plan["bucket_mb"] * 2**20,
            accumulation=case["accumulation"],
            compression=compression,
            contention=self.found["lost"] * min(1.0, self.fast(size) / share / contended),
            update_seconds=self.found["update_seconds"] + self.found["rest_seconds"] * case["accumulation"],
        )
        exposed = timeline.exposed_seconds * alone / contended
        extra = 0.0 if case["hook"] == "none" else self.hook_seconds(case["hook"])
        return timeline.seconds - timeline.exposed_seconds + exposed + extra, exposed

    def quiet(self, case):
        """Seconds of the same step with nothing sent: compute and update alone."""
        scale = case["sequences"] / self.plan["micro_batch"] * case["accumulation"]
        micro_batch = sum(x.forward_seconds + x.backward_seconds for x in self.layers) + self.found["rest_seconds"]
        return micro_batch * scale + self.found["update_seconds"]


# --- the table -------------------------------------------------------------------------------------------


def words(recipe):
    """What a case is called: "200 Mbit/s, bf16"."""
    rate = recipe["link Mbit/s"]
    parts = ["unlimited" if rate is None else f"{rate:g} Mbit/s"]
    if recipe["accumulation"] > 1:
        parts.append(f"{recipe['accumulation']} passes with no_sync")
    if recipe["hook"] != "none":
        parts.append({"bf16": "bf16 gradients", "powersgd": f"PowerSGD of rank {recipe['hook_rank']}"}[recipe["hook"]])
    if recipe["batch factor"] > 1:
        parts.append(f"batch x {recipe['batch factor']}")
    return ", ".join(parts)


def show(records):
    """The Records of a run as text: median step time, tokens per second, and the share of the step that computes."""
    rows = []
    for r in records:
        p, m = r.prediction, r.measurement
        rows.append(
            (
                words(r.recipe),
                f"{m['seconds per step'] * 1e3:,.0f}",
                f"{p['seconds per step'] * 1e3:,.0f}",
                ratio(p["seconds per step"], m["seconds per step"]),
                f"{r.rate:,.0f}",
                f"{m['share of the step that computes']:.0%}",
            )
        )
    busy = any(r.measurement["share of the step that computes"] > 1 for r in records)
    return table(("link", "ms per step", "predicted", "ratio", "tokens/s", "compute share"), rows) + BUSY * busy
