"""The command line: `feedline` or `python -m feedline`."""

from __future__ import annotations

import signal
import sys

from feedline import _native


def main() -> int:
    # The native code does not return to the interpreter, so Python's handler would never run on Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.run(["feedline", *sys.argv[1:]])
    if code == 0 and sys.argv[1:2] == ["demo"] and not {"-h", "--help"} & set(sys.argv):
        from feedline import _demo

        code = _demo.run()
    return code


if __name__ == "__main__":
    sys.exit(main())
