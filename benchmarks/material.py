"""Creates the data of the records benchmark once, with TensorFlow and webdataset, and keeps it.

It is in the folder `feedline-bench` of the system's temporary folder.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import photos
from turns import log

SHARDS, EXAMPLES = 16, 40_000
SIDE, LABELS = 32, 10
RAW_BYTES = {"tfrecord-raw-4k": 4 << 10, "tfrecord-raw-100k": 100 << 10}
RAW_TOTAL = 256 << 20
TAR_SHARDS, PHOTOS, PHOTO_SIZE = 10, 3000, (500, 375)
TOKENS, WINDOW = 50_000_000, 1025
TOKEN_FILE = "tokens.bin"
# With --quick, everything is smaller by this factor.
QUICK = 10


def prepare(case: str, quick: bool) -> Path:
    """The folder with the data of a case, which is created if it is missing."""
    root = Path(tempfile.gettempdir()) / "feedline-bench" / ("quick" if quick else "full")
    folder, less = root / case, QUICK if quick else 1
    done = folder / ".complete"
    if done.exists():
        return folder
    log(f"creating the data of {case} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make: dict[str, Callable[[Path, int], None]] = {
        "tfrecord": _examples,
        "tar": _tars,
        "tokens": _tokens,
        **dict.fromkeys(RAW_BYTES, _raw),
    }
    make[case](folder, less)
    done.touch()
    return folder


def warm(folder: Path) -> None:
    """Reads everything, so that the disk does not matter."""
    for where, _, names in os.walk(folder, followlinks=True):
        for name in names:
            Path(where, name).read_bytes()


def _examples(folder: Path, less: int) -> None:
    tf = _tensorflow()
    random = np.random.default_rng(1)
    pictures = [np.asarray(photos.photo(number, 640, 480)) for number in range(8)]
    each = EXAMPLES // less // SHARDS
    for shard in range(SHARDS):
        path = folder / f"train-{shard:05}-of-{SHARDS:05}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(each):
                top, left = random.integers(0, 480 - SIDE), random.integers(0, 640 - SIDE)
                window = pictures[number % len(pictures)][top : top + SIDE, left : left + SIDE]
                label = int(random.integers(0, LABELS))
                writer.write(_example(tf, _png(window), label).SerializeToString())
        _index(path)


def _example(tf: Any, image: bytes, label: int) -> Any:
    feature = {
        "image_raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def _png(window: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(window).save(buffer, "PNG")
    return buffer.getvalue()


def _index(path: Path) -> None:
    """Writes the index that DALI's reader needs for a file: a line with offset and size for each record."""
    lines = []
    with path.open("rb") as file:
        while header := file.read(8):
            size = 8 + 4 + struct.unpack("<Q", header)[0] + 4
            start = file.tell() - 8
            lines.append(f"{start} {size}\n")
            file.seek(start + size)
    path.with_suffix(".idx").write_text("".join(lines))


def _raw(folder: Path, less: int) -> None:
    tf = _tensorflow()
    size = RAW_BYTES[folder.name]
    random = np.random.default_rng(2)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(folder / f"raw-{shard:05}.tfrecord")) as writer:
            for _ in range(RAW_TOTAL // less // SHARDS // size):
                writer.write(random.bytes(size))


def _tars(folder: Path, less: int) -> None:
    import webdataset

    pictures = folder / "photos"
    photos.make(pictures, PHOTOS // less, *PHOTO_SIZE)
    # In the order of an image folder, so that both have the same samples.
    listed = [
        (label, path)
        for label, kind in enumerate(sorted(entry for entry in pictures.iterdir() if entry.is_dir()))
        for path in sorted(kind.iterdir())
    ]
    for shard in range(TAR_SHARDS):
        path = folder / f"photos-{shard:03}.tar"
        part = listed[shard * len(listed) // TAR_SHARDS : (shard + 1) * len(listed) // TAR_SHARDS]
        with webdataset.TarWriter(str(path)) as writer:
            for label, picture in part:
                writer.write({"__key__": picture.stem, "jpg": picture.read_bytes(), "cls": label})
        tool = Path(sys.executable).with_name("wds2idx")
        if tool.exists():
            command = [sys.executable, str(tool), str(path), str(path.with_suffix(".idx"))]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _tokens(folder: Path, less: int) -> None:
    random = np.random.default_rng(3)
    random.integers(0, 50_257, TOKENS // less, np.uint16).tofile(folder / TOKEN_FILE)


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf
