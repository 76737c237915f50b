"""A GPU as a tank, as plain data: what it holds in layers at each moment of a step, and the bytes of one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum

from scaleout.draw.scale import Scale


@dataclass(frozen=True)
class Layer:
    """A kind of bytes: its colour, how strong that is, and words for it, the longest first."""

    key: str
    fill: str
    words: tuple[str, ...]
    opacity: float = 1.0


@dataclass(frozen=True)
class Frame:
    """A moment: its name, a short one, and bytes by layer."""

    name: str
    short: str
    held: dict[str, int]

    @cached_property
    def total(self) -> float:
        return fsum(self.held.values())


@dataclass(frozen=True)
class Ruler:
    """Bytes of one parameter: by layer those of the whole step and those that are there now; `each` bytes of the tank
    are one byte of every parameter."""

    whole: dict[str, float]
    now: dict[str, float]
    each: float


@dataclass(frozen=True)
class Own:
    """The memory that a reader's run used: bytes of one parameter at its update, words, whether it is on the scale."""

    each: float
    words: tuple[str, ...]
    drawn: bool = True


@dataclass(frozen=True)
class Tank:
    """The data of the picture. now, peak: numbers of frames. limits: bytes of the device and of the part that tensors
    can fill; `limit` says both. title: words above; device: below. empty: the picture without the contents. own: the
    reader's."""

    layers: tuple[Layer, ...]
    frames: tuple[Frame, ...]
    now: int
    peak: int
    limits: tuple[int, int]
    limit: tuple[str, ...]
    title: str
    device: str
    ruler: Ruler
    scale: Scale
    giga: int
    empty: bool = False
    own: Own | None = None
