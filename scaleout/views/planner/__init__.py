"""How should this model be trained on these GPUs? Every layout is a point, with the reason why it is not the best.

`setting` has what the reader chose and what the search finds, `words` the texts. `landscape` draws the layouts, `chips`
their kinds, `bars` step time and memory by part; `published` has published runs. Below the picture, `clusters` shows
other clusters and what if, `costs` the figures, the whole run and neighboring layouts, `pieces` how the GPUs are
divided, and `launch` how to run it.
"""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.spec.hardware import GPU_WATTS
from scaleout.spec.models import MODELS
from scaleout.timing.plan import Plan
from scaleout.timing.price import EXAMPLE, run_cost
from scaleout.views import more, number, select
from scaleout.views.base import kept
from scaleout.views.choices import LARGE, LOSSES, NAMES, OF_LOSSES, cards, own_model
from scaleout.views.planner import bars, chips, clusters, costs, landscape, launch, pieces, words
from scaleout.views.planner.setting import (
    DOUBLED,
    GPUS,
    KINDS,
    NETWORKS,
    RUNS,
    Setting,
    ask_one,
    cuts_of,
)

SECTIONS = (("cut", "clusters", "what-if", "launch"), ("figures", "away", "run"))
# Controls that change the search.
QUESTION = ("model", "gpus", "device", "sequences", "program", "config", "seq", "network", "loss")
TITLE = "How should I train this model on these GPUs?"

