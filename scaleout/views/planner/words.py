"""The texts of the view `planner`: about a layout, about the best one, and about what is worth trying."""

from __future__ import annotations

from scaleout.spec import frameworks
from scaleout.timing.plan import Plan
from scaleout.views.planner.setting import DOUBLED, GPUS, MOST_GPUS, Setting, best_of, kept
from scaleout.words.amounts import quantity, took

SHARDS = {0: "", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
RECOMPUTES = {"none": "", "selective": "attention recomputed", "full": "full recomputation"}


def layout(plan: Plan, dp: bool = True, chunks: bool = False) -> str:
    """A layout in words: its degrees above 1 (dp if asked for, or alone). chunks: also the chunks per pipeline rank.

    "tp 4, cp 2, pp 4, dp 16, 5 chunks, ZeRO-1, full recomputation"
    """
    cut = plan.layout
    degrees = [(name, getattr(cut, name)) for name in ("tp", "cp", "pp", "dp")]
    named = [f"{name} {size:,}" for name, size in degrees if size > 1 and (dp or name != "dp")]
    named = named or [f"dp {cut.dp:,}"] * (cut.dp > 1)
    named += [f"{cut.chunks} chunks"] * (chunks and cut.chunks > 1)
    return ", ".join(filter(None, [*named, SHARDS[cut.zero], RECOMPUTES[plan.checkpointing]])) or "one GPU"


def gb(size: float) -> str:
    """Bytes as GB in whole numbers, from ten up."""
    return quantity(size / 1e9, 3 if size >= 1e11 else 2)


def head(setting: Setting) -> str:
    """ "Llama 3 70B on 512 H100, Megatron-LM"."""
    question = setting.question
    return f"{question.name} on {question.gpus:,} {card(setting)}, {setting.program}"


def card(setting: Setting) -> str:
    """A GPU by its name, without its memory and the usual socket: "H100", "H100 PCIe", "RTX 4090"."""
    return " ".join(setting.job.device.name.split()[:-2]).removesuffix(" SXM")


def sentence(setting: Setting) -> str:
    """The best layout in a sentence, then the reader's own."""
    best = setting.best
    if best is None:
        return f"{head(setting)}: {_nothing(setting)}"
    open_end = " or more" if setting.result.band.outside else ""
    crossing = " tp spans nodes: nothing else fits." if setting.result.across else ""
    cut = layout(best, dp=False, chunks=True)
    return (
        f"{head(setting)}: **{cut}: {took(best.seconds)} per step ± {setting.percent}{open_end},** "
        f"{100 * best.mfu:.0f}% MFU, {gb(best.bytes)} GB, {_equal(setting)}.{crossing} {_yours(setting)}"
    )


def _equal(setting: Setting) -> str:
    """How many layouts are within the band of the fastest."""
    alike = setting.counts["alike"]
    return f"one of {alike} equally fast" if alike > 1 else "no other as fast"


def _nothing(setting: Setting) -> str:
    small = setting.smallest
    if setting.refusal:
        return f"**{setting.refusal}.**"
    if small is None:
        return (
            f"**no layout is possible.** {setting.sequences:,} sequences cannot be divided evenly over the "
            f"replicas: use {least(setting.question.gpus, setting.sequences):,}."
        )
    return (
        f"**nothing fits.** The smallest, {layout(small)}, needs {gb(small.bytes)} GB per GPU; "
        f"{gb(setting.usable)} GB are usable."
    )


def least(gpus: int, sequences: int) -> int:
    """The fewest sequences on offer, at least as many as given, that divide evenly over one replica per GPU; else the
    most."""
    even = [n for n in DOUBLED if n % gpus == 0]
    return next((n for n in even if n >= sequences), max(even, default=gpus))


def _yours(setting: Setting) -> str:
    plan, best = setting.yours, setting.best
    assert best is not None
    if isinstance(plan, str):
        return "Your layout is not possible."
    if not plan.fits:
        return f"Your layout {setting.result.reason(plan)}."
    if plan.cannot:
        return f"{frameworks.RUNS[setting.question.program].name} cannot run your layout."
    if plan is best:
        return "This is your layout."
    if setting.result.equal(plan):
        return "Yours is one of them."
    ratio = plan.seconds / best.seconds
    return f"Yours takes {ratio:.{1 if ratio >= 2 else 2}f} times as long: {plan.loses_by(best).split(',')[0]}."


def advice(setting: Setting) -> str:
    """What is worth trying: if nothing fits, the smallest cluster on which something fits; else a larger batch."""
    if setting.refusal:
        return ""
    if setting.best is None:
        gpus, plan = first_that_fits(setting)
        return f"It fits on **{gpus:,} GPUs**: {layout(plan)}." if plan else ""
    doubled = kept(setting.question._replace(sequences=2 * setting.question.sequences), setting.best)
    if isinstance(doubled, str) or not doubled.fits or doubled.cannot or 2 * setting.question.sequences > MOST_GPUS:
        return ""
    gain = 2 * setting.best.seconds / doubled.seconds - 1  # of this layout; planned again it is no less
    return f"Try **twice the sequences**: {100 * gain:+.0f}% tokens/s." if gain > 0.01 else ""


def first_that_fits(setting: Setting) -> tuple[int, Plan | None]:
    """The first cluster on which a layout fits, of those on offer that are this one doubled, and its best; (0, None)
    where none is."""
    for gpus in (setting.question.gpus * 2**k for k in range(1, MOST_GPUS.bit_length())):
        best = best_of(setting.question._replace(gpus=gpus)) if gpus in GPUS else None
        if best:
            return gpus, best
    return 0, None
