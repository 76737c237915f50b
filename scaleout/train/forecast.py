"""Predictions of the training job for its Record: time and memory, next to the measurement.

Memory comes from the memory model and from a ledger of steps made after the run. Times come from the machine's profile
(labs/calibrate.py) and from a copy of the model that each rank trains by itself, all ranks at once. So the time of one
rank alone is measured, and communication and waiting are predicted.
"""

import statistics
from dataclasses import replace

import torch

from scaleout.lab import session
from scaleout.measure.fsdp_ledger import measured
from scaleout.memory import allocator
from scaleout.memory.accounts import account
from scaleout.memory.fsdp import fsdp_account
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import total_parameters
from scaleout.train import worlds
from scaleout.train.batches import inputs, windows
from scaleout.train.options import WARMUP
from scaleout.train.trainer import Trainer

ALONE = 6  # steps of the copy, of which the first half are not timed
STATES = 16  # bytes a parameter that a plain copy in fp32 takes with AdamW


def recipe(o, strategy, world):
    """The memory model's words for the job: fused AdamW needs no more room than one tensor at a time, and
    fp16 as much as bf16."""
    mixed = strategy != "fsdp" and o.precision != "fp32"  # fully_shard's dtypes are the Sharding's
    return Recipe(
        precision="autocast-bf16" if mixed else "fp32",
        foreach=False,
        attention=o.attention,
        checkpointing=o.checkpointing,
        buckets="views" if strategy == "ddp" and world > 1 else "none",
    )


def predicted_memory(o, world, device_kind):
    """{kind: bytes} of one rank at the peak of a step of one pass."""
    strategy, batch = o.strategy_on(world), o.batch // world // o.passes(world)
    if strategy == "fsdp":
        peak = fsdp_account(o.shape, batch, o.seq, recipe(o, strategy, world), o.sharding(world), device_kind).peak
    else:
        peak = account(o.shape, batch, o.seq, recipe(o, strategy, world)).peak
    return {kind: size for kind, size in peak.items() if size}


def measured_memory(s, o, trainer, batch):
    """{kind: bytes} of this rank at the peak of a step of one pass, by the ledger. Makes steps: the run is over."""
    sharded = o.strategy_on(s.world) == "fsdp"
    trainer.gradients([batch])
    trainer.update()
    if o.strategy_on(s.world) == "ddp" and s.world > 1:  # DDP's buckets stay; gradients are views of them
        trainer.gradients([batch])
        trainer.buckets = {i: p.grad for i, p in enumerate(trainer.parameters)}
        trainer.optimizer.zero_grad(set_to_none=True)
    peak, _ = measured(trainer, batch)
    sizes = {}
    for kind, size in peak.items():
        kind = "gradients" if kind == "whole gradients" and not sharded else kind
        sizes[kind] = sizes.get(kind, 0) + size
    return {kind: size for kind, size in sizes.items() if size}


def memory(lab, job):
    """Predict every kind at the peak, and their sum, in the `runner.Lab`, and return {kind: bytes} as measured.

    The ledger sees operations, of which a compiled block shows none: its step runs uncompiled, and takes more.
    """
    s, o = lab.s, lab.o
    if o.offload:
        lab.skip("memory by kind: offloaded shards are beyond the ledger")
        return {}
    wanted = predicted_memory(o, s.world, s.device.type)
    if o.compile and not room(s, sum(wanted.values())):
        lab.skip(
            f"memory by kind: the ledger's step runs uncompiled, and its {sum(wanted.values()) / 1e9:,.1f} GB are more "
            "than the device has"
        )
        return {}
    with torch.compiler.set_stance("force_eager"):
        seen = measured_memory(s, o, job.trainer, job.held_out[0])
    lab.predict("peak bytes", sum(wanted.values()), sum(seen.values()))
    for kind in {**wanted, **seen}:
        lab.predict(f"{kind} bytes at the peak", wanted.get(kind, 0), seen.get(kind, 0))
    lab.skip(
        o.compile
        and "memory by kind of compiled blocks: the ledger's step ran uncompiled; what the compiled steps took is the "
        "allocator's peak, on a GPU"
    )
    lab.check_prediction("peak within 2% of the prediction", sum(wanted.values()), sum(seen.values()))
    return seen


def alone_seconds(s, o, setup, window):
    """Step time of a plain copy of the model on this rank's share, all ranks at once; that of the slowest rank."""
    single = replace(s, rank=0, world=1)
    copy = Trainer(single, replace(setup, strategy="one"))
    batches, spent = inputs(window, s.device, o.passes(s.world)), []
    for _ in range(ALONE):
        s.barrier()
        start = s.clock()
        copy.step(batches, o.lr)
        spent.append(s.clock() - start)
    return s.largest(statistics.median(spent[ALONE // 2 :]))


def room(s, size):
    """Whether `size` bytes are within a GPU's usable memory, on every rank. A CPU can swap to disk."""
    return s.device.type == "cpu" or s.agree(allocator.fits(size, torch.cuda.mem_get_info(s.device)[1]))


def fits(s, o):
    """Whether twice the states of a plain copy of the model fit into the free memory."""
    if s.device.type == "cpu":
        return True
    session.reset_allocator(s)
    return s.agree(2 * STATES * total_parameters(o.shape) < torch.cuda.mem_get_info(s.device)[0])


def too_few(job):
    """Why the steps of this attempt have no median; "" where they have one."""
    return f"this attempt made only {len(job.seconds)} steps" if len(job.seconds) <= WARMUP else ""


def predict_seconds(lab, job, guess):
    """Predict the step time and the rate of a `timing.job.Step`, and return the measured step time."""
    middle = statistics.median(job.seconds[WARMUP:])
    lab.predict(worlds.SECONDS, guess.seconds, middle)
    lab.predict(worlds.RATE, guess.tokens_per_second, lab.o.batch * lab.o.seq / middle)
    return middle


def seconds(lab, job):
    """Predict the step time in the `runner.Lab`."""
    s, o, profile = lab.s, lab.o, lab.profile
    reason = (
        too_few(job)
        or (profile is None and "no machine profile (labs/calibrate.py at this number of processes)")
        or (not fits(s, o) and "no memory for a plain copy of the model, which the prediction needs")
    )
    if reason:
        lab.skip(f"seconds per step: {reason}")
        return
    window = windows(job.text.train, job.order.starts(job.done, o.batch, s.rank, s.world), o.seq)
    lone, single = worlds.Run("strong", 1, worlds.ONE, o.batch // s.world), profile | {"world": 1}
    share = worlds.share_of(lone, o, single, alone_seconds(s, o, job.trainer.setup, window))
    run = worlds.Run("strong", s.world, o.strategy_on(s.world), o.batch)
    guess, bare = worlds.predict(run, o, profile, share), worlds.predict(lone, o, single, share)
    middle = predict_seconds(lab, job, guess)
    if s.world > 1:
        alone = bare.seconds - bare.parts["update"] + guess.parts["update"]
        lab.predict(worlds.BEYOND, guess.seconds - alone, middle - alone)


def beside(lab, job, seconds, memory):
    """Predict time and memory in the `runner.Lab`, by two functions of it and of the job, and return {kind: bytes} at
    the peak; collective, after the run.

    What goes wrong here goes wrong on all ranks alike, after hours of training perhaps: it is said in the Record, and
    does not cost it.
    """
    peaks = session.allocator(lab.s, "allocator: ")
    try:
        seconds(lab, job)
        return memory(lab, job) | peaks
    except (RuntimeError, NotImplementedError, ValueError) as error:
        lab.skip(f"prediction: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return peaks
