"""The lever that is worth trying: changes of a setting, each tried before it is named.

A view's `levers` says which changes there are, the mildest first, what makes one worth naming, and what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from scaleout.views.base import Setting

Change = tuple[str, dict]  # words, and the fields of the setting that they change


@dataclass(frozen=True)
class Lever:
    """words: for it; change: the fields that it changes; after: the setting that it leads to; gives: what is better
    there; aside: what is said behind its name."""

    words: str
    change: dict
    after: Any
    gives: str = ""
    aside: str = ""

    def giving(self, gives: str, aside: str = "") -> Lever:
        """With words for what it gives."""
        return replace(self, gives=gives, aside=aside)


def tried(setting: Setting, changes: Iterable[Change]) -> Iterator[Lever]:
    """Each change with the setting that it leads to."""
    return (Lever(words, change, setting.other(**change)) for words, change in changes)


def first(levers: Iterable[Lever], worth: Callable, gives: Callable[..., str] = lambda trial: "") -> Lever | None:
    """The first whose setting is worth it, with what it gives, in words; None where none is."""
    return next((lever.giving(gives(lever.after)) for lever in levers if worth(lever.after)), None)


def sentence(lever: Lever | None, otherwise: str) -> str:
    """What ends the sentence of a view; otherwise: what is said where there is no lever."""
    return f"Try **{lever.words}**{lever.aside}: {lever.gives}." if lever else otherwise
