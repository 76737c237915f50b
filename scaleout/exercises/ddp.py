"""The exercises of rung 02, easy to hard: DDP, and where its bottleneck is."""

from scaleout.exercises import ddp_buckets, ddp_bytes, ddp_hang, ddp_lab, ddp_overlap, ddp_traces

_ALL = (
    *ddp_bytes.EXERCISES,
    *ddp_overlap.EXERCISES,
    *ddp_buckets.EXERCISES,
    *ddp_traces.EXERCISES,
    *ddp_hang.EXERCISES,
    *ddp_lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
