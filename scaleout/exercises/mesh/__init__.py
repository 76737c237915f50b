"""The exercises of `mesh`, easy to hard: who stands where, what an axis sends and adds up, what goes wrong unseen, and
which layout a job takes.

`places`: ranks, coordinates, groups; `batch`: sequences, bubble and ZeRO beside a pipeline; `wires`: bytes by axis and
by order; `stages`: memory of a pipeline's ends; `gradients`: what is added up over which axis; `layouts`: the choice;
`diagnose`: runs that look well; `lab`: what is done on real ranks, checked by `ranks`.
"""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.mesh import batch, diagnose, gradients, lab, layouts, places, stages, wires

EXERCISES = easy_to_hard(places, batch, wires, stages, gradients, layouts, diagnose, lab)
