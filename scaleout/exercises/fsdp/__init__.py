"""The exercises of `fsdp`, easy to hard: what FSDP's choices cost, and when to use which."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.fsdp import fallback, lab, time, wire, wrap

EXERCISES = easy_to_hard(wrap, wire, time, fallback, lab)
