"""Check the lab exercises of `fsdp` on two real processes: the file's function says which one it is.

python -m scaleout.exercises.fsdp.ranks step.py        sharded_step: `step`
python -m scaleout.exercises.fsdp.ranks ahead.py       prefetched: `ahead`
"""

from scaleout.exercises.fsdp.ranks.ahead import CHECK as AHEAD
from scaleout.exercises.fsdp.ranks.step import CHECK

__all__ = ["AHEAD", "CHECK"]
