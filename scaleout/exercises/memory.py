"""The exercises of rung 01, easy to hard: what a training run holds in memory."""

from scaleout.exercises import memory_states

EXERCISES = memory_states.EXERCISES
