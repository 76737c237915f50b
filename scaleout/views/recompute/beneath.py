"""Below the curve of the view `recompute`: the memory of a step against the usable memory of a GPU, and its time."""

from __future__ import annotations

from scaleout.draw import hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, Part, bar, sizes
from scaleout.words.amounts import amount, took

GIGA = 10**9
ACTIVATIONS = next(kind for kind in BYTES if kind.name == "activations")
# Parts of the step in the picture.
SECONDS = (
    Part(("compute",), "compute", ()),
    Part(("update",), "c2", ()),
    Part(("exposed communication",), "accent", (), hatched=True),
    Part(("recomputation",), "compute", (), hatched=True),
    Part(("exposed copies",), "accent", (), hatched=True),
)
PROGRAMS = {"megatron": "Megatron-LM", "compiled": "torch.compile", "eager": "eager torch"}


def memory(axes, setting) -> str:
    """Bytes at the peak of a step by kind, activations last, then what was freed. axes: `frame.Axes`. The dashed line
    is usable memory; what exceeds it is hatched."""
    (y, high), case, left, right, words = axes.places.memory, setting.case, axes.places.left, axes.right, axes.words
    usable, full_peak = case.usable, setting.other(dropped=0).peak
    scale = (right - left) / (1.02 * max(full_peak, usable))
    limit, x = left + usable * scale, left
    parts = [
        svg.text(words, y - 7, fitting(_memory_words(setting), right - words), size=svg.SMALL),
        svg.rect(left, y, usable * scale, high, "grid", opacity=0.45, title="usable memory"),
    ]
    named: list[str] = []
    kinds = sizes(BYTES, setting.peak_kinds)
    kinds[ACTIVATIONS] = kinds.pop(ACTIVATIONS)  # last, beside what was freed of them
    marks, end = bar((left, y, high, scale), kinds, amount, "held", 0.42)
    named = []
    for kind, size in kinds.items():
        named.append(_inside(x, min(limit, x + size * scale), y, high, kind.names))
        x += size * scale
    freed = max(0.0, left + full_peak * scale - end)
    named.append(_inside(max(end, limit), end + freed, y, high, ("freed",)))
    freed_mark = svg.rect(end, y, freed, high, "c3", opacity=0.15, title="freed", mark="freed")
    return "".join([*parts, marks, freed_mark, hatch.beyond(limit, end, y, high), *named])


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
    spent = {part: parts[part.name] for part in SECONDS if part.name in parts}
    marks, _ = bar((left, y, high, (right - left) / setting.seconds), spent, took, "part", 0.8)
    return svg.text(words, y - 6, fitting(ways, right - words), size=svg.SMALL) + marks
