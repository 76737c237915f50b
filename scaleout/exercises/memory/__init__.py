"""The exercises of `memory`, easy to hard: what a training run holds in memory."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.memory import activations, fit, lab, states, steps

EXERCISES = easy_to_hard(states, activations, fit, steps, lab)
