"""Makes the first inputs of the fuzzers: small pictures of every kind, and settings right and wrong.

python tools/make_corpus.py
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"


def picture(mode: str, width: int = 21, height: int = 17) -> Image.Image:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGB").convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def main() -> None:
    rgb, exif = picture("RGB"), Image.Exif()
    exif[0x0112] = 6
    files = {
        "jpeg-420": encoded(rgb, "JPEG", subsampling=2),
        "jpeg-444": encoded(rgb, "JPEG", subsampling=0),
        "jpeg-422-progressive": encoded(rgb, "JPEG", subsampling=1, progressive=True),
        "jpeg-gray": encoded(picture("L"), "JPEG"),
        "jpeg-cmyk": encoded(picture("CMYK"), "JPEG"),
        "jpeg-exif": encoded(rgb, "JPEG", exif=exif),
        "png-rgb": encoded(rgb, "PNG"),
        "png-rgba": encoded(picture("RGBA"), "PNG"),
        "png-palette": encoded(picture("P"), "PNG", transparency=3),
        "png-gray": encoded(picture("L"), "PNG"),
        "png-bits": encoded(picture("1"), "PNG"),
        "png-16": encoded(Image.fromarray(np.arange(300, dtype=np.uint16).reshape(15, 20) * 200), "PNG"),
        "webp-lossy": encoded(rgb, "WEBP"),
        "webp-lossless": encoded(rgb, "WEBP", lossless=True),
        "webp-alpha": encoded(picture("RGBA"), "WEBP"),
        "gif": encoded(picture("P"), "GIF"),
        "empty": b"",
    }
    for number, (name, file) in enumerate(files.items()):
        path = CORPUS / "decode" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number * 5 % 32]) + file)
    calls: list[list[dict[str, object]]] = [
        [],
        [{"call": "shuffle", "seed": 7}, {"call": "shard", "rank": 1, "world": 4, "remainder": "drop"}],
        [{"call": "decode", "mode": "gray", "orient": True, "max_pixels": 1000, "scaled": True}],
        [{"call": "decode"}, {"call": "resize", "size": 256, "filter": "bicubic"}],
        [{"call": "resize", "size": [20, 30]}, {"call": "center_crop", "size": 224}],
        [{"call": "random_crop", "size": [4, 5], "padding": 4}, {"call": "flip", "p": 0.5}],
        [{"call": "random_resized_crop", "size": 224, "scale": [0.08, 1.0], "ratio": [0.75, 1.33]}],
        [{"call": "to_float", "mean": [0.5, 0.4, 0.3], "std": 0.2, "layout": "CHW"}],
        [{"call": "cast", "dtype": "float16", "layout": "HWC"}],
        [{"call": "batch", "size": 64, "drop_last": True, "pad": False, "index": True}],
        [{"call": "batch", "size": 1}, {"call": "loader", "memory": "1.5GiB", "prefetch": 0, "limit": 0.01}],
        [{"call": "batch", "size": 1}, {"call": "loader", "threads": "auto", "files": 3, "then": "skip"}],
    ]
    for number, words in enumerate(calls):
        path = CORPUS / "settings" / f"{number:02}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(words))


if __name__ == "__main__":
    main()
