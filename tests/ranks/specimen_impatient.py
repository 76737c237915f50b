"""A checker of a lab exercise, the module that CHECKED names, as it is but for its patience: a rank waits 4 s for
another one, where a reader's machine gets 10."""

import os
import runpy
from dataclasses import replace

from scaleout.exercises.ranks import check

main = check.main
check.main = lambda *checks: main(*(replace(one, wait_seconds=min(4, one.wait_seconds)) for one in checks))
runpy.run_module(os.environ["CHECKED"], run_name="__main__", alter_sys=True)
