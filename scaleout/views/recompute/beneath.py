"""Below the curve of the view `recompute`: the memory of a step against the usable memory of a GPU, and its time."""

from __future__ import annotations

from scaleout.draw import hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, sizes
from scaleout.words.amounts import amount, took

GIGA = 10**9
PROGRAMS = {"megatron": "Megatron-LM", "compiled": "torch.compile", "eager": "eager torch"}


def memory(axes, setting) -> str:
    """Bytes at the peak of a step by kind, activations last, then what was freed. axes: `frame.Axes`. The dashed line
    is usable memory; what exceeds it is hatched."""
    (y, high), case, left, right, words = axes.places.memory, setting.case, axes.places.left, axes.right, axes.words
    usable, full_peak = case.usable, setting.other(dropped=0).peak
    scale = (right - left) / (1.02 * max(full_peak, usable))
    limit, x = left + usable * scale, left
    parts = [svg.text(words, y - 7, fitting(_memory_words(setting), right - words), size=svg.SMALL)]
    parts.append(svg.rect(left, y, usable * scale, high, "grid", opacity=0.45, title="usable memory"))
    named = []
    kinds = sizes(BYTES, setting.peak_kinds)
    for kind in sorted(kinds, key=lambda kind: kind.name == "activations"):  # last, beside what was freed of them
        size = kinds[kind]
        parts.append(
            svg.rect(
                x,
                y,
                size * scale,
                high,
                kind.colour,
                opacity=0.42,
                title=f"{kind.name}: {amount(size, GIGA)}",
                mark=f"held {kind.name}",
            )
        )
        named.append(_inside(x, min(limit, x + size * scale), y, high, kind.names))
        x += size * scale
    freed = max(0.0, left + full_peak * scale - x)
    parts.append(svg.rect(x, y, freed, high, "c3", opacity=0.15, title="freed", mark="freed"))
    named.append(_inside(max(x, limit), x + freed, y, high, ("freed",)))
    excess = max(0.0, x - limit)
    parts.append(svg.rect(limit, y, excess, high, "paper", opacity=0.45, mark="veil"))
    parts.append(hatch.hatched(limit, y, excess, high, "accent", "over"))
    parts.append(svg.line(limit, y - 4, limit, y + high + 4, "accent", 2, "4 2", mark="limit"))
    return "".join([*parts, *named])


def _inside(x: float, end: float, y: float, high: float, names: tuple[str, ...]) -> str:
    """The first of the names that fits from x to end, in the middle."""
    words = fitting(names, end - x - 4, svg.SMALLEST)
    return svg.text((x + end) / 2, y + high / 2 + 4, words, anchor="middle", size=svg.SMALLEST) if words else ""


def _memory_words(setting) -> list[str]:
    needed, usable = amount(setting.peak, GIGA), amount(setting.case.usable, GIGA)
    if setting.fits:
        return [f"the step needs {needed} of the usable {usable}: it fits", f"needs {needed} of {usable}: it fits"]
    excess = amount(setting.peak - setting.case.usable, GIGA)
    return [f"the step needs {needed}, {excess} more than the usable {usable}", f"needs {needed}, {excess} too much"]


def seconds(axes, setting) -> str:
    """The parts of the step time side by side; communication, and what recomputation or offloading adds, is hatched."""
    (y, high), parts, left, right, words = axes.places.seconds, setting.parts, axes.places.left, axes.right, axes.words
    phrases = {name: f"{name} {took(size)}" for name, size in parts.items() if size > 0}
    total, last, program_label = took(setting.seconds), [*parts][-1], PROGRAMS[setting.case.program]
    large = [words_ for name, words_ in phrases.items() if name == last or parts[name] > 0.02 * setting.seconds]
    ways = [
        f"{program_label} step, {total}: {', '.join(chosen)}".replace("communication", word)
        for chosen in (phrases.values(), large)
        for word in ("communication", "comm.")
    ]
    ways += [f"{program_label} step, {total}: {', '.join(large[-1:])}", f"{program_label} step, {total}"]
    pieces, x = [svg.text(words, y - 6, fitting(ways, right - words), size=svg.SMALL)], left
    fills = {
        "compute": "compute",
        "update": "c2",
        "exposed communication": "accent",
        "recomputation": "compute",
        "exposed copies": "accent",
    }
    for name, size in parts.items():
        wide = (right - left) * size / setting.seconds
        striped = name not in ("compute", "update")
        pieces.append(
            svg.rect(
                x,
                y,
                wide,
                high,
                fills[name],
                opacity=hatch.PALE if striped else 0.8,
                title=f"{name} {took(size)}",
                mark=f"part {name}",
            )
        )
        if striped:
            pieces.append(hatch.hatched(x, y, wide, high, fills[name], f"stripes {name}"))
        x += wide
    return "".join(pieces)
