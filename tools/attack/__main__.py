"""`python tools/attack`: see `python tools/attack --help`."""

import sys
from pathlib import Path

# Python adds this folder to the path when it is run as a script; the package is in its parent.
sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.command import main

sys.exit(main())
