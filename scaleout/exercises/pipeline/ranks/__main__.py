"""The command: `split_backward` where the first file has that function, `pipeline_step` in every other case."""

from scaleout.exercises.pipeline.ranks import CHECK, SPLIT
from scaleout.exercises.ranks.check import main

main(CHECK, SPLIT)
