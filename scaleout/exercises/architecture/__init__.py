"""The exercises of `architecture`, easy to hard: who slows a run down, and what failures, saves and placement cost.

`failures` has counts, rates and effective time, `stories` what disturbs steps, `placement` where ranks stand and what
feeds them, `gauges` wrong utilizations, `recorded` the lab's traces, `rules` functions on traces.
"""

from scaleout.exercises.architecture import failures, gauges, placement, recorded, rules, stories
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(failures, stories, placement, recorded, gauges, rules)
