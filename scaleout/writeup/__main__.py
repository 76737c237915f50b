"""`python -m scaleout.writeup`."""

import sys

from scaleout.writeup.document import main

sys.exit(main())
