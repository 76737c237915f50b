"""The exercises of `recompute`, easy to hard: what it frees and costs, when not to, and what goes wrong in it."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.recompute import beside, choose, fits, flops, gradients, lab, peaks, tiles

EXERCISES = easy_to_hard(flops, peaks, fits, tiles, beside, gradients, choose, lab)
