"""Finds the descendants of a program, including those whose parent has ended."""

from __future__ import annotations

from pathlib import Path

__all__ = ["marked"]


def marked(marker: str) -> list[int]:
    """The live processes whose environment contains the marker."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            has_mark = marker.encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if has_mark and state != "Z":
            found.append(int(folder.name))
    return found
