"""What the view `planner` says: of a layout, of the best one, and what is worth trying."""

from __future__ import annotations

from scaleout.spec import frameworks
from scaleout.timing.plan import Plan
from scaleout.views.planner.setting import DOUBLED, GPUS, MOST_GPUS, Setting, best_of, cuts_of, picked
from scaleout.words.amounts import quantity, took

SHARDS = {0: "", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
RECOMPUTES = {"none": "", "selective": "attention recomputed", "full": "full recomputation"}


def layout(plan: Plan, dp: bool = True, chunks: bool = False) -> str:
    """A layout by the degrees that are above 1, or where only dp is, by that. chunks: with those of a pipeline rank.

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
    """The best as a sentence, and the reader's own beside it."""
    best = setting.best
    if best is None:
        return f"{head(setting)}: {_nothing(setting)}"
    open_end = " or more" if setting.result.band.outside else ""
    crossing = " tp crosses nodes: nothing else fits." if setting.result.across else ""
    cut = layout(best, dp=False, chunks=True)
    return (
        f"{head(setting)}: **{cut}: {took(best.seconds)} a step ± {setting.percent}{open_end},** "
        f"{100 * best.mfu:.0f}% MFU, {gb(best.bytes)} GB, {_equal(setting)}.{crossing} {_yours(setting)}"
    )


def _equal(setting: Setting) -> str:
    """How many layouts the band does not tell from the fastest."""
    alike = setting.counts["alike"]
    return f"best of {alike} equals" if alike > 1 else "without equals"


def _nothing(setting: Setting) -> str:
    small = setting.smallest
    if setting.refusal:
        return f"**{setting.refusal}.**"
    if small is None:
        return (
            f"**no layout divides this.** {setting.sequences:,} sequences do not fall evenly to so many "
            f"replicas: take {least(setting.question.gpus, setting.sequences):,} of them."
        )
    return (
        f"**nothing fits.** The smallest, {layout(small)}, needs {gb(small.bytes)} of {gb(setting.usable)} GB of "
        "usable memory."
    )


def least(gpus: int, sequences: int) -> int:
    """The fewest sequences on offer, of so many or more, that fall evenly to one replica on each GPU; else the most."""
    even = [n for n in DOUBLED if n % gpus == 0]
    return next((n for n in even if n >= sequences), max(even, default=gpus))


def _yours(setting: Setting) -> str:
    plan, best = setting.yours, setting.best
    if isinstance(plan, str):
        return "Yours cannot be."
    if not plan.fits or best is None:
        return f"Yours {setting.result.reason(plan)}."
    if plan.cannot:
        return f"{frameworks.RUNS[setting.question.program].name} cannot run yours."
    if plan is best:
        return "It is yours."
    if setting.result.equal(plan):
        return "Yours is one of these."
    ratio = plan.seconds / best.seconds
    return f"Yours: {ratio:.{1 if ratio >= 2 else 2}f} times as long, {plan.loses_by(best).split(',')[0]}."


def advice(setting: Setting) -> str:
    """What is worth trying now: where nothing fits the first cluster on which it does; else a larger batch."""
    if setting.refusal:
        return ""
    if setting.best is None:
        gpus, plan = first_that_fits(setting)
        return f"From **{gpus:,} GPUs** on it fits: {layout(plan)}." if plan else ""
    doubled = picked(setting.question._replace(sequences=2 * setting.question.sequences), cuts_of(setting.best))
    if isinstance(doubled, str) or not doubled.fits or doubled.cannot or 2 * setting.question.sequences > MOST_GPUS:
        return ""
    gain = 2 * setting.best.seconds / doubled.seconds - 1  # of this layout; planned again it is no less
    return f"**Twice the sequences:** {100 * gain:+.0f}% tokens/s." if gain > 0.01 else ""


def first_that_fits(setting: Setting) -> tuple[int, Plan | None]:
    """The first cluster on which a layout fits, of those on offer that are this one doubled, and its best; (0, None)
    where none is."""
    for gpus in (setting.question.gpus * 2**k for k in range(1, MOST_GPUS.bit_length())):
        best = best_of(setting.question._replace(gpus=gpus)) if gpus in GPUS else None
        if best:
            return gpus, best
    return 0, None
