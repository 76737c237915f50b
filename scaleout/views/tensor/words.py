"""What the view `tensor` says: its sentence, the law, why a join is wrong, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.choices import NAMES


def sentence(setting, values: dict) -> str:
    return f"{NAMES[setting.model]} on {setting.tp} GPUs: x"


def law(setting, values: dict) -> list[str]:
    return ["a", "b", "c"]


def troubles(setting) -> dict[str, str]:
    return {join.half: join.reason for join in setting.block.joins if not join.legal}


def slips() -> list[tuple[float, str]]:
    return [
        (1, "one for the whole block"),
        (2, "the forward's alone: the backward needs as many"),
        (6, "one for each of Q, K, V and the other three"),
        (8, "one for each cut matrix in the forward, and one in the backward"),
        (12, "one for each of six matrices, both ways"),
    ]
