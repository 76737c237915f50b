"""Check the lab exercises of `recompute` on real processes: the file's function says which one it is.

python -m scaleout.exercises.recompute.ranks again.py       again, on 1 and 2 processes: `again`
python -m scaleout.exercises.recompute.ranks routed.py      routed, on 2 processes: `routed`
"""

from scaleout.exercises.recompute.ranks.again import CHECK
from scaleout.exercises.recompute.ranks.routed import CHECK as ROUTED

__all__ = ["CHECK", "ROUTED"]
