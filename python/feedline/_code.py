"""Whose code a file is: Feedline's own, a library's, or the user's."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from pathlib import Path

__all__ = ["LIBRARIES", "PACKAGE", "is_in"]


def _folders(*paths: str | None) -> tuple[str, ...]:
    """Each folder as it was found and with symbolic links resolved: a stack may show either."""
    known = [path for path in paths if path]
    return tuple(dict.fromkeys([*map(os.path.abspath, known), *map(os.path.realpath, known)]))


def _installed() -> list[str]:
    """Where packages are installed; some virtual environments replace `site` by one without these calls."""
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


@functools.lru_cache(maxsize=1024)
def is_in(path: str, *folders: str) -> bool:
    """Whether a file lies in one of the folders."""
    return path.startswith(tuple(f"{folder}{os.sep}" for folder in folders))
