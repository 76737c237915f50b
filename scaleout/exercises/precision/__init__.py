"""The exercises of `precision`, easy to hard: where formats end, what a loss scale does, what few bits lose, and which
numbers take which format.
"""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.precision import diagnose, ends, fp8, half, lab, rounding, scale, sums

EXERCISES = easy_to_hard(ends, scale, sums, half, fp8, rounding, diagnose, lab)
