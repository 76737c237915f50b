"""Check the lab exercises of `pipeline` on real processes: the file's function says which one it is.

python -m scaleout.exercises.pipeline.ranks step.py       pipeline_step, on 2 and 3 processes: `step`
python -m scaleout.exercises.pipeline.ranks split.py      split_backward, on 2 processes: `split`
"""

from scaleout.exercises.pipeline.ranks.split import CHECK as SPLIT
from scaleout.exercises.pipeline.ranks.step import CHECK

__all__ = ["CHECK", "SPLIT"]
