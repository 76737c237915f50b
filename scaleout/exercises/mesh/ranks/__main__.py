"""The command: the check whose function the first file has, that of `finish` where it has none of them."""

from scaleout.exercises.mesh.ranks import ABSENT, CHECK, SAMPLES
from scaleout.exercises.ranks.check import main

main(CHECK, ABSENT, SAMPLES)
