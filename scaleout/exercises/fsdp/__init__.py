"""The exercises of rung 06, easy to hard: what FSDP's choices cost, and which to make when."""

from scaleout.exercises.fsdp import fallback, lab, time, wire, wrap

_ALL = (
    *wrap.EXERCISES,
    *wire.EXERCISES,
    *time.EXERCISES,
    *fallback.EXERCISES,
    *lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
