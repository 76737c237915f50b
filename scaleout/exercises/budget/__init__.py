"""The exercises of `budget`, easy to hard: what a run costs with its answers, samples, and text that a model writes.

`costs` has FLOPs of training and of answers, `samples` pass@k, `tails` temperature and truncation, `cluster` who writes
and who waits, `lab` the lab's recorded run.
"""

from scaleout.exercises.budget import cluster, costs, lab, samples, tails
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(costs, samples, tails, cluster, lab)
