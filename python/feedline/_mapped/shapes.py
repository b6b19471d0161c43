"""Which samples fit into one batch: a number for each spec of samples, and a description for messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from feedline import _native

__all__ = ["Shapes", "described"]


class Shapes:
    """Numbers for the specs of samples: samples with the same number fit into one batch."""

    def __init__(self, epoch: _native.Epoch) -> None:
        self._epoch = epoch
        self._numbers: dict[str, int] = {}

    def number(self, spec: Any) -> int:
        known = repr(spec)
        number = self._numbers.get(known)
        if number is None:
            text = json.dumps(described(spec), sort_keys=True)
            number = self._numbers[known] = self._epoch.shape(text)
        return number


def described(spec: Any) -> Any:
    """A spec as JSON: a dict for a dict, a list for a tuple, and text for everything else."""
    if isinstance(spec, dict):
        return {str(name): described(part) for name, part in spec.items()}
    if not (spec and isinstance(spec[0], str)):
        return [described(part) for part in spec]
    kind, *more = spec
    if kind == "array" and more[1] == ():
        return f"a number of {np.dtype(more[0]).name}"
    if kind == "array":
        return f"an array of {np.dtype(more[0]).name} with shape {list(more[1])}"
    if kind == "ragged":
        inner = "" if more[2] is None else f" and shape {['any', *more[2]]}".replace("'", "")
        return f"an array of {np.dtype(more[0]).name} with {more[1]} axes{inner}"
    return _LEAVES[kind]


_LEAVES = {
    "number": "a number of int64 or float64",
    "lists": "a list",
    "values": "a value that is no array",
    "thing": "no array and no number",
}
