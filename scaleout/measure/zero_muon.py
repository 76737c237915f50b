"""Muon under ZeRO: the result of each implementation for a sharded matrix, and the communication of its update."""

from __future__ import annotations

import math

import torch

from scaleout.collectives import zero as wire
from scaleout.measure.zero import STATES, Wire, calm, first_share, make, sent
from scaleout.memory.zero import muon_bytes
from scaleout.parallel import parity
from scaleout.parallel.zero_muon import DECAY
from scaleout.parallel.zero_ways import HAND, MUON, MUON_RATE
from scaleout.spec.layout import Layout
from scaleout.spec.muon import matrices
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.transformer import total_parameters

MESSAGES = dict.fromkeys(HAND, "gather") | {"zero-redundancy": "whole"}  # of collectives.zero.muon_messages
STAGES = {"stage-1": 1, "stage-2": 2, "stage-3": 3, "zero-redundancy": 1, "reshard": 3, "rows": 3}
RIGHT = tuple(via for via in MUON if via not in ("one", "reshard", "rows"))  # which are one process's in fp32


def trained(s, o, via, batches) -> dict:
    """A few steps of a way: {"losses", "gradients" of the last step, "weights", "momentum" and "variance" after it},
    "singular": the largest singular value of any matrix's first direction, "sent": bytes a rank sends in an update,
    "calls" in it, "held": {"momentum", "variance": bytes} on rank 0."""
    way, losses, largest = make(s, o, via), [], 0.0
    calm(way.optimizer)
    for share in batches:
        losses.append(way.gradients(share))
        gradients, start = way.whole(gradients=True), way.whole()
        with Wire() as seen:
            way.update()
        largest = largest or singular(start, way.whole(), o.shape)
    results = {
        "losses": losses,
        "gradients": gradients,
        "weights": way.whole(),
        "singular": largest,
        "sent": sent(seen.found, s.world),
        "calls": seen.found,
        "held": bytes_by_kind(s.gathered(way.stored())[0]),
    }
    if via != "rows":  # whose momentum lies with local tensors
        results |= {STATES[kind]: tensors for kind, tensors in merged(way.states()).items()}
    return results


def bytes_by_kind(stored: dict[str, int]) -> dict[str, int]:
    """Bytes of momentum, Muon's and AdamW's, and of variance."""
    return {"momentum": stored["exp_avg"] + stored["momentum_buffer"], "variance": stored["exp_avg_sq"]}


def merged(states: dict) -> dict:
    """AdamW's momentum and Muon's as one state."""
    momenta = states.pop("exp_avg") | states.pop("momentum_buffer")
    return {"exp_avg": momenta} | states


def singular(start: dict, end: dict, shape) -> float:
    """The largest singular value of any matrix's direction in a step: what changed, without weight decay and rate."""
    norms = []
    for name, (rows, columns) in matrices(shape).items():
        moved = (start[name] * (1 - MUON_RATE * DECAY) - end[name]) / (MUON_RATE * max(1, rows / columns) ** 0.5)
        norms.append(torch.linalg.matrix_norm(moved.double(), 2).item())
    return max(norms)


def rows(o, batches, whole_batches, s, vias=MUON) -> dict[str, dict]:
    """{way: {"errors": {what: relative error against one process}, "singular", "calls", "measured", "predicted":
    {figure: number}, "loss"}} of ways, "one" the first. batches, whole_batches: of the steps, on this rank and of all
    together."""
    wanted, table = trained(s, o, "one", whole_batches), {}
    table["one"] = {
        "errors": {},
        "singular": wanted["singular"],
        "calls": {},
        "measured": wanted["held"],
        "loss": wanted["losses"][-1],
        "predicted": muon_bytes(o.shape, Recipe("fp32"), Layout()),
    }
    for via in vias[1:]:
        result = trained(s, o, via, batches)
        errors = {
            "losses": max(abs(s.mean(f) / w - 1) for f, w in zip(result["losses"], wanted["losses"], strict=True))
        }
        errors |= {
            kind: parity.worst(s, result[kind], wanted[kind])
            for kind in ("gradients", "weights", "momentum", "variance")
            if kind in result
        }
        layout = Layout(dp=s.world, zero=STAGES[via])
        predicted = (
            whole_tensors(o.shape, s.world) if via == "zero-redundancy" else muon_bytes(o.shape, Recipe("fp32"), layout)
        )
        if via in MESSAGES:
            predicted["sent"] = predicted_update(o.shape, layout, via)
        table[via] = {
            "errors": errors,
            "singular": result["singular"],
            "calls": result["calls"],
            "measured": result["held"] | {"sent": result["sent"]},
            "predicted": predicted,
        }
    return table


def whole_tensors(shape, ranks: int) -> dict[str, int]:
    """Bytes of momentum and variance on rank 0 where tensors are dealt whole, matrices and the others each by
    themselves."""
    muon, adamw = (
        first_share(
            [math.prod(size) for name, size in tensors(shape).items() if (name in matrices(shape)) == matrix], ranks
        )
        for matrix in (True, False)
    )
    return {"momentum": muon + adamw, "variance": adamw}


def predicted_update(shape, layout: Layout, via: str) -> float:
    """Bytes that a rank sends in an update: new weights where these are whole, and what Muon gathers."""
    program = "ZeroRedundancyOptimizer" if via == "zero-redundancy" else "paper"
    updates = [
        message
        for message in wire.messages(total_parameters(shape), Recipe("fp32"), layout, program)
        if message.phase == "update"
    ]
    return wire.sent([*updates, *wire.muon_messages(shape, Recipe("fp32"), layout, MESSAGES[via], width=4)], layout.dp)
