"""Ends a process that user code forks inside a worker once it returns from that code: it is not the
worker."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import NoReturn

from feedline import _native

__all__ = ["end_child"]


def end_child(inside: str, raised: BaseException) -> NoReturn:
    """Ends a process that was forked `inside` a worker, as Python ends a process that raises."""
    code = 1
    with contextlib.suppress(Exception):
        if isinstance(raised, _native.ForkReturned):
            text = (
                f"feedline: process {os.getpid()}, which was forked inside {inside}, returned from the code "
                "that forked it and was ended. End such a process with os._exit()"
            )
            print(text, file=sys.stderr)
        elif isinstance(raised, SystemExit):
            code = _exit_code(raised.code)
        else:
            traceback.print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _exit_code(given: object) -> int:
    if given is None:
        return 0
    if isinstance(given, int):
        return given & 0xFF
    print(given, file=sys.stderr)
    return 1
