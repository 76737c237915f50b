"""What the reader of the view `planner` chose, and what the search finds for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from scaleout.draw import svg
from scaleout.spec import hugging_face
from scaleout.spec.hardware import DEVICES
from scaleout.spec.topology import Cluster, cluster
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing.ddp_seconds import utilization
from scaleout.timing.mesh import BAND
from scaleout.timing.mesh_search import ALIKE, Found, Job, Plan, cut, plans
from scaleout.views.choices import NAMES, NODE

MOST = 2**14  # GPUs
# How many GPUs, and how many sequences: up to a node each, from there on 1, 3, 5, 7 and 9 doubled again and again.
DOUBLED = tuple(sorted(odd * 2**k for odd in (1, 3, 5, 7, 9) for k in range(1, 15) if NODE < odd * 2**k <= MOST))
GPUS = (1, 2, 3, 4, 6, NODE, *(n for n in DOUBLED if n % NODE == 0))

# Between nodes, by name: (link, adapters of a node, words).
NETWORKS = {
    "ndr": ("ib-ndr", NODE, "400 Gbit/s each"),
    "hdr": ("ib-hdr", NODE, "200 Gbit/s each"),
    "100g": ("ethernet-100g", NODE, "100 Gbit/s each"),
    "shared": ("ib-ndr", 1, "400 Gbit/s a node"),
}

# What makes a layout slower than the best, by what its step has most more of (`Plan.lost`); the others of PARTS are
# "rest". `alike` is what the band does not tell from the best, `over` what does not fit.
LOSSES = {
    "bubble": ("bubble", "imbalance", "hops"),
    "link": ("exposed tensor", "exposed context", "exposed data"),
    "recompute": ("recompute",),
}
KINDS = ("alike", "link", "bubble", "recompute", "rest", "over")


class Cuts(NamedTuple):
    """A layout as the reader picks it."""

    tp: int
    pp: int
    cp: int
    zero: int
    recompute: str


class Question(NamedTuple):
    """A model on a cluster. change: of what there is, see `altered`. gpus: above a node of 8 in whole nodes."""

    model: str
    device: str
    gpus: int
    sequences: int
    seq: int
    network: str
    change: str = ""
    loss: str = "eager"

    @property
    def shape(self) -> Shape:
        """`model` is the name of a preset, or a config.json."""
        return hugging_face.shape(self.model) if self.model.startswith("{") else PRESETS[self.model]

    @property
    def name(self) -> str:
        """The model, in words."""
        if self.model.startswith("{"):
            size = total_parameters(self.shape)
            one, letter = next(pair for pair in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if size >= pair[0])
            return f"{hugging_face.read(self.model)['model_type']} of {svg.quantity(size / one)}{letter}"
        return NAMES[self.model]


def cuts_of(plan: Plan) -> Cuts:
    """What of a plan the reader picks; where nothing is replicated ZeRO splits nothing."""
    at = plan.layout
    return Cuts(at.tp, at.pp, at.cp, max(1, at.zero), plan.recipe.checkpointing)


@lru_cache(maxsize=256)
def job_of(question: Question) -> Job:
    """The job; sequences are at most as long as a model with learned positions has any."""
    _, device, gpus, sequences, seq, network, change, loss = question
    shape, link = question.shape, NETWORKS[network]
    seq = min(seq, shape.max_seq) if shape.positions == "learned" else seq
    card = DEVICES[device]
    nodes = cluster(max(1, gpus // NODE), min(gpus, NODE), card.link, link[0], link[1])
    job = Job(shape, seq, sequences, card, nodes)
    return altered(replace(job, recipe=replace(job.recipe, loss=loss)), change)


def altered(job: Job, change: str) -> Job:
    """The same job where one thing is otherwise."""
    nodes = job.cluster
    if change in ("network half as fast", "network twice as fast"):
        return replace(job, cluster=replace(nodes, across=_times(nodes.across, 0.5 if "half" in change else 2.0)))
    if change == "links in a node half as fast":
        return replace(job, cluster=replace(nodes, inside=_times(nodes.inside, 0.5)))
    if change == "sequences twice as long":
        return replace(job, seq=2 * job.seq, sequences=job.sequences // 2)
    if change == "a card of 141 GB":
        return replace(job, device=replace(job.device, memory_bytes=DEVICES["h200"].memory_bytes))
    if change == "nodes of 64 GPUs":
        wide = Cluster(max(1, nodes.ranks // 64), min(64, nodes.ranks), nodes.inside, nodes.across, 64)
        return replace(job, cluster=wide)
    return job


def _times(wire, factor: float):
    return replace(wire, bytes_per_s=factor * wire.bytes_per_s)


@lru_cache(maxsize=24)
def search(question: Question) -> Found:
    """Every layout; the last questions are remembered."""
    return plans(job_of(question))


_BEST: dict[Question, Plan | None] = {}
KEPT = 512


def best_of(question: Question) -> Plan | None:
    """The best layout, or None where none fits: all that is kept of a question asked beside others."""
    if question not in _BEST:
        if len(_BEST) >= KEPT:
            _BEST.clear()
        _BEST[question] = plans(job_of(question)).best
    return _BEST[question]


def ask_one(questions: list[Question]) -> bool:
    """Answer the first of these that is not known yet; whether there are others."""
    new = [one for one in questions if one not in _BEST]
    if new:
        best_of(new[0])
    return len(new) > 1


@lru_cache(maxsize=512)
def picked(question: Question, cuts: Cuts) -> Plan | str:
    """The plan of the reader's own cuts, or in one line why they cannot be."""
    job = job_of(question)
    zero = cuts.zero if job.cluster.ranks > cuts.tp * cuts.pp else 0  # of one replica ZeRO splits nothing
    try:
        return cut(job, cuts.tp, cuts.cp, cuts.pp, zero, cuts.recompute)
    except ValueError as error:
        return str(error)


