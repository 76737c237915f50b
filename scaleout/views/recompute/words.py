"""What the view `recompute` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.choices import NAMES
from scaleout.views.recompute.levers import WORTH, Advice, longer

GIGA = 10**9


def sentence(setting) -> str:
    """What is freed, what it takes, and whether the step fits."""
    job = setting.job
    start = f"{NAMES[job.model]}, {job.batch} × {job.tokens:,} tokens"
    held = f"holds {amount(setting.peak, GIGA)} and {'fits' if setting.fits else 'does not fit'}"
    if not setting.freed:
        return f"{start}: nothing is dropped. A GPU keeps {amount(setting.kept, GIGA)} of its blocks, **{held}**."
    done = "Dropping" if setting.way == "rebuild" else "Moving out"
    return (f"{start}: {done.lower()} {setting.dropped}% frees **{amount(setting.freed, GIGA)}** for a step "
            f"**{longer(setting)}**; it {held}.")  # fmt: skip


def advice(setting, found: Advice | None) -> str:
    """The one lever worth trying now."""
    if found:
        return f"Try **{found.words}**: {found.gives}."
    if not setting.fits:
        return "Nothing here makes it fit."
    return f"No lever here saves {WORTH:.0%} of the time."


def law(setting) -> list[str]:
    """What the next tile costs, or the last one."""
    job, blocks = setting.job, setting.job.blocks
    plain = took(job.plain.seconds)
    if setting.way == "offload":
        rate = f"{job.slot / GIGA:.3g} GB/s"
        way = took(setting.freed / job.slot)
        return ["Each way over PCIe takes", f"{amount(setting.freed, GIGA)} / {rate} = {way}",
                f"It hides beside {took(job.plain.forward.seconds * blocks)} of forward and "
                f"{took(job.plain.backward.seconds * blocks)} of backward; the rest is waited for."]  # fmt: skip
    names = [name for name, n in setting.counts.items() if n]
    if not names:
        item = setting.tiles[0]
        return [f"The first tile to go, {item.name}, would cost", _price(item), "A tile's area is its time."]
    spent = took(setting.longer)
    return [f"Made again in {blocks} blocks: {_list(names)}, together",
            f"{spent} of a step of {plain}: {longer(setting)}",
            f"Last to go, {names[-1]}: {_price(job.items[names[-1]])}."]  # fmt: skip


def _price(item) -> str:
    return (f"{took(item.seconds)} for {amount(item.bytes, GIGA)} of a block, "
            f"{svg.quantity(item.price * 1e12, 2)} µs a MB")  # fmt: skip


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def slips() -> list[tuple[float, str]]:
    """Per cent that likely mistakes give, of the opening setting."""
    return [
        (100, "a second step: only the forward is made again, and a backward takes as long as two"),
        (100 / 3, "a forward of three equal parts: the block's last product is not made again, for nothing in its "
                  "backward reads its output"),
        (50, "a forward beside a backward of the same length: for each product the backward makes two"),
        (200 / 3, "the backward's share: made again is what the forward made"),
        (25, "a forward out of four: the step is compared with the one that makes nothing again"),
    ]  # fmt: skip
