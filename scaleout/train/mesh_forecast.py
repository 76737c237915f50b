"""What a job by a layout should take in bytes and seconds, beside what it took: `forecast`, for strategy "mesh".

Bytes are those of each stage's fullest rank. Seconds are `timing.job`'s, on the machine that labs/calibrate.py
measured among as many ranks as each group has; on a CPU nothing overlaps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

from scaleout.measure import layout_bytes
from scaleout.memory import mesh_torch
from scaleout.records import profiles
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import flops, total_parameters
from scaleout.timing import machine
from scaleout.timing.job import Step, step_on, update_bytes
from scaleout.timing.profile import rate
from scaleout.train import forecast
from scaleout.train.batches import windows


def memory(lab, job):
    """Predict the peak of each stage in the `runner.Lab`, and return {kind: bytes} as measured: after the run."""
    s, o, trainer = lab.s, lab.o, job.trainer
    layout = o.layout_on(s.world)
    if o.precision != "fp32" or o.checkpointing != "none":
        lab.skip("memory: by a layout it is predicted for fp32 without recomputation")
        return {}
    batch, recipe = o.batch // layout.dp // layout.m, forecast.recipe(o, "mesh", s.world)
    batches = list(islice(cycle(job.held_out), layout.m))
    trainer.step(batches, 0.0)
    seen = layout_bytes.peak(trainer, batches)
    peaks = s.gathered((trainer.way.at["pp"], sum(seen.values())))
    for rank in range(layout.pp):
        name = f"peak bytes of pipeline rank {rank}" if layout.pp > 1 else "peak bytes"
        wanted = mesh_torch.peak(o.shape, batch, o.seq, recipe, layout, rank)
        lab.predict(name, wanted, max(size for stage, size in peaks if stage == rank))
    return seen


def seconds(lab, job):
    """Predict the step time in the `runner.Lab`."""
    s, o = lab.s, lab.o
    layout = o.layout_on(s.world)
    known = profiles.several(o.machine, s.device.type, machine.groups(layout), s.world)
    reason = profiles.lacking(known, s.world) or forecast.too_few(job)
    if not reason and not forecast.fits(s, o):
        reason = "no room for a plain copy of the model, whose speed the prediction stands on"
    if reason:
        lab.skip(f"seconds per step: {reason}")
        return
    forecast.predict_seconds(lab, job, predicted(s, o, job, layout, known))


def predicted(s, o, job, layout: Layout, known: dict[int, dict]) -> Step:
    """The step on the machine of these profiles, {processes: profile}. How fast a rank computes is seen in a plain copy
    of the whole model, which each steps by itself on its replica's share, all at once."""
    base, (replica, replicas) = known[s.world], o.share(s.rank, s.world)
    window = windows(job.text.train, job.order.starts(job.done, o.batch, replica, replicas), o.seq)
    recipe = forecast.recipe(o, "mesh", s.world)
    update = total_parameters(o.shape) * update_bytes(recipe) / base["copy_bytes_per_second"]
    compute = max(forecast.alone_seconds(s, o, job.trainer.setup, window) - update, 1e-9)
    reached = sum(flops(o.shape, o.batch // replicas, o.seq, o.checkpointing).values()) / compute
    program = replace(MEASURED, data_overlap=s.device.type == "cuda", moves=1.0, update_passes=1.0)
    task = Job(
        o.shape,
        o.seq,
        machine.device_of(base),
        cluster(1, s.world),
        o.batch // layout.dp // layout.m,
        layout,
        recipe,
        program,
    )
    return step_on(task, machine.from_profiles(task, known, reached / rate(base, task.dtype)))
