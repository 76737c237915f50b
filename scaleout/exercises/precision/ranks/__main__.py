"""The command: `master_step` where the first file has that function, `sharded_step` in every other case."""

from scaleout.exercises.precision.ranks import CHECK, MASTER
from scaleout.exercises.ranks.check import main

main(CHECK, MASTER)
