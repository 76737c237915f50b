"""The exercises of `ddp`, easy to hard: DDP, and where its bottleneck is."""

from scaleout.exercises.ddp import buckets, hang, lab, overlap, tokens, traces, wire
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(wire, overlap, buckets, tokens, traces, hang, lab)
