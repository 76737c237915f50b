"""The sizes that the exercises of rung 01 share."""

from __future__ import annotations

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PRECISIONS = ("fp32", "bf16", "bf16-master")
OPTIMIZERS = ("sgd", "momentum", "adamw")


def per_parameter(precision: str, optimizer: str) -> dict[str, float]:
    """Bytes that one trained parameter costs, by kind of state."""
    low = BYTES["fp32" if precision in ("fp32", "autocast-bf16") else "bf16"]
    master = BYTES["fp32"] if precision == "bf16-master" else 0
    moment = low if precision == "bf16" else BYTES["fp32"]
    moments = OPTIMIZERS.index(optimizer)  # none, one, two
    return {"weights": low, "master": master, "gradients": low, "optimizer": moments * moment}


def states(precision: str, optimizer: str) -> float:
    """Bytes of all states of one parameter."""
    return sum(per_parameter(precision, optimizer).values())
