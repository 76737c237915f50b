"""The exercises of rung 01, easy to hard: what a training run holds in memory."""

from scaleout.exercises import memory_activations, memory_fit, memory_lab, memory_states

_ALL = (
    *memory_states.EXERCISES,
    *memory_activations.EXERCISES,
    *memory_fit.EXERCISES,
    *memory_lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
