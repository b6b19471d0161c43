"""Writes tests/golden/npy.json: arrays in NumPy's format, of every type and version.

python tools/golden/npy.py
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

GOLDEN = Path(__file__).parent.parent.parent / "tests" / "golden" / "npy.json"
TYPES = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


def written(array: np.ndarray, version: tuple[int, int] | None = None) -> str:
    buffer = io.BytesIO()
    npy.write_array(buffer, array, version=version)
    return buffer.getvalue().hex()


def main() -> None:
    good = []
    for number, name in enumerate(TYPES):
        for shape in [(), (0,), (3,), (2, 3), (1, 2, 3), (4, 0, 2)]:
            version = [(1, 0), (2, 0), (3, 0)][(number + len(shape)) % 3]
            array = (np.arange(int(np.prod(shape))) % 2).astype(name).reshape(shape)
            good.append(
                {
                    "file": written(array, version),
                    "dtype": array.dtype.name,
                    "shape": list(shape),
                    "data": array.tobytes().hex(),
                }
            )
    column = np.asfortranarray(np.ones((4, 1), "f4"))
    good.append(
        {"file": written(column), "dtype": "float32", "shape": [4, 1], "data": column.tobytes().hex()}
    )
    for name in [">u2", ">i8", ">f2", ">f8", "<i4"]:
        for shape in [(5,), (2, 3), (3, 1, 4, 2)]:
            array = np.asfortranarray(np.arange(int(np.prod(shape))).astype(name).reshape(shape))
            little = array.astype(array.dtype.newbyteorder("<"))
            good.append(
                {
                    "file": written(array),
                    "dtype": little.dtype.name,
                    "shape": list(shape),
                    "data": little.tobytes().hex(),
                }
            )
    bad = {
        "objects": written(np.array([{}, None])),
        "named": written(np.zeros(2, [("a", "f4"), ("b", "i4")])),
        "text": written(np.array(["abc"])),
        "times": written(np.zeros(2, "M8[s]")),
        "complex": written(np.zeros(2, "c8")),
        "complex, big-endian": written(np.zeros(2, ">c16")),
    }
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps({"good": good, "bad": bad}, indent=0) + "\n")


if __name__ == "__main__":
    main()
