"""What the descriptors of this process are, for messages about too many of them."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path

__all__ = ["describe_open_files"]

# How many paths are shown, and how many descriptors are looked at.
_PATHS, _NUMBERS = 10, 1 << 16


def describe_open_files() -> list[str]:
    """How many descriptors of each kind are open; on a second line, the paths most often open."""
    kinds: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    # By number, since to list a folder needs a descriptor too.
    most_files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _NUMBERS)
    for number in range(most_files):
        try:
            target = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            continue
        if target.startswith("/") and not target.startswith("/memfd:"):
            kinds["files"] += 1
            paths[target] += 1
        else:
            kinds[target.split(":", 1)[0].removeprefix("/") + "s"] += 1
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    lines = [f"{sum(kinds.values())} open descriptors: {shown}"]
    often = [f"{path} ({count})" if count > 1 else path for path, count in paths.most_common(_PATHS)]
    return [*lines, f"most often open: {', '.join(often)}"] if often else lines
