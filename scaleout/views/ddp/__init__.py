"""One step of data parallelism: what computes, what is communicated meanwhile, what stays exposed, and how many tokens
would hide it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import ceil, fsum, inf, nextafter
from typing import cast

from scaleout.collectives import nccl
from scaleout.memory.states import states
from scaleout.spec import topology
from scaleout.spec.hardware import COMPUTE_SHARE
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas, powersgd_ratio
from scaleout.timing.ddp import MIB, Timeline
from scaleout.timing.job import Step, step
from scaleout.views import base, guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.choices import LINKS, NAMES, cards, programs
from scaleout.views.controls import stops
from scaleout.views.ddp import levers, picture, record, words
from scaleout.views.lever import Lever

TITLE = "One step of data parallelism"

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-2-13b")
TOKENS = 2048  # a sequence, or fewer where the model has fewer positions

MOMENTS = 24  # that a step is played in

COMPRESSION = (("none", "none (fp32)"), ("bf16", "bf16: half"), ("powersgd", "PowerSGD, rank 4"))

CONTROLS = (
    guess("Sixteen A100s, joined by 100 Gbit/s Ethernet, train GPT-2 XL, each on 16 sequences of 1,024 tokens. What "
          "share of a step is **exposed communication**, which no compute hides?", "exposed_percent", "%", lo=0, hi=100,
          step=1),
    play("moment", "Time", MOMENTS, 0, MOMENTS),
    slider("batch", "Micro-batch: sequences per GPU", 16, 1, 64, log=True),
    select("link", "Connected by", "ethernet-100g", [(key, words) for key, (*_, words) in LINKS.items()]),
    select("compression", "Compression of gradients", "none", COMPRESSION),
    slider("ranks", "GPUs (ranks)", 16, 1, 512, log=True),
    *more(
        select("model", "Model", "gpt2-xl", [(key, NAMES[key]) for key in MODELS]),
        select("device", "GPU", "a100-80gb", cards()),
        slider("bucket", "Bucket size", 25, 1, 10_000, unit="MiB", log=True,
               help="DDP's bucket_cap_mb. At its default, 25, the first bucket holds 1 MiB."),
        select("program", "Program", "compiled", programs("compiled", "eager"),
               help="Step time and MFU count its kernels, its kernel launches and its optimizer."),
        slider("accumulation", "Accumulation steps", 1, 1, 16),
        toggle("overlap", "Overlap with backward", True),
        toggle("no_sync", "no_sync: communicate once per step", True),
    ),
)  # fmt: skip

SIZES, PASSES = (next(control for control in CONTROLS if control.name == name) for name in ("bucket", "accumulation"))


@dataclass(frozen=True)
class Setting(base.ModelSetting, remembered=128):
    """What a reader chose. Everything but `link` and `ranks` decides what computes when; those two decide the wire."""

    program: str
    batch: int
    bucket: int
    accumulation: int
    compression: str
    overlap: bool
    no_sync: bool
    link: str
    ranks: int

    @property
    def seq(self) -> int:
        """Tokens per sequence."""
        return self.shape.tokens(TOKENS)

    @property
    def ratio(self) -> float:
        """How many times smaller the messages are than fp32 gradients."""
        return {"none": 1.0, "bf16": 2.0}.get(self.compression) or powersgd_ratio(self.shape)

    @cached_property
    def cluster(self) -> topology.Cluster:
        """Ranks fill as few nodes as hold them, evenly; where that does not come out even the last is priced as
        full."""
        node_gpus, node_link, adapters, rdma, _ = LINKS[self.link]
        nodes = ceil(self.ranks / node_gpus)
        device_link = self.card.link
        return topology.cluster(nodes, ceil(self.ranks / nodes), device_link, node_link, adapters, rdma)

    @cached_property
    def job(self) -> Job:
        sending = Replicas(
            None if self.bucket == SIZES.default else self.bucket * MIB, not self.no_sync, self.overlap, self.ratio
        )
        return Job(
            self.shape,
            self.seq,
            self.card,
            self.cluster,
            self.batch,
            Layout(dp=self.cluster.ranks, micro_batches=self.accumulation),
            Recipe(buckets="beside" if self.ranks > 1 else "none"),
            PROGRAMS[self.program],
            sending,
        )

    @cached_property
    def step(self) -> Step:
        return step(self.job)

    @property
    def timeline(self) -> Timeline:
        """Of the step: replicas of whole models have all of it."""
        return cast("Timeline", self.step.timeline)

    @cached_property
    def alone(self) -> Step:
        """The same step on one rank, which has nothing to exchange."""
        fixed = {"link": "ib", "ranks": 1, "bucket": SIZES.default, "compression": "none", "overlap": True}
        return step(self.other(**fixed, no_sync=True).job)

    @property
    def efficiency(self) -> float:
        return self.alone.seconds / self.step.seconds


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The step up to the moment shown, with the exposed part in the sentence."""
    setting = Setting.of(params)
    result = _result(setting)
    values = {**result["values"], **_seen(setting, params["moment"] / MOMENTS)}
    return {**result, "svg": picture.picture(setting, setting.timeline, values, width, run), "values": values}


def _seen(setting: Setting, part: float) -> dict:
    """What has happened when so much of the step is over."""
    timeline = setting.timeline
    seconds = part * timeline.seconds
    return {"moment_seconds": seconds, "pile_gb": timeline.waiting([seconds])[0] / 1e9}


