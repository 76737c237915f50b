"""The exercises of rung 01, easy to hard: what a training run holds in memory."""

from scaleout.exercises.memory import activations, fit, lab, states

_ALL = (
    *states.EXERCISES,
    *activations.EXERCISES,
    *fit.EXERCISES,
    *lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
