"""Whose code a file is: Feedline's, a library's, or the user's."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import warnings
from pathlib import Path
from types import FrameType

__all__ = ["LIBRARIES", "PACKAGE", "users_line", "warn_user"]


def _folders(*paths: str | None) -> tuple[str, ...]:
    """Each folder as given and with symbolic links resolved: a traceback may show either."""
    known = [path for path in paths if path]
    return tuple(dict.fromkeys([*map(os.path.abspath, known), *map(os.path.realpath, known)]))


def _installed() -> list[str]:
    """The folders of installed packages; some virtual environments have a `site` without these functions."""
    found: list[str] = []
    if hasattr(site, "getsitepackages"):
        found += site.getsitepackages()
    if hasattr(site, "getusersitepackages"):
        found.append(site.getusersitepackages())
    return found


PACKAGE = str(Path(__file__).parent)

LIBRARIES = _folders(
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *_installed(),
)


def _users_frame() -> tuple[FrameType | None, int]:
    """The innermost frame of the user's code, and its `stacklevel` for a warning of the caller; None in a
    thread that Feedline started."""
    torch = sys.modules.get("torch")
    ours = tuple(folder + os.sep for folder in (PACKAGE, *getattr(torch, "__path__", ())))
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
        depth += 1
    if frame is None or frame.f_code.co_filename == threading.__file__:
        return None, 1
    return frame, depth


def warn_user(text: str, category: type[Warning], otherwise: tuple[str, int] | None = None) -> None:
    """Warns at the line of the user's code that called Feedline; in a thread that Feedline started, at the
    file and line of `otherwise`."""
    frame, depth = _users_frame()
    if frame is None and otherwise is not None:
        warnings.warn_explicit(text, category, *otherwise)
    else:
        warnings.warn(text, category, stacklevel=depth)


def users_line() -> tuple[str, int]:
    """File and line of the user's code that called Feedline."""
    frame, _ = _users_frame()
    return ("feedline", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