@kept  # for both widths, and each moment
def _result(setting: Setting) -> dict:
    """What is the same at every width and moment."""
    states_bytes = sum(states(setting.shape, setting.job.recipe, Layout()).values())
    values = {
        **_values(setting, setting.step),
        "states_gb": states_bytes / 1e9,
        "usable_gb": setting.usable / 1e9,
        "states_fit": states_bytes <= setting.usable,
    }
    return {
        "sentence": words.sentence(setting, values),
        "values": values,
        "law": words.law(setting, values),
        "levers": _levers(setting, values),
    }


def advice(params: dict) -> str:
    """The lever worth trying now; "" where nothing is exchanged, or the states are too large for one GPU."""
    setting = Setting.of(params)
    values = _result(setting)["values"]
    return words.advice(lever(setting), values["efficiency"]) if setting.ranks > 1 and values["states_fit"] else ""


def _levers(setting: Setting, values: dict) -> dict:
    """Controls that change nothing now, and why."""
    if setting.ranks == 1:
        return {name: {"off": "One GPU has nothing to send."} for name in ("link", "overlap", "no_sync")}
    notes = {}
    if setting.accumulation == 1:
        notes["no_sync"] = {"off": "There is only one micro-batch per step."}
    if values["buckets"] == 1:
        notes["overlap"] = {"off": "A single bucket is complete only when the backward is."}
    return notes


def _values(setting: Setting, timed: Step) -> dict:
    timeline, alone = setting.timeline, setting.alone
    efficiency = alone.seconds / timed.seconds
    return {
        "step_seconds": timed.seconds,
        "alone_seconds": alone.seconds,
        "compute_seconds": timeline.compute_seconds,
        "communication_seconds": timeline.communication_seconds,
        "start_seconds": (starts := _starts(setting, timeline)),
        "byte_seconds": timeline.communication_seconds - starts,
        "exposed_seconds": timeline.exposed_seconds,
        "slowed_seconds": timeline.slowed_seconds,
        "last_message_seconds": _last(timeline),
        "update_seconds": timeline.update_seconds,
        "other_seconds": timeline.other_seconds,
        "straggler_seconds": timed.parts["stragglers"],
        "exposed_percent": 100 * timeline.exposed_seconds / timed.seconds,
        "overlap_fraction": timeline.overlap_fraction,
        "efficiency": efficiency,
        "speed_up": efficiency * setting.ranks,
        "buckets": len(timeline.buckets),
        "message_gb": fsum(timeline.message_bytes) / 1e9,
        "compression_ratio": setting.ratio,
        "tokens_per_second": setting.batch * setting.seq * setting.accumulation * setting.ranks / timed.seconds,
        "mfu": timed.mfu,
        "tokens_per_gpu": setting.batch * setting.seq,
        "tokens_needed": _needed(setting, timeline),
        "tokens_by_rule": _by_rule(setting, timeline),
        "pile_most_gb": max(timeline.waiting(_full(timeline))) / 1e9,
    }


def _starts(setting: Setting, timeline: Timeline) -> float:
    """Seconds of the communication that do not depend on its size: latency. The rest is bytes."""
    if setting.ranks == 1:
        return 0.0
    talking = sum(1 for entry in timeline.passes if entry.messages)
    count = Counter(timeline.message_bytes)
    return talking * fsum(
        n * nccl.price("all_reduce", size, setting.cluster).cost.latency_seconds for size, n in count.items()
    )


def _last(timeline: Timeline) -> float:
    """Seconds of the last bucket's all-reduce, which starts when nothing is left to compute; 0 for one rank."""
    start, end = timeline.passes[-1].messages[-1]
    return end - start


def _full(timeline: Timeline) -> list[float]:
    """Seconds at which most may wait: when a bucket is complete."""
    last = timeline.passes[-1]
    return [nextafter(last.start + offset, inf) for offset in timeline.ready] or [0.0]  # never before it, by rounding


def _needed(setting: Setting, timeline: Timeline) -> float:
    """Tokens per GPU and pass whose backward, slowed by communication, takes as long as the communication."""
    last, alone = timeline.passes[-1], cast("Timeline", setting.alone.timeline).passes[-1]
    sent = fsum(end - start for start, end in last.messages)
    backward = (alone.compute_seconds - alone.forward[-1][1]) / (1 - PROGRAMS[setting.program].contention)
    return setting.batch * setting.seq * sent / backward


def _by_rule(setting: Setting, timeline: Timeline) -> float:
    """The same by the rule of thumb: 4NT operations at COMPUTE_SHARE of the peak."""
    job, last = setting.job, timeline.passes[-1]
    sent = fsum(end - start for start, end in last.messages)
    return sent * COMPUTE_SHARE * job.peak_flop_per_s / (4 * job.rank_parameters())


def lever(setting: Setting) -> Lever | None:
    """The lever worth trying now, on the values of the controls; None where none adds WORTH."""
    sizes, link_words = [int(size) for size in stops(SIZES)], {key: words for key, (*_, words) in LINKS.items()}
    return levers.advice(setting, sizes, int(PASSES.hi), link_words)


measured = record.measured


def locked(params: dict, width: int) -> str:
    """What computes, and the axes: neither a message nor a curve."""
    setting = Setting.of(params)
    return picture.locked(setting, setting.timeline, setting.alone.seconds, width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Shares that likely mistakes give, of the opening setting."""
    return words.slips(_result(Setting.of(params))["values"])
