"""`python -m scaleout.fit`."""

import sys

from scaleout.fit.command import main

sys.exit(main())
