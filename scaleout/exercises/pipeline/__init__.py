"""The exercises of `pipeline`, easy to hard: bubbles, 1F1B, and what makes a real step longer."""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.pipeline import bubble, costs, hang, lab, orders, waits

EXERCISES = easy_to_hard(bubble, orders, costs, waits, hang, lab)