PRESETS = ("gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "gpt-3-175b", "llama-3-405b", "zero-1t")
DEGREES = [(2**k, str(2**k)) for k in range(7)]


CONTROLS = (
    select("model", "Which model", "llama-3-70b", [(key, NAMES[key]) for key in (*PRESETS, *MODELS)]),
    own_model(),
    select("gpus", "How many GPUs", 512, [(n, f"{n:,}") for n in GPUS]),
    select("device", "Which GPU", "h100-sxm", cards(LARGE)),
    select("sequences", "Sequences per step", 1024, [(n, f"{n:,}") for n in (8, *DOUBLED)]),
    *more(
        select("program", "Program", "megatron", list(RUNS.items()),
               help="Decides the kernels, the overlap and the error band."),
        select("seq", "Tokens per sequence", 8192, [(2**k, f"{2**k:,}") for k in range(10, 18)],
               help="A model with learned positions has a maximum."),
        select("loss", "Loss", "eager", LOSSES, help=OF_LOSSES),
        select("network", "Between nodes of 8", "ndr", [(key, label) for key, (_, _, label) in NETWORKS.items()]),
        select("tp", "Your layout: tensor (tp)", 1, DEGREES[:5]),
        select("pp", "Your layout: pipeline (pp)", 1, DEGREES),
        select("cp", "Your layout: context (cp)", 1, DEGREES[:5]),
        select("zero", "Your layout: sharding", 3, [(0, "nothing (DDP)"), (1, "ZeRO-1: optimizer"),
                                           (3, "ZeRO-3 (FSDP): weights too")]),
        select("recompute", "Your layout: recompute", "full",
               [("none", "nothing"), ("selective", "attention"), ("full", "every block")]),
        select("show", "Highlighted layouts", "all",
               [("all", "all layouts"), *((kind, chips.LOOKS[kind][3][0]) for kind in KINDS)],
               help="The same as pressing a count above the picture."),
        number("tokens", "Tokens of the whole run", 15.0, 0.001, 1000.0, 0.5, unit="T"),
        number("price", "Price per GPU-hour", EXAMPLE.gpu_hour, 0.0, 1000.0, 0.1, unit=EXAMPLE.currency,
               help="An example, not a provider's price: look up yours."),
        number("watts", "Power per GPU, including its node", GPU_WATTS, 0.0, 10_000.0, 10.0, unit="W",
               help="At most an eighth of a DGX H100's."),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """The landscape with the best and the reader's own layout; below it, their step time and memory."""
    setting = Setting.of(params)
    show = params["show"] if setting.counts.get(params["show"]) else ""  # the kind that is highlighted, "" for all
    return {
        "svg": _picture(setting, width, show),
        "sentence": words.sentence(setting),
        "values": _values(setting) | {"run": run(setting, params), "shown": show or "all"},
        "levers": _levers(setting),
    }


def _levers(setting: Setting) -> dict:
    """Controls that have no effect now, and why."""
    idle = {"model": "config.json gives the model: empty its box"} if setting.question.model.startswith("{") else {}
    idle |= dict.fromkeys(("network", "show"), setting.refusal or "no layout is possible") if not setting.plans else {}
    idle |= {"network": "there is only one node"} if setting.job.cluster.nodes == 1 else {}
    if setting.job.shape.positions == "learned" and setting.job.shape.max_seq <= 1024:
        idle["seq"] = "the model has positions for only 1,024 tokens"
    if setting.best is None:
        idle |= dict.fromkeys(("tokens", "price", "watts"), "nothing fits, so there is no run")
    return {name: {"off": reason} for name, reason in idle.items()}


def advice(params: dict) -> str:
    """The end of the sentence."""
    return words.advice(Setting.of(params))


def beneath(params: dict, name: str) -> dict:
    """One of SECTIONS."""
    setting = Setting.of(params)
    if name == "run":
        return costs.whole_run(setting, run(setting, params), params)
    tell = {
        "clusters": clusters.strip,
        "what-if": clusters.what_if,
        "figures": costs.figures,
        "away": costs.one_step,
        "cut": pieces.section,
        "launch": launch.section,
    }
    return tell[name](setting)


def prepare(params: dict, name: str) -> bool:
    """Do one of the searches that a section needs; returns whether there are more of them."""
    setting = Setting.of(params)
    questions = {"clusters": clusters.questions, "what-if": clusters.what_questions}.get(name, lambda setting: [])
    return ask_one(questions(setting))


@kept
def _picture(setting: Setting, width: int, show: str) -> str:
    places = landscape.PLACES[width]
    beneath = places.plane[1] + places.plane[3] + 38
    body = landscape.drawn(setting, width, show) + bars.drawn(setting, width, beneath)
    label = (
        f"{len(setting.plans)} layouts of {words.head(setting)}: step time increases to the right, memory of the "
        "fullest GPU upward. Below, step time and memory of the best layout and of yours, by part."
    )
    return svg.figure(width, places.height, body, label)


def run(setting: Setting, params: dict) -> dict | None:
    """Time, energy and price of a whole run with the best layout."""
    if setting.best is None:
        return None
    cost = run_cost(
        1e12 * params["tokens"], setting.rate(setting.best), setting.question.gpus, params["watts"], params["price"]
    )
    return {"hours": cost.hours, "gpu_hours": cost.gpu_hours, "mwh": cost.kwh / 1e3, "price": cost.price}


@kept
def _values(setting: Setting) -> dict:
    """The values, which are the same at both widths."""
    best, yours = setting.best, setting.yours
    return {
        "model": setting.question.name,
        "layouts": len(setting.plans),
        "counts": setting.counts,
        "fits": best is not None,
        "refused": sum(setting.result.refused.values()),
        "usable_gb": setting.usable / 1e9,
        "seq": setting.job.seq,
        "loss": setting.question.loss,
        "program": setting.question.program,
        "band": setting.result.band.share,
        "fastest": setting.result.fastest if best else None,
        "best": _plan_values(setting, best),
        "smallest": _plan_values(setting, setting.smallest),
        "asked": list(setting.cuts),
        "yours": _plan_values(setting, yours) if isinstance(yours, Plan) else {"refused": yours},
    }


def _plan_values(setting: Setting, plan: Plan | None) -> dict | None:
    if plan is None:
        return None
    layout = plan.layout
    return {
        **cuts_of(plan)._asdict(),
        "dp": layout.dp,
        "chunks": layout.chunks,
        "batch": plan.job.batch,
        "micro_batches": layout.m,
        "fits": plan.fits,
        "gb": plan.bytes / 1e9,
        "seconds": plan.seconds,
        "mfu": plan.mfu,
        "why": setting.reason(plan),
        "parts": plan.parts,
        "cannot": plan.cannot,
        "by_kind_gb": {kind.name: size / 1e9 for kind, size in bars.bytes_by_kind(plan.job).items()},
    }
