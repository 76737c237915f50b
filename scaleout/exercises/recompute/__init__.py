"""The exercises of `recompute`, easy to hard: what it frees and what it costs, when not to, and what goes wrong in it.
"""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.recompute import beside, choose, flops, gradients, lab, peaks, segments, tiles

EXERCISES = easy_to_hard(flops, peaks, tiles, segments, beside, gradients, choose, lab)
