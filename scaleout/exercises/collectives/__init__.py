"""The exercises of rung 10, easy to hard: ring all-reduce, and why bandwidth dominates it."""

from scaleout.exercises.collectives import cost, lab, ring, time, volume

_ALL = (
    *volume.EXERCISES,
    *time.EXERCISES,
    *ring.EXERCISES,
    *cost.EXERCISES,
    *lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
