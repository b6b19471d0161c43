"""The columns of several samples from the native pipeline, and the single samples that functions take."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from feedline._mapped.trees import Layout, Lists, Ragged, Run

__all__ = ["SampleColumns"]


class SampleColumns:
    """The columns of several samples; arrays of different shapes are concatenated."""

    def __init__(self, columns: dict[str, Any], kinds: dict[str, str], count: int) -> None:
        self.columns = columns
        self.kinds = kinds
        self.count = count
        # For each field without one row per sample: the start, end and shape of each sample's part.
        self._ranges: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
        for name, kind in kinds.items():
            if kind == "ragged":
                shapes = [
                    tuple(length for length in row if length >= 0) for row in self._beside(name, "shape")
                ]
                self._ranges[name] = _ranges([int(np.prod(shape)) for shape in shapes], shapes)
            elif kind in ("variable", "lists"):
                lengths = self._beside(name, "lengths")
                self._ranges[name] = _ranges(lengths, [() for _ in lengths])

    def _beside(self, name: str, what: str) -> Any:
        return self.columns[f"{name}_{what}"].tolist()

    def __getitem__(self, offset: int) -> dict[str, Any]:
        """One sample, on the memory of the columns."""
        sample: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            column = self.columns[name]
            if name not in self._ranges:
                sample[name] = column[offset]
                continue
            start, stop, shape = self._ranges[name][offset]
            part = column[start:stop]
            sample[name] = part.reshape(shape) if kind == "ragged" else part
        return sample

    def runs(self, layout: Layout) -> list[Run]:
        """The unchanged samples, in as few runs as their shapes allow."""
        ragged = [name for name, kind in self.kinds.items() if kind == "ragged" and not layout.pad]
        shapes = [[self._ranges[name][offset][2] for name in ragged] for offset in range(self.count)]
        cuts = [offset for offset in range(1, self.count) if shapes[offset] != shapes[offset - 1]]
        return [self._run(start, stop, layout) for start, stop in pairwise([0, *cuts, self.count])]

    def _run(self, start: int, stop: int, layout: Layout) -> Run:
        tree = {name: self._leaf(name, start, stop, layout) for name in self.kinds}
        return Run(tree, stop - start)

    def _leaf(self, name: str, start: int, stop: int, layout: Layout) -> Any:
        column, kind = self.columns[name], self.kinds[name]
        if name not in self._ranges:
            return column[start:stop]
        ranges = self._ranges[name][start:stop]
        part = column[ranges[0][0] : ranges[-1][1]]
        if kind == "lists":
            return Lists(column[begin:end] for begin, end, _ in ranges)
        if kind == "ragged" and not layout.pad:
            return part.reshape((stop - start, *ranges[0][2]))
        shapes = [
            shape if kind == "ragged" else (end - begin, *column.shape[1:]) for begin, end, shape in ranges
        ]
        return Ragged(part.reshape(-1), np.array(shapes, dtype=np.int64))


def _ranges(lengths: list[int], shapes: list[Any]) -> list[tuple[int, int, tuple[int, ...]]]:
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return list(zip([0, *ends], ends, shapes, strict=False))
