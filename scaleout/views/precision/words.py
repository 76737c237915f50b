"""What the view `precision` says: its sentence, the law next to the picture, and what leads to wrong guesses."""

from __future__ import annotations

import math

from scaleout.draw.ruler import power
from scaleout.numerics.octaves import fate
from scaleout.views.precision.parts import gradients, named, spoken
from scaleout.words.amounts import count, percent, quantity

BEST = "Nothing here loses less."


def sentence(s) -> str:
    """What becomes of the gradients."""
    if s.shares:
        return _sharing(s)
    scale = f"loss scale {power(s.octaves)}" if s.octaves else "no loss scale"
    zero = f"{_zero(s.fate.zero)} of {gradients(s.recorded)} become zero"
    if s.searches:
        start = f"Step {s.step}, {scale}"
        if s.current.skipped:
            skipped = f"**The step is skipped**, and the scale is halved to {power(round(math.log2(s.current.after)))}."
            return f"{start}: the largest gradient is infinite. {skipped}"
        return f"{start}: nothing overflows, {zero}."
    start = f"{s.format}, {scale}"
    if s.leaves_out:
        lost = f"**the step is skipped**; {_zero(s.fate.zero)} become zero."
        if s.fate.beyond:
            return f"{start}: {percent(s.fate.beyond)} of {gradients(s.recorded)} are infinite, so {lost}"
        _, part, kind = s.peak
        example = f"the gradient of {'a weight' if kind == 'weights' else 'an activation'} in {spoken(part)}"
        return f"{start}: none of {gradients(s.recorded)} is infinite, but {example} is, so {lost}"
    cut = f", {percent(s.fate.beyond)} are clipped to {s.f.largest:,.0f}" if s.fate.beyond else ""
    return f"{start}: {zero}{cut}; the median keeps **{_bits(s.kept_bits, s.f.digits)}**."


def _zero(share: float) -> str:
    return f"**{percent(share)}**" if share else "**none**"


def _bits(count: int, digits: int) -> str:
    return f"all {digits} bits" if count == digits else f"{count} of {digits} bits"


def _sharing(s) -> str:
    result = s.shared_fate
    sharer = "one scale for the tensor" if s.shared == "tensor" else f"one scale per {s.block:,} numbers"
    cut = f", {percent(result.clipped)} are clipped" if result.clipped else ""
    zero = f"{_zero(result.zero)} of {gradients(s.recorded)} become zero"
    error_words = f"the relative RMS error is **{percent(result.error)}**"
    return f"{named(s.format, s.shared, s.block)}, {sharer}: {zero}{cut}; {error_words}."


# --- the law --------------------------------------------------------------------------------------------------------


def law(s) -> list[str]:
    """Where zero begins; or what a block's scale is; or which scale a step allows."""
    if s.shares:
        return _law_of_blocks(s)
    if s.searches:
        top, unscaled = f"{s.f.largest:,.0f}", quantity(s.current.largest / s.current.scale)
        bears = s.f.largest / (s.current.largest / s.current.scale)
        outcome = "the step is skipped" if s.current.skipped else "nothing overflows"
        return [
            f"The largest gradient of step {s.step} allows a loss scale up to",
            f"{top} / {unscaled} = {quantity(bears)}",
            f"The scale is {s.current.scale:,.0f}, so {outcome}. It doubles after {s.interval:,} good steps in a row.",
        ]
    f = s.f
    formula = f"2^({_minus(f.lowest_octave)} − {f.mantissa} − 1) = {power(s.zero_below)}"
    scaled = (
        f"With a loss scale of {power(s.octaves)}, this happens to gradients of {power(s.zero_below - s.octaves)} and "
        "less; the update divides by the scale."
    )
    top = f"Its largest number is {f.largest:,.0f}." if f.largest < 1e6 else "Its range is that of fp32."
    mantissa = count(f.mantissa, "bit")
    return [
        f"The lowest normal exponent of {f.name} is {_minus(f.lowest_octave)}, and its mantissa has {mantissa}. Half "
        "of the smallest number, and less, becomes zero:",
        formula,
        scaled if s.octaves else top,
    ]


def _minus(n: int) -> str:
    return str(n).replace("-", "−")


def _law_of_blocks(s) -> list[str]:
    f, b = s.f, s.blocks
    top = f"{f.largest:,.0f}"
    bits = (
        f"{f.bits} + {b.scale.bits}/{b.size} = {b.bits():.3g} bits per number"
        if b.size
        else f"{f.bits} bits per number"
    )
    drawn = " The numbers of a block are drawn at random here; real neighbors are alike, and lose less."
    end = f"{bits}.{drawn if b.size else ''}"
    if s.shared == "floor":
        return [
            "The scale of a block whose largest number is m, rounded down to a power of two:",
            f"2^(⌊log₂ m⌋ − {f.highest_octave})",
            end,
        ]
    if s.shared == "up":
        return [
            "The scale of a block whose largest number is m, rounded up to a power of two:",
            f"2^⌈log₂(m / {top})⌉",
            end,
        ]
    owner = "the tensor" if s.shared == "tensor" else "a block"
    rounding = "in fp32" if s.shared == "tensor" else "rounded to e4m3, times one in fp32 for the tensor"
    return [f"The scale of {owner} whose largest number is m, {rounding}:", f"m / {top}", end]


def slips(s) -> list[tuple[float, str]]:
    """Per cent that likely mistakes give, of the opening setting."""
    f = s.f
    total = sum(h.total - h.zeros for h in s.parts.values())
    all_parts = sum(fate(h, f).zero * (h.total - h.zeros) for h in s.parts.values()) / total
    return [
        (
            100,
            "all below the smallest normal number: fp16 continues below it for ten powers of two, and loses a bit in "
            "each",
        ),
        (
            100 * s.h.below(s.zero_below + 1),
            f"all below the smallest number, {power(s.zero_below + 1)}: a number above half of it is rounded up to it",
        ),
        (0, "the share in bf16: fp16 has 5 bits of exponent, not 8"),
        (100 * all_parts, "the share of all parts together: queries and keys have the smallest gradients"),
    ]
