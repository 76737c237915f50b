"""What the view `bottlenecks` says: which resource is the wall, the step as a sum, where wrong guesses come from."""

from __future__ import annotations

from scaleout.views.bottlenecks.setting import ARITHMETIC, FIXED, INPUT, MEMORY, NETWORK, RESOURCES, WAITING, Setting
from scaleout.words.amounts import amount, took

GIGA = 10**9
SAYS = {
    ARITHMETIC: "Arithmetic is the wall", MEMORY: "Memory bandwidth is the wall", NETWORK: "The network is the wall",
    WAITING: "Waiting is the wall", INPUT: "Input is the wall", FIXED: "A fixed cost is the wall",
}  # fmt: skip


def sentence(setting: Setting) -> str:
    """Which bar is tallest, of how long a step; before that, whether the run fits at all."""
    needed, usable = amount(setting.account.peak_bytes, GIGA), amount(setting.usable, GIGA)
    if not setting.fits:
        return f"**It does not fit: {needed} per GPU, {usable} usable.** The seconds are those of a larger GPU."
    tall, seconds = setting.tallest, setting.seconds_by
    rate = f"{setting.tokens_per_second:,.0f} tokens/s"
    return f"**{SAYS[tall]}: {took(seconds[tall])} of {took(setting.seconds)} per step.** {rate}; memory fits."


def law(setting: Setting) -> list[str]:
    """The step as the sum of its bars."""
    milliseconds = _rounded([1e3 * setting.seconds_by[name] for name in RESOURCES])
    shown = [f"{value:,}" for value in milliseconds if value]
    return [
        "Time that overlaps is counted once, so the bars add up to the step, in ms:",
        f"{' + '.join(shown)} = {sum(milliseconds):,}",
        f"MFU {setting.mfu:.0%}.",
    ]


def _rounded(values: list[float]) -> list[int]:
    """Whole numbers near the values that add up to their rounded sum: the largest remainders are rounded up."""
    floors = [int(value) for value in values]
    missing = round(sum(values)) - sum(floors)
    largest = sorted(range(len(values)), key=lambda i: floors[i] - values[i])[:missing]
    return [value + (i in largest) for i, value in enumerate(floors)]


def slips(setting: Setting) -> list[tuple[float, str]]:
    """Times as fast that likely mistakes give: the ratio of the links, and halves of the right thought."""
    network, seconds = setting.seconds_by[NETWORK], setting.seconds
    return [
        (32.0, "the network is 32 times as fast, but only its own bar becomes shorter"),
        (1 + network / seconds, "that is 1 plus the network's share; divide the old step time by the new one"),
        (seconds / network, "that is the step time over the network's time; divide by the time that is left"),
    ]
