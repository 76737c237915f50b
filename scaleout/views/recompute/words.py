"""What the view `recompute` says: its sentence, the formula next to the picture, and the causes of wrong guesses."""

from __future__ import annotations

from scaleout.memory.recompute import tiles
from scaleout.timing.recompute import passes
from scaleout.views.choices import NAMES
from scaleout.views.recompute.levers import longer
from scaleout.words.amounts import amount, quantity, took

GIGA, TERA = 10**9, 10**12


def sentence(setting) -> str:
    """How much is freed, how much longer the step is, and whether it fits."""
    case = setting.case
    start = f"{NAMES[case.model]}, {case.batch} × {case.tokens:,} tokens"
    peak_words = f"needs {amount(setting.peak, GIGA)} and {'fits' if setting.fits else 'does not fit'}"
    if not setting.freed:
        kept_text = amount(setting.kept_bytes, GIGA)
        return f"{start}: nothing is freed. The blocks save {kept_text}, and the step **{peak_words}**."
    action = "recomputing" if setting.way == "rebuild" else "offloading"
    freed = f"{action} {setting.dropped}% frees **{amount(setting.freed, GIGA)}**"
    return f"{start}: {freed} and makes the step **{longer(setting)}**. It {peak_words}."


def law(setting) -> list[str]:
    """The cost of the tensor that was freed last, or of the first one; or that of the copies to CPU memory."""
    case, plain = setting.case, took(setting.case.plain.seconds)
    if setting.way == "offload":
        block = case.plain.work[0]
        hides = [took(case.blocks * seconds) for seconds in (block.forward_seconds, block.backward_seconds)]
        way = f"{amount(setting.freed, GIGA)} / {case.slot / GIGA:.3g} GB/s = {took(setting.freed / case.slot)}"
        return [
            "Each direction over PCIe takes",
            way,
            f"It overlaps with {hides[0]} of forward and {hides[1]} of backward; the rest is exposed.",
        ]
    dropped = [item for item in setting.tiles if setting.counts[item.name]]
    last = (dropped or setting.tiles)[len(dropped) - 1 if dropped else 0]
    blocks = setting.counts[last.name] or case.blocks
    blocks_words = f"{case.blocks} blocks" if blocks == case.blocks else f"up to {case.blocks} blocks"
    tiles_ = f"{len(dropped)} tensors in {blocks_words} add" if len(dropped) > 1 else f"In {blocks} blocks it adds"
    spent = f"{tiles_} {took(setting.longer)} to a step of {plain}."
    return [
        f"Recomputing {last.name} in one block takes",
        f"{_price(case, last.name)} = {took(last.seconds)}",
        spent if dropped else f"The step takes {plain}.",
    ]


def _price(case, name: str) -> str:
    """FLOPs and bytes of a tensor's kernels at the rates that they reach; then its exposed communication."""
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
    """Percentages that likely mistakes give, for the opening setting."""
    return [
        (100, "as if the whole step ran again. Only the forward pass does, and the backward pass takes twice as long"),
        (
            100 / 3,
            "as if a step were only its blocks. The head, exposed communication and the update are not repeated",
        ),
        (50, "as if the backward pass took as long as the forward pass. For each matrix multiplication it does two"),
        (200 / 3, "as if the backward pass were repeated. It is the forward pass"),
        (25, "one forward pass out of four. Compare with the step that recomputes nothing"),
    ]
