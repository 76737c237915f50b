"""Predicted step time of each implementation of ZeRO on the machine that labs/calibrate.py measured.

Compute and the update are those of a job in eager torch (`timing.job`), and so is the exchange where the profile has
measured the implementation whole. Else its collectives follow one after another, each with the measured alpha and beta.
Nothing is hidden: gloo's threads share the cores with compute.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from scaleout.collectives.zero import Message
from scaleout.measure.zero import predicted_messages, program
from scaleout.parallel.zero_ways import DEALT, DEEPSPEED, HAND
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.topology import cluster
from scaleout.timing import machine
from scaleout.timing.job import step_on


def by_profile(profile: dict, o, ranks: int, via: str) -> float | None:
    """Step time of an implementation with AdamW. profile: of the machine with as many ranks. None for DeepSpeed, whose
    buckets are not counted here. ValueError if the profile lacks a rate or a collective."""
    if via in DEEPSPEED:
        return None
    job = Job(
        o.shape,
        o.seq,
        machine.device_of(profile),
        cluster(1, 1),
        o.micro_batch,
        Layout(micro_batches=o.accumulation),
        Recipe("fp32"),
        MEASURED,
    )
    stage = program(via)[1]
    whole = replace(
        job,
        cluster=cluster(1, ranks),
        layout=Layout(dp=ranks, zero=stage, micro_batches=o.accumulation),
        program=replace(MEASURED, flat=via in HAND),
    )
    rank = machine.from_profiles(whole, {ranks: profile})
    if rank.exchange and via not in DEALT:
        return step_on(whole, rank).seconds
    alone = step_on(job, machine.from_profiles(job, {1: profile}))
    update = alone.parts["update"]
    owned = update / (ranks if stage else 1)
    sent = sends(o, ranks, via, len(alone.timeline.message_bytes))
    return alone.seconds - update + owned + message_seconds(sent, profile)


def message_seconds(sent: tuple[Message, ...], profile: dict) -> float:
    """Seconds of messages one after another, by the lines of a profile."""
    price = machine.by_profile(profile)
    return fsum(message.count * price(message.collective, message.bytes / message.count) for message in sent)


def sends(o, ranks: int, via: str, buckets: int) -> tuple[Message, ...]:
    """What a step sends, call by call: an all-reduce for each of DDP's buckets, a broadcast for each tensor that was
    dealt."""
    if ranks == 1:
        return ()
    calls = {"all_reduce": buckets, "broadcast": len(tensors(o.shape))}
    phases = {"all_gather": "update", "broadcast": "update"}
    return tuple(
        Message(
            phases.get(name, "backward"),
            name,
            "weights" if name in phases else "gradients",
            call.bytes,
            call.count or calls[name],
        )
        for name, call in predicted_messages(o.shape, ranks, via, o.accumulation).items()
    )
