"""Which lever to move in the view `pipeline`: each is tried before it is named."""

from __future__ import annotations

from dataclasses import replace


def advice(setting) -> str:
    return ""
