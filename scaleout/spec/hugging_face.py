"""The language model of a config.json that a reader pastes into a page, if the book can price it.

`Shape.from_config` takes models of every head, and those that are counted only; `config` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaleout.spec.config import HEADS, architectures, parsed
from scaleout.spec.transformer import Shape, check_priced


def shape(text: str) -> Shape:
    """The shape of a config.json. ValueError, in one line, for what is missing, and for models that no program's memory
    is priced of: those with another head, or with latent attention."""
    config = parsed(text)
    _check_head(config)
    found = Shape.from_config(config)
    try:
        check_priced(found, "transformers")
    except ValueError as error:
        raise ValueError(f"this config.json: {error}") from None
    return found


def _check_head(config: Mapping[str, Any]) -> None:
    """ValueError for a model whose head is another than a language model's: a reward model's, a classifier's, none."""
    languages = tuple(end for end, (width, _) in HEADS.items() if width == "vocabulary")
    wrong = next((name for name in architectures(config) if not name.endswith(languages)), None)
    if wrong:
        raise ValueError(
            f"this config.json is of a {wrong}, whose head is not the vocabulary's: language models "
            f"(...{languages[0]}) are priced, so paste that of the one it was made from"
        )
