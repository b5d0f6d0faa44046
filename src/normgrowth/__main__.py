"""``python -m normgrowth``: the command line."""

import sys

from normgrowth.cli import main

sys.exit(main())
