"""The command: `clip_sharded` where the first file has that function, `zero_step` in every other case."""

from scaleout.exercises.ranks.check import main
from scaleout.exercises.zero.ranks import CHECK, CLIP

main(CHECK, CLIP)
