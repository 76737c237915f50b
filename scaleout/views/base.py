"""The choices of a reader in a view as one value: fields by the names of controls, and cached results.

    class Setting(base.Setting):     # frozen dataclasses, like this one
        ranks: int
        batch: int

        @cached_property
        def job(self) -> Job: ...    # what follows

`Setting.of(params)` is what the view's clean parameters mean, `setting.other(batch=2)` a setting to compare it with.
`Setting.asked` makes of a function of a setting one of parameters, as a view offers it.
Equal values are one object as long as its class remembers it, with all that has been found of it: a redraw at the other
width, at the next moment of a play or after a step back asks for nothing twice. A view needs no other cache of what
belongs to one setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache, wraps
from typing import Any, ClassVar, Self, TypeVar

from scaleout.memory import allocator
from scaleout.spec.devices import DEVICES, Device
from scaleout.spec.transformer import PRESETS, Shape

Result = TypeVar("Result")
REMEMBERED = 64  # settings of a view, those that a search for advice tries among them
KEPT = 512  # results of functions that stay with one of them


@dataclass(frozen=True)
class Setting:
    """Values of controls. remembered: settings of the class that are kept, each with what was found of it."""

    _remembered: ClassVar[Callable[[Any], Any]]

    def __init_subclass__(cls, remembered: int = REMEMBERED) -> None:
        cls._remembered = staticmethod(lru_cache(maxsize=remembered)(lambda setting: setting))

    @classmethod
    def of(cls, params: dict) -> Self:
        """From clean parameters, and more that is ignored. A select's text becomes a number where the field is one."""
        values = {field.name: params[field.name] for field in fields(cls) if field.name in params}
        numbers = {field.name for field in fields(cls) if field.type == "int"}
        return cls._remembered(
            cls(**{name: int(value) if name in numbers else value for name, value in values.items()})
        )

    @classmethod
    def asked(cls, function: Callable[..., Result]) -> Callable[..., Result]:
        """A function of a setting as one of clean parameters, as a view offers it."""
        return lambda params, *more: function(cls.of(params), *more)

    def other(self, **changes) -> Self:
        """The setting that differs from this one by so much."""
        return type(self)._remembered(replace(self, **changes))


@dataclass(frozen=True)
class ModelSetting(Setting):
    """A model of `spec.transformer.PRESETS` and a GPU of `spec.devices.DEVICES`, by name."""

    model: str
    device: str

    @property
    def shape(self) -> Shape:
        return PRESETS[self.model]

    @property
    def card(self) -> Device:
        return DEVICES[self.device]

    @property
    def usable(self) -> int:
        """Bytes that tensors may take on a GPU."""
        return allocator.usable(self.card.memory_bytes)


@dataclass(frozen=True)
class TextSetting(ModelSetting):
    """The same, and how long a sequence is."""

    seq: int

    @property
    def tokens(self) -> int:
        """Tokens of a sequence: no more than a table of positions has rows."""
        return self.shape.tokens(self.seq)


def kept(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function of a setting, and of more that can be hashed, whose results stay with the setting."""

    @wraps(function)
    def remembering(setting: Setting, *more) -> Result:
        results = setting.__dict__.setdefault("_kept", {})
        key = (function, *more)
        if key not in results:
            if len(results) >= KEPT:
                results.clear()
            results[key] = function(setting, *more)
        return results[key]

    return remembering
