"""The exercises of `kernels`, easy to hard: what kernels move, how a softmax is merged, and which unit decides.

`moved` has bytes and FLOPs, `online` the merging of partial softmaxes, `clocks` cycles of units and what FP8 gains of
them, `remedies` FP8 in a step and the goal itself, `runs` the lab's recorded faults, `lab` keys on two ranks, with its
checker in `ranks`.
"""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.kernels import clocks, lab, moved, online, remedies, runs

EXERCISES = easy_to_hard(moved, online, clocks, remedies, runs, lab)
