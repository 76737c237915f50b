"""The exercises of rung 10, easy to hard: ring all-reduce, and why bandwidth dominates it."""

from scaleout.exercises import (
    collectives_cost,
    collectives_lab,
    collectives_ring,
    collectives_time,
    collectives_volume,
)

_ALL = (
    *collectives_volume.EXERCISES,
    *collectives_time.EXERCISES,
    *collectives_ring.EXERCISES,
    *collectives_cost.EXERCISES,
    *collectives_lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
