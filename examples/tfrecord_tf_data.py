"""Reads TFRecord shards with tf.data, as the guides advise: glob, shard, interleave, parse, decode, batch.

    python examples/tfrecord_tf_data.py [PATTERN]

Without a pattern, shards are created in a temporary folder. tfrecord_feedline.py reads the same batches.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

SHARDS, EXAMPLES = 8, 500


def make_shards(folder: Path) -> str:
    """Creates shards of different lengths, with a PNG and a label in each record; returns their pattern."""
    random = np.random.default_rng(1)
    for shard in range(SHARDS):
        path = folder / f"train-{shard:05}-of-{SHARDS:05}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(EXAMPLES // SHARDS + shard):
                image = tf.io.encode_png(random.integers(0, 256, (32, 32, 3), np.uint8)).numpy()
                feature = {
                    "image_raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return f"{folder}/*.tfrecord"


def parse(record: Any) -> dict[str, Any]:
    wanted = {
        "image_raw": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_single_example(record, wanted)
    image = tf.io.decode_png(found["image_raw"], channels=3)
    return {"image": tf.cast(image, tf.float32) / 255.0, "label": found["label"]}


def batches(pattern: str, rank: int = 0, world: int = 1) -> Iterator[dict[str, Any]]:
    """The batches of one epoch, as dicts of NumPy arrays."""
    dataset = (
        tf.data.Dataset.list_files(pattern, shuffle=False)
        .shard(num_shards=world, index=rank)
        .interleave(
            tf.data.TFRecordDataset, cycle_length=16, block_length=1, num_parallel_calls=tf.data.AUTOTUNE
        )
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(64)
        .prefetch(tf.data.AUTOTUNE)
    )
    return iter(dataset.as_numpy_iterator())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pattern = sys.argv[1] if len(sys.argv) > 1 else make_shards(Path(folder))
        for batch in batches(pattern):
            print(batch["image"].shape, batch["image"].dtype, batch["label"][:8])


if __name__ == "__main__":
    main()
