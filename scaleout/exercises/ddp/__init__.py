"""The exercises of rung 02, easy to hard: DDP, and where its bottleneck is."""

from scaleout.exercises.ddp import buckets, hang, lab, overlap, traces, wire

_ALL = (
    *wire.EXERCISES,
    *overlap.EXERCISES,
    *buckets.EXERCISES,
    *traces.EXERCISES,
    *hang.EXERCISES,
    *lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
