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
    if code == 0 and sys.argv[1:2] == ["replay"] and _has_loader(sys.argv[2:]):
        from feedline import _replay_command

        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _replay_command.run(sys.argv[2:])
    return code


def _has_loader(arguments: list[str]) -> bool:
    is_help = bool({"-h", "--help"} & set(arguments))
    return not is_help and any(argument.split("=")[0] == "--loader" for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
