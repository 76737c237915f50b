"""The command: the check whose function the first file has, that of `finish` where it has none of them."""

import sys
from contextlib import suppress

from scaleout.exercises.mesh.ranks import ABSENT, CHECK, SAMPLES
from scaleout.exercises.ranks.check import main
from scaleout.exercises.ranks.guard import inspect

chosen = CHECK
for check in (ABSENT, SAMPLES):
    with suppress(ValueError, IndexError):
        inspect(sys.argv[1], check.function)
        chosen = check
main(chosen)
