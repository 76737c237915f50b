"""The exercises of `collectives`, easy to hard: ring all-reduce, and why bandwidth dominates it."""

from scaleout.exercises.collectives import cost, lab, ring, time, volume
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(volume, time, ring, cost, lab)
