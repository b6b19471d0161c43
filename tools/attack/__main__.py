"""`python tools/attack`: see `python tools/attack --help`."""

import sys
from pathlib import Path

# Python puts this folder itself on the path when it is run as a script; the package is below its parent.
sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.command import main

sys.exit(main())