@dataclass(frozen=True)
class Setting:
    """A question and the reader's own layout."""

    question: Question
    cuts: Cuts

    @cached_property
    def job(self) -> Job:
        return job_of(self.question)

    @cached_property
    def found(self) -> Found:
        return search(self.question)

    @cached_property
    def best(self) -> Plan | None:
        return self.found.best

    @cached_property
    def smallest(self) -> Plan | None:
        return self.found.over[0] if self.found.over else None

    @cached_property
    def shown(self) -> Plan | None:
        """The layout that the page speaks of: the best, or where none fits the smallest."""
        return self.best or self.smallest

    @cached_property
    def yours(self) -> Plan | str:
        return picked(self.question, self.cuts)

    @cached_property
    def every(self) -> tuple[Plan, ...]:
        return self.found.plans + self.found.over

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layout of `every`."""
        return _kinds(self.question)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Layouts of each kind."""
        return {kind: self.kinds.count(kind) for kind in KINDS}

    def kind(self, plan: Plan) -> str:
        """Why a layout is not the best: one of KINDS."""
        if not plan.fits:
            return "over"
        if plan.seconds <= (1 + BAND) * self.best.seconds:
            return "alike"
        part = plan.lost(self.best)
        return next((kind for kind, parts in LOSSES.items() if part in parts), "rest")

    def reason(self, plan: Plan) -> str:
        """Why it loses, in words."""
        if not plan.fits:
            return self.found.reason(plan)
        if plan is self.best:
            return "the best"
        if plan.seconds <= (1 + ALIKE) * self.best.seconds:
            return "as fast as the best"
        near = f"within {100 * BAND:.0f}%, " if plan.seconds <= (1 + BAND) * self.best.seconds else ""
        return near + plan.loses_by(self.best)

    def mfu(self, plan: Plan) -> float:
        """Model FLOPs by seconds and the peak of all GPUs."""
        job = self.job
        work = flops(job.shape, job.sequences, job.seq)
        peak = job.device.matmul_flop_per_s(job.device.half) * job.cluster.ranks
        return utilization(work["forward"] + work["backward"], plan.seconds, peak)

    def rate(self, plan: Plan) -> float:
        """Tokens a second of the whole cluster."""
        return self.job.sequences * self.job.seq / plan.seconds

    def asking(self, **changed) -> Setting:
        """The same with another question."""
        return replace(self, question=self.question._replace(**changed))


ALONE = Cuts(1, 1, 1, 3, "none")  # FSDP and nothing else


@lru_cache(maxsize=8)
def _kinds(question: Question) -> tuple[str, ...]:
    setting = Setting(question, ALONE)
    return tuple(setting.kind(plan) for plan in setting.every)


@lru_cache(maxsize=32)
def _setting(question: Question, cuts: Cuts) -> Setting:
    return Setting(question, cuts)


def setting_of(params: dict) -> Setting:
    """From clean parameters of the view."""
    one = {name: params[name] for name in Question._fields if name in params}
    one["model"] = params["config"] or one["model"]
    return _setting(Question(**one), Cuts(*(params[name] for name in Cuts._fields)))
