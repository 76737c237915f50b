"""The choices of the reader of the view `planner`, and what the search finds for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from scaleout.memory.allocator import usable
from scaleout.spec import frameworks
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import Cluster, cluster
from scaleout.spec.transformer import Shape, check_priced
from scaleout.timing.plan import Plan
from scaleout.timing.search import Ranking, cut
from scaleout.timing.search import search as searched
from scaleout.views import base
from scaleout.views.choices import NODE, name_of, shape_of

MOST_GPUS = 2**14  # GPUs
# How many GPUs, and how many sequences: up to a node each, from there on 1, 3, 5, 7 and 9 doubled again and again.
DOUBLED = tuple(sorted(odd * 2**k for odd in (1, 3, 5, 7, 9) for k in range(1, 15) if NODE < odd * 2**k <= MOST_GPUS))
GPUS = (1, 2, 3, 4, 6, NODE, *(n for n in DOUBLED if n % NODE == 0))

# Between nodes, by name: (link, adapters of a node, words).
NETWORKS = {
    "ndr": ("ib-ndr", NODE, "400 Gbit/s each"),
    "hdr": ("ib-hdr", NODE, "200 Gbit/s each"),
    "100g": ("ethernet-100g", NODE, "100 Gbit/s each"),
    "shared": ("ib-ndr", 1, "400 Gbit/s per node"),
}

# Programs on offer, in a word.
RUNS = {"megatron": "Megatron-LM", "compiled": "torch.compile", "eager": "eager torch", "huggingface": "Hugging Face"}

# What makes a layout slower than the best, by what its step has most more of (`Plan.lost`); the others of PARTS are
# "rest". `alike` is what the band does not tell from the fastest, `over` what does not fit.
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
    program: str = "megatron"

    @property
    def shape(self) -> Shape:
        """`model` is the name of a model, or a config.json."""
        return shape_of(self.model)

    @property
    def name(self) -> str:
        """The model, in words."""
        return name_of(self.model)


class Ask(NamedTuple):
    """What a question asks of `timing.search`."""

    job: Job
    sequences: int


def cuts_of(plan: Plan) -> Cuts:
    """What of a plan the reader picks."""
    layout = plan.layout
    return Cuts(layout.tp, layout.pp, layout.cp, layout.zero, plan.checkpointing)


@lru_cache(maxsize=256)
def job_of(question: Question) -> Ask:
    """The job, of any layout; sequences are at most as long as a model with learned positions has any."""
    _, device, gpus, sequences, seq, network, change, loss, program = question
    shape, link = question.shape, NETWORKS[network]
    seq = min(seq, shape.max_seq) if shape.positions == "learned" else seq
    card = DEVICES[device]
    nodes = cluster(max(1, gpus // NODE), min(gpus, NODE), card.link, link[0], link[1])
    recipe = Recipe("bf16-master", main_gradients="instead", loss=loss)
    layout, runs = Layout(dp=gpus), PROGRAMS[program]
    recipe, context = frameworks.trained(runs, layout, recipe), frameworks.RUNS[program].context
    job = Job(shape, seq, card, nodes, 1, layout, recipe, runs, context=context)
    return altered(Ask(job, sequences), change)


def altered(ask: Ask, change: str) -> Ask:
    """The job and its sequences after one change."""
    job, sequences = ask
    nodes = job.cluster
    if change in ("network half as fast", "network twice as fast"):
        nodes = replace(nodes, across=_times(nodes.across, 0.5 if "half" in change else 2.0))
    if change == "links in a node half as fast":
        nodes = replace(nodes, inside=_times(nodes.inside, 0.5))
    if change == "nodes of 64 GPUs":
        nodes = Cluster(max(1, nodes.ranks // 64), min(64, nodes.ranks), nodes.inside, nodes.across, 64)
    if change == "sequences twice as long":
        return Ask(replace(job, seq=2 * job.seq), sequences // 2)
    if change == "a GPU of 141 GB":
        job = replace(job, device=replace(job.device, memory_bytes=DEVICES["h200"].memory_bytes))
    return Ask(replace(job, cluster=nodes), sequences)


def _times(wire, factor: float):
    return replace(wire, bytes_per_s=factor * wire.bytes_per_s)


@lru_cache(maxsize=24)
def search(question: Question) -> Ranking:
    """Every layout; the last questions are remembered."""
    return searched(*job_of(question))


class Answer(NamedTuple):
    """All that is kept of a question asked beside others: the best layout, or None where none fits, and the seconds up
    to which a layout is equal to the fastest."""

    best: Plan | None
    limit: float


_ANSWERS: dict[Question, Answer] = {}
MOST_ANSWERS = 512


def answer(question: Question) -> Answer:
    if question not in _ANSWERS:
        if len(_ANSWERS) >= MOST_ANSWERS:
            _ANSWERS.clear()
        result = searched(*job_of(question))
        _ANSWERS[question] = Answer(result.best, result.limit)
    return _ANSWERS[question]


def best_of(question: Question) -> Plan | None:
    """The best layout, or None where none fits."""
    return answer(question).best


def ask_one(questions: list[Question]) -> bool:
    """Answer the first of these that is not known yet; whether there are others."""
    new = [question for question in questions if question not in _ANSWERS]
    if new:
        answer(new[0])
    return len(new) > 1


@lru_cache(maxsize=512)
def picked(question: Question, cuts: Cuts, chunks: int = 0) -> Plan | str:
    """The plan of the reader's own cuts, or in one line why they cannot be. chunks: as `cut` takes them."""
    job, sequences = job_of(question)
    zero = cuts.zero if job.cluster.ranks > cuts.tp * cuts.pp else 0  # of one replica ZeRO splits nothing
    try:
        return cut(
            job, sequences, tp=cuts.tp, cp=cuts.cp, pp=cuts.pp, zero=zero, checkpointing=cuts.recompute, chunks=chunks
        )
    except ValueError as error:
        return str(error)


