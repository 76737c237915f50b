"""The exercises of `capstone`, easy to hard: a job that scales, survives and is paid for, read off its own figures."""

from scaleout.exercises.capstone import bends, curve, data, faults, lab, predict
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(curve, faults, data, predict, bends, lab)
