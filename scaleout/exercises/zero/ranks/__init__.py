"""Check the lab exercises of `zero` on real processes: the file's function says which one it is.

python -m scaleout.exercises.zero.ranks step.py       zero_step, on 2 and 3 processes: `step`
python -m scaleout.exercises.zero.ranks clip.py       clip_sharded, on 2 and 3 processes: `clip`
"""

from scaleout.exercises.zero.ranks.clip import CHECK as CLIP
from scaleout.exercises.zero.ranks.step import CHECK

__all__ = ["CHECK", "CLIP"]