def kept(question: Question, plan: Plan) -> Plan | str:
    """A plan's layout under another question, with as many chunks: else what more chunks gain would be taken for what
    the question changes."""
    return picked(question, cuts_of(plan), plan.layout.chunks)


ALONE = Cuts(1, 1, 1, 3, "none")  # FSDP and nothing else


@dataclass(frozen=True)
class Setting(base.Setting, remembered=32):
    """A question and the reader's own layout."""

    question: Question
    cuts: Cuts

    @classmethod
    def of(cls, params: dict) -> Setting:
        """A config.json that is pasted is the model."""
        values = params | {"model": params["config"] or params["model"]}
        question = Question(**{name: values[name] for name in Question._fields if name in values})
        return super().of({"question": question, "cuts": Cuts(*(params[name] for name in Cuts._fields))})

    @property
    def standing(self) -> Setting:
        """The setting of all those whose question is this one's, whatever the reader's own layout is."""
        return self.other(cuts=ALONE)

    @cached_property
    def job(self) -> Job:
        """What is trained, with no layout of its own."""
        return job_of(self.question).job

    @cached_property
    def sequences(self) -> int:
        return job_of(self.question).sequences

    @cached_property
    def refusal(self) -> str:
        """Why the program's framework cannot run this whatever the layout, or it is not priced, or ""."""
        try:
            check_priced(self.job.shape, frameworks.operations(self.job.program))
        except ValueError as error:
            return str(error)
        return frameworks.refusal(self.job)

    @cached_property
    def usable(self) -> int:
        """Bytes that tensors may take on a GPU."""
        return usable(self.job.device.memory_bytes)

    @cached_property
    def result(self) -> Ranking:
        return search(self.question)

    @cached_property
    def best(self) -> Plan | None:
        return self.result.best

    @cached_property
    def smallest(self) -> Plan | None:
        return self.result.over[0] if self.result.over else None

    @cached_property
    def shown(self) -> Plan | None:
        """The layout that the page speaks of: the best, or where none fits the smallest."""
        return self.best or self.smallest

    @cached_property
    def yours(self) -> Plan | str:
        """The reader's own; the best where it is cut so, with as few chunks as that has."""
        plan = picked(self.question, self.cuts)
        if isinstance(plan, Plan) and self.best and cuts_of(plan) == cuts_of(self.best):
            return self.best
        return plan

    @property
    def percent(self) -> str:
        """The band around what is predicted."""
        return f"{100 * self.result.band.share:.0f}%"

    @property
    def program(self) -> str:
        return RUNS[self.question.program]

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        return self.result.plans + self.result.over

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layout of `plans`."""
        return tuple(self.kind(plan) for plan in self.plans) if self.cuts == ALONE else self.standing.kinds

    @cached_property
    def counts(self) -> dict[str, int]:
        """Layouts of each kind."""
        return {kind: self.kinds.count(kind) for kind in KINDS}

    def kind(self, plan: Plan) -> str:
        """Why a layout is not the best: one of KINDS."""
        if not plan.fits or self.best is None:
            return "over"
        if self.result.equal(plan):
            return "alike"
        part = plan.lost(self.best)
        return next((kind for kind, parts in LOSSES.items() if part in parts), "rest")

    def reason(self, plan: Plan) -> str:
        """Why it is not the best, in words."""
        if plan == self.best:
            return "the best"
        if self.result.equal(plan) and not plan.cannot:
            return f"equal within {self.percent}"
        return self.result.reason(plan)

    def rate(self, plan: Plan) -> float:
        """Tokens per second of the whole cluster."""
        return plan.job.tokens_per_step / plan.seconds

    def asking(self, **changed) -> Setting:
        """The same with another question."""
        return self.other(question=self.question._replace(**changed))
