"""The figures of a question: the model's parameters, the memory of a layout by moment and kind, its step, and others.

Everything is what the view `planner` shows of the same question: the same search, the same account, the same step.
"""

from __future__ import annotations

from typing import Any

from scaleout.memory import allocator
from scaleout.memory import job as memory
from scaleout.memory.states import state_bytes
from scaleout.spec import checks, frameworks, layout_words
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import GPU_WATTS
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import active_parameters, check_priced, total_parameters, unpriced
from scaleout.timing.plan import Plan
from scaleout.timing.price import run_cost
from scaleout.timing.quick import RECOMPUTE
from scaleout.views.finetune.setting import most
from scaleout.views.planner import words
from scaleout.views.planner.setting import ALONE, RUNS, Cuts, Question, Setting, best_of, cuts_of, picked
from scaleout.words.amounts import count, listed

RANKED = 8  # layouts that are listed
GAIN = 0.01  # of tokens per second: what gains less is no lever


def answer(question: Question, layout: str | None = None, recompute: str | None = None) -> dict[str, Any]:
    """Everything that is printed, as JSON has it. layout, recompute: of a plan to be shown in place of the best.
    ValueError, in one line, for what cannot be."""
    device = DEVICES[question.device]
    found: dict[str, Any] = {
        "model": model(question),
        "cluster": f"{question.gpus:,} {device.name}",
        "program": RUNS[question.program],
        "seq": question.seq,
        "sequences": question.sequences,
        "usable_bytes": allocator.usable(device.memory_bytes),
    }
    try:
        check_priced(question.shape, frameworks.operations(PROGRAMS[question.program]))
    except ValueError as error:
        return found | {"not_priced": str(error), "states": states(question)}
    setting = Setting(question, ALONE)
    if setting.refusal:
        raise ValueError(setting.refusal)
    plan = own(question, layout, recompute) if layout or recompute else setting.shown
    if plan is None:
        sequences = count(question.sequences, "sequence")
        raise ValueError(
            f"no layout of {question.gpus:,} GPUs is possible for {sequences} a step: use {question.gpus:,}"
        )
    result = setting.result
    return found | {
        "best": described(setting, plan) | {"memory": moments(plan.job), "parts": plan.parts},
        "largest_micro_batch": largest(plan.job, found["usable_bytes"]),
        "band": result.band.share,
        "band_of": result.band.why,
        "layouts": [described(setting, one) for one in (*result.plans, *result.over)[:RANKED]],
        "fitting": len(result.plans),
        "refused": result.refused,
        "lever": lever(setting),
    }


def model(question: Question) -> dict[str, Any]:
    """The model: its name, parameters, and what of it is not priced."""
    shape = question.shape
    return {
        "name": question.name,
        "parameters": total_parameters(shape),
        "active": active_parameters(shape),
        "not_priced": list(unpriced(shape, recipe(question).operations)),
    }


def states(question: Question) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer on each GPU if all GPUs share them (ZeRO-3): what a model needs at
    least of which no more is priced."""
    return state_bytes(total_parameters(question.shape), recipe(question), _shared(question))


def recipe(question: Question) -> Recipe:
    """As the program trains with ZeRO-3 over all GPUs."""
    wanted = Recipe("bf16-master", main_gradients="instead")
    return frameworks.trained(PROGRAMS[question.program], _shared(question), wanted)


def _shared(question: Question) -> Layout:
    return Layout(dp=question.gpus, zero=3)


def own(question: Question, layout: str | None, recompute: str | None) -> Plan:
    """The plan of a layout in words, with what is recomputed, or of those the fastest that fits."""
    ways = RECOMPUTE if recompute is None else (recompute,)
    for way in ways:
        checks.one_of("recompute", way, RECOMPUTE)
    cut = layout_words.parse(layout or "", question.gpus, question.shape)
    if cut.micro_batches is not None or cut.chunks > 1 or cut.schedule != "1f1b":
        raise ValueError("m, v and schedule are chosen: give tp, pp, cp, dp and zero")
    plans = [picked(question, Cuts(cut.tp, cut.pp, cut.cp, cut.zero, way)) for way in ways]
    possible = [plan for plan in plans if isinstance(plan, Plan)]
    if not possible:
        raise ValueError(plans[0])
    return min(possible, key=lambda plan: (not plan.fits, plan.seconds if plan.fits else plan.bytes))


def described(setting: Setting, plan: Plan) -> dict[str, Any]:
    """A layout with its figures, and why it is not the best."""
    return {
        "layout": words.layout(plan, chunks=True),
        **cuts_of(plan)._asdict(),
        "dp": plan.layout.dp,
        "micro_batch": plan.job.batch,
        "micro_batches": plan.layout.m,
        "fits": plan.fits,
        "bytes": plan.bytes,
        "seconds": plan.seconds,
        "tokens_per_second": setting.rate(plan),
        "mfu": plan.mfu,
        "why": setting.reason(plan) if setting.best else setting.result.reason(plan),
    }


def moments(job: Job) -> dict[str, dict[str, int]]:
    """Bytes by moment of a step and by kind, of the GPU with the highest peak."""
    return memory.fullest(job).moments


def largest(job: Job, usable: int) -> int:
    """The most sequences of a micro-batch that fit in this layout, 0 where not even one does."""
    return most(lambda batch: memory.fullest(job.other(batch=batch)).peak_bytes <= usable)


def lever(setting: Setting) -> str:
    """What to try first: the change that gives the most tokens per second, or where nothing fits, what makes it fit."""
    question, best = setting.question, setting.best
    if best is None:
        return words.advice(setting).replace("**", "")
    changes = {"twice the sequences": question._replace(sequences=2 * question.sequences)}
    if question.loss == "eager":
        changes["a fused loss"] = question._replace(loss="fused")
    if question.program in ("eager", "huggingface") and not question.shape.features.experts:
        changes["torch.compile, as torchtitan has it"] = question._replace(program="compiled")
    gains = {}
    for name, changed in changes.items():
        plan = best_of(changed)
        if plan:
            gains[name] = setting.rate(plan) / setting.rate(best) - 1
    name = max(gains, key=lambda change: gains[change], default="")
    if name and gains[name] > GAIN:
        return f"Try {name}: {100 * gains[name]:+.0f}% tokens/s."
    return f"Tried: {listed(list(changes))}. Neither gains more than {100 * GAIN:.0f}% tokens/s."


def run(best: dict[str, Any], gpus: int, tokens: float, price: float, currency: str) -> dict[str, Any]:
    """Hours, GPU-hours and price of so many tokens."""
    cost = run_cost(tokens, best["tokens_per_second"], gpus, GPU_WATTS, price)
    checks.number("the price of so many tokens", cost.price, 0)
    return {
        "tokens": tokens,
        "hours": cost.hours,
        "gpu_hours": cost.gpu_hours,
        "price": cost.price,
        "currency": currency,
        "gpu_hour": price,
    }
