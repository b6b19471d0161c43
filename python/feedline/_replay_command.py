"""The part of `feedline replay` that needs Python: samples that the user's code makes again."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pdb
import sys
import traceback
from pathlib import Path
from typing import Any

from feedline._described import described, one_line

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Makes the samples of a quarantine file again. Returns the exit code. The native part has checked the
    arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("--loader", required=True)
    parser.add_argument("--index", type=int)
    parser.add_argument("--pdb", action="store_true")
    given = parser.parse_args(arguments)
    try:
        loader = _made(given.loader)
    except Exception as raised:
        traceback.print_exc()
        return _failed(f"--loader {given.loader} could not be called: {raised}")
    if not callable(getattr(loader, "replay", None)):
        return _failed(f"--loader {given.loader} returned {described(loader)}, which has no replay()")
    lines = [line for line in _lines(given.file) if given.index is None or line["index"] == given.index]
    bad = sum(not _is_good(loader, line, in_debugger=given.pdb) for line in lines)
    total = "1 sample" if len(lines) == 1 else f"{len(lines)} samples"
    print(f"{bad} of {total} still bad")
    return 1 if bad else 0


def _failed(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    print("hint: give a function without arguments that returns the loader of the run", file=sys.stderr)
    return 2


def _made(loader: str) -> Any:
    """The loader that the function returns: `module:function`, or `file.py:function`."""
    name, _, function = loader.rpartition(":")
    # As for `python -m`: the user's modules are in the current folder.
    sys.path.insert(0, "")
    if name.endswith(".py"):
        path = Path(name).resolve()
        sys.path.insert(0, str(path.parent))
        name = path.stem
    module = importlib.import_module(name)
    return getattr(module, function)()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The first line of each sample."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if text.strip():
                line = json.loads(text)
                found.setdefault(json.dumps(line["index"]), line)
    return list(found.values())


def _is_good(loader: Any, line: dict[str, Any], *, in_debugger: bool) -> bool:
    index, epoch = line["index"], line.get("epoch", 0)
    shown = f"sample {json.dumps(index)} of epoch {epoch}"
    try:
        seed = {"seed": line["seed"]} if "seed" in line else {}
        loader.replay(index=index, epoch=epoch, **seed)
    except Exception as raised:
        text = (str(raised).splitlines() or [""])[0]
        print(f"{shown}: still bad: {type(raised).__name__}: {one_line(text)}", flush=True)
        traceback.print_exc()
        if in_debugger:
            pdb.post_mortem(raised.__traceback__)
        return False
    print(f"{shown}: good now", flush=True)
    return True
