"""The exercises of `zero`, easy to hard: what each stage splits, what that sends, and what goes wrong with shards."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.zero import lab, matrices, offload, shards, stages, states, wire

EXERCISES = easy_to_hard(stages, states, wire, offload, shards, matrices, lab)
