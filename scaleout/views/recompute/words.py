"""What the view `recompute` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.memory.recompute import tiles
from scaleout.timing.recompute import passes
from scaleout.views.choices import NAMES
from scaleout.views.recompute.levers import longer
from scaleout.words.amounts import amount, quantity, took

GIGA, TERA = 10**9, 10**12


def sentence(setting) -> str:
    """What is freed, what it takes, and whether the step fits."""
    case = setting.case
    start = f"{NAMES[case.model]}, {case.batch} × {case.tokens:,} tokens"
    peak_words = f"holds {amount(setting.peak, GIGA)} and {'fits' if setting.fits else 'does not fit'}"
    if not setting.freed:
        kept_text = amount(setting.kept_bytes, GIGA)
        return f"{start}: nothing is dropped. A GPU keeps {kept_text} of its blocks, **{peak_words}**."
    action = "dropping" if setting.way == "rebuild" else "moving out"
    cost = f"{'for a step ' if setting.longer else ''}**{longer(setting)}**"
    return f"{start}: {action} {setting.dropped}% frees **{amount(setting.freed, GIGA)}** {cost}; it {peak_words}."


def law(setting) -> list[str]:
    """What the last tile to go costs, or the first one; or what the way to the host does."""
    case, plain = setting.case, took(setting.case.plain.seconds)
    if setting.way == "offload":
        block = case.plain.work[0]
        hides = [took(case.blocks * seconds) for seconds in (block.forward_seconds, block.backward_seconds)]
        way = f"{amount(setting.freed, GIGA)} / {case.slot / GIGA:.3g} GB/s = {took(setting.freed / case.slot)}"
        return [
            "Each way over PCIe takes",
            way,
            f"It hides beside {hides[0]} of forward and {hides[1]} of backward; the rest is waited for.",
        ]
    dropped = [item for item in setting.tiles if setting.counts[item.name]]
    last = (dropped or setting.tiles)[len(dropped) - 1 if dropped else 0]
    blocks = setting.counts[last.name] or case.blocks
    blocks_words = f"{case.blocks} blocks" if blocks == case.blocks else f"up to {case.blocks} blocks"
    tiles_ = f"{len(dropped)} tiles in {blocks_words} take" if len(dropped) > 1 else f"In {blocks} blocks it takes"
    spent = f"{tiles_} {took(setting.longer)}; the step without, {plain}."
    return [
        f"To make {last.name} again in each block takes",
        f"{_price(case, last.name)} = {took(last.seconds)}",
        spent if dropped else f"The step takes {plain}.",
    ]


def _price(case, name: str) -> str:
    """FLOPs and bytes of a tile's kernels at the rates that they reach; then its exposed communication."""
    tile, phase = next(candidate for candidate in tiles(case.z) if candidate.name == name), case.phases[name]
    multiplies, moves = phase.matmul + phase.attention, phase.moves + phase.launches
    terms = []
    if multiplies:
        work = tile.flops / 2 if name == "attention" and case.attention == "sdpa" else tile.flops
        terms.append(f"{quantity(work / TERA)} TFLOP / {quantity(work / multiplies / TERA)} TFLOP/s")
    if moves:
        moved = passes(case.job, tile)
        terms.append(f"{amount(moved, GIGA)} / {quantity(moved / moves / TERA)} TB/s")
    return " + ".join(
        [*terms, *(f"{collective.replace('_', '-')} of {amount(size, GIGA)}" for collective, size in tile.sends)]
    )


def slips() -> list[tuple[float, str]]:
    """Per cent that likely mistakes give, of the opening setting."""
    return [
        (100, "a second step: only the forward is made again, and a backward takes as long as two"),
        (
            100 / 3,
            "a forward of three equal parts: but the head, the exposed communication and the update are not made again",
        ),
        (50, "a forward beside a backward of the same length: for each product the backward makes two"),
        (200 / 3, "the backward's share: made again is what the forward made"),
        (25, "a forward out of four: the step is compared with the one that makes nothing again"),
    ]
