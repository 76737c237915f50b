"""Fine-tuning on one GPU or one node: the fastest way that fits, and the same figures as `answer` has of a cluster.

Everything is what the view `finetune` shows of the same setting: the same account, the same step, the same levers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaleout.memory.states import trained_parameters
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import check_priced, total_parameters
from scaleout.views.finetune import levers, words
from scaleout.views.finetune.setting import LAYOUTS, RUNS, VERDICTS, Setting
from scaleout.words.amounts import amount

CHECKPOINTING = {"none": "", "full": "activation checkpointing"}


def answer(asked: Setting, sequences: int, free: dict[str, tuple]) -> dict[str, Any]:
    """Everything that is printed, as JSON has it. sequences: of a step on each GPU. free: the values to choose from of
    the fields that nobody gave: "layout", "checkpointing", "batch". ValueError, in one line, for what cannot be."""
    check_priced(asked.shape, asked.recipe.operations)
    every = list(candidates(asked, sequences, free))
    ways = sorted((one for one in every if not one.refusal), key=rank)
    if not ways:
        raise ValueError(every[0].refusal)
    best = chosen(ways)
    kept = best_by_layout([best, *ways])
    return {
        "model": model(asked),
        "cluster": f"{asked.gpus} {asked.card.name}",
        "program": RUNS[asked.program],
        "method": asked.method,
        "trained": trained_parameters(asked.shape, asked.recipe, Layout()),
        "seq": best.job.seq,
        "sequences": sequences * asked.gpus,
        "usable_bytes": asked.usable,
        "best": described(best, best) | {"memory": best.account.moments, "parts": best.step.parts},
        "largest_micro_batch": best.largest,
        "band": best.band.share,
        "band_of": best.band.why,
        "layouts": [described(one, best) for one in kept],
        "fitting": sum(one.fits for one in kept),
        "changes": list(changes(best)),
        "lever": words.advice(best).replace("**", ""),
    }


def model(asked: Setting) -> dict[str, Any]:
    """The model: its name, parameters, and what of it is not priced."""
    total = total_parameters(asked.shape)
    return {"name": asked.name, "parameters": total, "active": total, "not_priced": list(asked.left_out)}


def candidates(asked: Setting, sequences: int, free: dict[str, tuple]) -> Iterator[Setting]:
    """Every setting of the free fields whose micro-batches make up the step."""
    for layout in free.get("layout", (asked.layout,)):
        if layout == "fsdp" and asked.gpus == 1:
            continue
        for checkpointing in free.get("checkpointing", (asked.checkpointing,)):
            for batch in free.get("batch", (asked.batch,)):
                if not sequences % batch:
                    passes = sequences // batch
                    yield asked.other(layout=layout, checkpointing=checkpointing, batch=batch, passes=passes)


def rank(one: Setting) -> tuple[int, float]:
    """Those that fit first, the fastest before the others; of those that do not, the smallest."""
    place = VERDICTS.index(one.verdict)
    return place, one.peak if place == 2 else -one.rate


def chosen(ways: list[Setting]) -> Setting:
    """The best of ranked ways: of those that fit and that the band does not tell from the fastest, the fastest of the
    simplest layout, in the order of LAYOUTS."""
    first = ways[0]
    if not first.fits:
        return first
    alike = [one for one in ways if one.fits and one.rate * (1 + first.band.share) >= first.rate]
    return min(alike, key=lambda one: (list(LAYOUTS).index(one.layout), -one.rate))


def best_by_layout(ways: list[Setting]) -> list[Setting]:
    """Of each layout, with and without checkpointing, the first of these ways."""
    found: dict[tuple[str, str], Setting] = {}
    for one in ways:
        found.setdefault((one.layout, one.checkpointing), one)
    return list(found.values())


def layout_words(one: Setting) -> str:
    """ "sharded (FSDP), activation checkpointing"; on one GPU without an offload "one GPU"."""
    layout = "one GPU" if one.gpus == 1 and one.layout == "ddp" else LAYOUTS[one.layout]
    return ", ".join(filter(None, (layout, CHECKPOINTING[one.checkpointing])))


def described(one: Setting, best: Setting) -> dict[str, Any]:
    """A setting with its figures, and why it is not the best."""
    slower = one.step.seconds / best.step.seconds - 1
    equal = ", equal within the band" if slower < 0 else ""
    why = "the best" if one is best and one.fits else f"{slower:+.0%} time{equal}" if one.fits else one.verdict
    if one.verdict == VERDICTS[-1]:
        over = one.peak - one.usable
        why += f" by {amount(over)}" if over > 0 else ": more than the CPU memory of a node is offloaded"
    return {
        "layout": layout_words(one),
        "checkpointing": one.checkpointing,
        "micro_batch": one.batch,
        "micro_batches": one.passes,
        "fits": one.fits,
        "verdict": one.verdict,
        "bytes": one.peak,
        "host_bytes": sum(one.account.host.values()),
        "seconds": one.step.seconds,
        "tokens_per_second": one.rate,
        "mfu": one.step.mfu,
        "why": why,
    }


def changes(best: Setting) -> Iterator[dict[str, Any]]:
    """One change of the best, each alone: bytes, the share of tokens per second that it gains, and the verdict."""
    for name, change in levers.every(best).items():
        after = best.other(**change)
        yield {"change": name, "bytes": after.peak, "gain": after.rate / best.rate - 1, "verdict": after.verdict}
