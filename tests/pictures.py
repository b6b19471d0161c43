"""Images that look like photographs, made from a seed, and files of them in every format."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

__all__ = ["Pixels", "encoded", "gray", "noise", "opened", "photo", "png", "write"]


def photo(seed: int, width: int, height: int) -> Pixels:
    """Soft shapes, one hard edge and grain: nothing in it is symmetric."""
    random = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 120.0, np.float32)
    for cells, weight in ((3, 60.0), (9, 40.0), (31, 15.0)):
        field = random.normal(size=(cells, cells, 3)).astype(np.float32)
        for channel in range(3):
            soft = Image.fromarray(field[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., channel] += weight * np.asarray(soft)
    pixels[height // 3 :, width // 2 :] += random.normal(scale=60.0, size=3)
    pixels += random.normal(scale=4.0, size=(height, width, 1))
    return pixels.clip(0, 255).astype(np.uint8)


def noise(seed: int, *shape: int) -> Pixels:
    """Random bytes in which every value occurs."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def gray(seed: int, width: int, height: int) -> Pixels:
    """One channel of a photo."""
    return np.ascontiguousarray(photo(seed, width, height)[..., 1])


def encoded(picture: Image.Image | Pixels, form: str = "JPEG", **options: Any) -> bytes:
    """The bytes of a file."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Writes files into a folder; returns their paths in the given order."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def opened(content: bytes, mode: str = "RGB") -> Pixels:
    """The pixels of a file as decoded by Pillow: rows, columns, channels."""
    with Image.open(io.BytesIO(content)) as image, warnings.catch_warnings():
        # Pillow advises to keep the alpha of a palette; this function drops it.
        warnings.simplefilter("ignore")
        pixels = np.asarray(image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def png(samples: NDArray[Any], depth: int, *, interlaced: bool = False) -> bytes:
    """A PNG of 1, 2, 3 or 4 channels, also in variants that Pillow reads but does not write."""
    height, width, channels = samples.shape
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    # The start of each pass, columns first, and its steps: one pass, or the seven of Adam7.
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [
            (0, 0, 8, 8),
            (4, 0, 8, 8),
            (0, 4, 4, 8),
            (2, 0, 4, 4),
            (0, 2, 2, 4),
            (1, 0, 2, 2),
            (0, 1, 1, 2),
        ]
    lines = b""
    for left, top, right_step, down_step in passes:
        part = samples[top::down_step, left::right_step]
        if part.size:
            lines += b"".join(b"\0" + _packed(line, depth) for line in part)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _packed(line: NDArray[Any], depth: int) -> bytes:
    if depth == 16:
        return line.astype(">u2").tobytes()
    bits = np.unpackbits(line.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - depth :]
    return np.packbits(bits).tobytes()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
