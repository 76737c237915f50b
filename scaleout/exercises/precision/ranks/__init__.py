"""Check the lab exercises of `precision` on real processes: the file's function says which one it is.

python -m scaleout.exercises.precision.ranks scaled.py       sharded_step, on 2 and 3 processes: `scaled`
python -m scaleout.exercises.precision.ranks master.py       master_step, on 2 processes: `master`
"""

from scaleout.exercises.precision.ranks.master import CHECK as MASTER
from scaleout.exercises.precision.ranks.scaled import CHECK

__all__ = ["CHECK", "MASTER"]
