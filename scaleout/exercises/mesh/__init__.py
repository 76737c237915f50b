"""The exercises of `mesh`, easy to hard: ranks and groups, what an axis sends and sums, silent faults, and which layout
a job takes.

`places`: groups, and which of them span nodes; `batch`: sequences, bubble and ZeRO in a pipeline; `wires`: seconds by
the order of the axes; `stages`: memory of a pipeline's stages; `gradients`: what is summed over which axis; `layouts`:
the choice; `diagnose`: runs that look well; `lab`: what is done on real ranks, checked by `ranks`.
"""

from scaleout.exercises.engine.kinds import easy_to_hard
from scaleout.exercises.mesh import batch, diagnose, gradients, lab, layouts, places, stages, wires

EXERCISES = easy_to_hard(places, batch, wires, stages, gradients, layouts, diagnose, lab)
