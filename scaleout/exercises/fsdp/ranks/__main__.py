"""The command: `prefetched` where the first file has that function, `sharded_step` in every other case."""

from scaleout.exercises.fsdp.ranks import AHEAD, CHECK
from scaleout.exercises.ranks.check import main

main(CHECK, AHEAD)
