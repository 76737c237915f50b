"""The exercises of `tensor`, easy to hard: where to cut a matrix, what that sends, and what it leaves on a rank."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.tensor import cuts, diagnose, heads, lab, loss, tokens, wire

EXERCISES = easy_to_hard(cuts, wire, tokens, heads, loss, diagnose, lab)
