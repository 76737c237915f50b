"""The command: `routed` where the first file has that function, `again` in every other case."""

from scaleout.exercises.ranks.check import main
from scaleout.exercises.recompute.ranks import CHECK, ROUTED

main(CHECK, ROUTED)
