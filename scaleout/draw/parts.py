"""What memory and a step consist of, in the few parts that a bar can show: names, colours, and what each contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaleout.draw import hatch, svg


@dataclass(frozen=True)
class Part:
    """A stretch of a bar. names: the longest first; members: the account's kinds of bytes, or the parts of a step
    (`timing.job.PARTS`); hatched: time that a perfect step would not take. A view's own parts need no members."""

    names: tuple[str, ...]
    colour: str
    members: tuple[str, ...] = ()
    hatched: bool = False
    opacity: float = 1.0

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def brief(self) -> str:
        """The shortest name that is not an abbreviation."""
        return [name for name in self.names if not name.endswith(".")][-1]

    def of(self, amounts: Mapping[str, float]) -> float:
        """How much of it there is: the sum over its members."""
        return sum(amounts.get(member, 0) for member in self.members)


# Bytes of a GPU at a moment; `kinds` has each of the account's kinds by itself.
BYTES = (
    Part(("weights",), "c1", ("weights",)),
    Part(("gradients",), "c6", ("gradients",)),
    Part(("optimizer", "optim."), "c2", ("master", "optimizer")),
    Part(("activations", "activ."), "c3", ("activations",)),
    Part(("logits and scratch", "logits"), "c8", ("logits", "temporaries")),
)  # fmt: skip
# Seconds of a step, one by one, and in groups.
SECONDS = (
    Part(("compute",), "compute", ("compute",)),
    Part(("recomputation",), "compute", ("recompute",), hatched=True),
    Part(("kernel launches",), "compute", ("launches",), hatched=True),
    Part(("exposed TP",), "c4", ("exposed tensor",), hatched=True),
    Part(("exposed CP",), "c4", ("exposed context",), hatched=True),
    Part(("exposed DP",), "c4", ("exposed data",), hatched=True),
    Part(("exposed PP",), "c4", ("hops",), hatched=True),
    Part(("bubble",), "accent", ("bubble",), hatched=True),
    Part(("uneven stages",), "accent", ("imbalance",), hatched=True),
    Part(("update",), "c2", ("update",)),
    Part(("host copies",), "c4", ("exposed host",), hatched=True),
    Part(("host",), "muted", ("host",), hatched=True),
    Part(("stragglers",), "muted", ("stragglers",), hatched=True),
)  # fmt: skip
COMMUNICATION = Part(("communication",), "c4", ("exposed tensor", "exposed context", "exposed data", "hops"), True)
BUBBLE = Part(("bubble, uneven stages", "bubble"), "accent", ("bubble", "imbalance"), True)
GROUPS = (
    Part(("compute",), "compute", ("compute", "launches")),
    SECONDS[1],
    COMMUNICATION,
    BUBBLE,
    Part(("rest, optimizer", "rest"), "c8", ("update", "exposed host", "host", "stragglers")),
)


def sizes(parts: tuple[Part, ...], amounts: Mapping[str, float]) -> dict[Part, float]:
    """How much there is of each."""
    return {part: part.of(amounts) for part in parts}


def bar(
    place: tuple[float, float, float, float],
    amounts: Mapping[Part, float],
    words: Callable[[float], str],
    mark: str,
    opacity: float = 1.0,
) -> tuple[str, float]:
    """Parts side by side, and where they end. place: left, top, height, and CSS pixels per unit; words: for an amount;
    mark: what the names of the marks begin with. Hatched parts can grow."""
    x, y, height, scale = place
    marks = []
    for part, size in amounts.items():
        box, name, title = (x, y, size * scale, height), f"{mark} {part.name}", f"{part.name}: {words(size)}"
        if part.hatched:
            marks.append(hatch.window(box, part.colour, (name, f"stripes {part.name}"), title))
        else:
            marks.append(svg.rect(*box, part.colour, opacity=opacity * part.opacity, title=title, mark=name))
        x += size * scale
    return "".join(marks), x
