"""The exercises of `bottlenecks`, easy to hard: which resource is scarce, by which evidence, and what a remedy gives.

`shares` has parts of a step and what a remedy makes of them, `levers` choices among remedies, `gauges` utilization and
the roofline, `sealed` the lab's recorded runs, `ranks_waiting` the rank that others wait for, `runs` the goal itself.
"""

from scaleout.exercises.bottlenecks import gauges, levers, ranks_waiting, runs, sealed, shares
from scaleout.exercises.engine.kinds import easy_to_hard

EXERCISES = easy_to_hard(shares, levers, gauges, sealed, ranks_waiting, runs)
