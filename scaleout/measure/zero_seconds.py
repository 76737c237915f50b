"""Seconds of a step of ZeRO's ways on the machine that labs/calibrate.py measured: what the lab sets beside its own.

Products of matrices at the measured rate, messages one after another by the measured lines, the update at the rate at
which memory is copied. Nothing is hidden behind anything, and what is no product (norms, softmax, Python) is left out.
"""

from __future__ import annotations

from scaleout.collectives.zero import Message
from scaleout.measure.zero import predicted_messages, program
from scaleout.parallel.zero_ways import DEEPSPEED
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.transformer import flops, total_parameters
from scaleout.timing import ddp, ddp_seconds, profile
from scaleout.timing.zero import profile_seconds, update_bytes

FP32 = 4


def by_profile(found: dict, o, ranks: int, via: str) -> float | None:
    """Seconds of a step of a way with AdamW. found: the profile of the machine with as many ranks. None for DeepSpeed,
    whose buckets are not counted here. ValueError where the profile lacks a rate or a collective."""
    if via in DEEPSPEED:
        return None
    work = o.accumulation * sum(flops(o.shape, o.micro_batch, o.seq).values())
    share = total_parameters(o.shape) / (ranks if program(via)[1] else 1)
    stepped = share * update_bytes(Recipe("fp32")) / found["copy_bytes_per_second"]
    return work / profile.rate(found, "fp32") + profile_seconds(sends(o, ranks, via), found) + stepped


def sends(o, ranks: int, via: str) -> tuple[Message, ...]:
    """What a step sends, call by call: an all-reduce a bucket of DDP's, a broadcast a tensor that was dealt."""
    if ranks == 1:
        return ()
    layers = ddp_seconds.layers(o.shape, o.micro_batch, o.seq, 1.0, FP32)
    calls = {"all_reduce": len(ddp.buckets(layers)), "broadcast": len(tensors(o.shape))}
    phases = {"all_gather": "update", "broadcast": "update"}
    return tuple(
        Message(phases.get(name, "backward"), name, "weights" if name in phases else "gradients", one.bytes,
                one.count or calls[name])
        for name, one in predicted_messages(o.shape, ranks, via, o.accumulation).items())
