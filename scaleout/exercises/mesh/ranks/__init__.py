"""Check the lab exercises of `mesh` on four real processes: the file's function says which one it is.

python -m scaleout.exercises.mesh.ranks finish.py        finish: `finish`
python -m scaleout.exercises.mesh.ranks samples.py       my_samples: `samples`
python -m scaleout.exercises.mesh.ranks absent.py        absent: `absent`
"""

from scaleout.exercises.mesh.ranks.absent import CHECK as ABSENT
from scaleout.exercises.mesh.ranks.finish import CHECK
from scaleout.exercises.mesh.ranks.samples import CHECK as SAMPLES

__all__ = ["ABSENT", "CHECK", "SAMPLES"]
