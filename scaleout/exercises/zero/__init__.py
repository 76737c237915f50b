"""The exercises of `zero`, easy to hard: what each stage shards, what it communicates, and what goes wrong."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.zero import lab, offload, shards, stages, states, wire

EXERCISES = easy_to_hard(stages, states, wire, offload, shards, lab)
