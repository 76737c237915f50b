"""The exercises of `tensor`, easy to hard: where to split a matrix, what that sends, and what a rank then has."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.tensor import cuts, diagnose, heads, lab, tokens, wire

EXERCISES = easy_to_hard(cuts, wire, tokens, heads, diagnose, lab)
