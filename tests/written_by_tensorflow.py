"""Writes TFRecord files, and the results of TensorFlow's parsers, into the given folder.

Runs in a separate process, so that tests of memory and threads never import TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

RECORDS = 200
BIG = 64 << 20
COMPRESSIONS = {"plain": "", "gzip": "GZIP", "zlib": "ZLIB"}


def ints(values: Any) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(values: Any) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(values: Any) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def whole(random: np.random.Generator, count: int) -> list[int]:
    """Integers of every varint length."""
    numbers = random.integers(-(2**63), 2**63, count)
    return (numbers >> random.integers(0, 64, count)).tolist()  # type: ignore[no-any-return]


def some_examples(random: np.random.Generator) -> list[bytes]:
    records = []
    for _ in range(RECORDS):
        count = int(random.integers(0, 6))
        features = {
            "image": strings([random.bytes(int(random.integers(0, 500)))]),
            "label": ints(whole(random, 1)),
            "grid": floats(random.normal(size=6)),
            "box": floats(random.normal(size=4 * count)),
            "ids": ints(whole(random, count)),
            "words": strings([random.bytes(int(length)) for length in random.integers(0, 9, count)]),
        }
        if random.random() < 0.5:
            features["weight"] = floats([random.random()])
        if random.random() < 0.5:
            features["tags"] = ints(whole(random, count))
        if random.random() < 0.2:
            features["unasked"] = strings([random.bytes(50)])
        example = tf.train.Example(features=tf.train.Features(feature=features))
        records.append(example.SerializeToString())
    return records


def parsed(records: list[bytes]) -> dict[str, Any]:
    boxes = [tf.io.RaggedFeature.UniformRowLength(4)]
    found = tf.io.parse_example(
        records,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
            "grid": tf.io.FixedLenFeature([2, 3], tf.float32),
            "box": tf.io.RaggedFeature(tf.float32, partitions=boxes),
            "ids": tf.io.RaggedFeature(tf.int64),
            "words": tf.io.RaggedFeature(tf.string),
            "weight": tf.io.FixedLenFeature([], tf.float32, default_value=-1.0),
            "tags": tf.io.RaggedFeature(tf.int64),
        },
    )
    return as_json(found)


def some_sequences(random: np.random.Generator) -> list[bytes]:
    records = []
    for number in range(RECORDS):
        count = int(random.integers(0, 7))
        lists = {
            "frames": [strings([random.bytes(int(length))]) for length in random.integers(0, 50, count)],
            "boxes": [floats(random.normal(size=4)) for _ in range(count)],
            "ids": [ints(whole(random, 1)) for _ in range(count)],
        }
        made = {name: tf.train.FeatureList(feature=steps) for name, steps in lists.items()}
        example = tf.train.SequenceExample(
            context=tf.train.Features(feature={"number": ints([number])}),
            feature_lists=tf.train.FeatureLists(feature_list=made),
        )
        records.append(example.SerializeToString())
    return records


def parsed_sequences(records: list[bytes]) -> dict[str, Any]:
    context, lists, lengths = tf.io.parse_sequence_example(
        records,
        {"number": tf.io.FixedLenFeature([], tf.int64)},
        {
            "frames": tf.io.FixedLenSequenceFeature([], tf.string),
            "boxes": tf.io.FixedLenSequenceFeature([4], tf.float32),
            "ids": tf.io.FixedLenSequenceFeature([], tf.int64),
        },
    )
    frames = tf.RaggedTensor.from_tensor(lists.pop("frames"), lengths["frames"]).values.numpy()
    found = {**context, **lists, **{f"{name}_lengths": value for name, value in lengths.items()}}
    words = as_json(found)
    words["frames"] = {"list": [value.hex() for value in frames.tolist()]}
    return words


def as_json(found: dict[str, Any]) -> dict[str, Any]:
    """The result of the parser as JSON: ragged tensors concatenated and padded, with their lengths."""
    words: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, tf.RaggedTensor):
            words[f"{name}_lengths"] = array(value.row_lengths().numpy().astype(np.int64))
            if value.dtype != tf.string:
                words[f"{name}_padded"] = array(value.to_tensor().numpy())
            value = value.values
        value = value.numpy()
        if value.dtype == object:
            words[name] = {"list": [part.hex() for part in value.reshape(-1).tolist()]}
        else:
            words[name] = array(value)
    return words


def array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.tobytes().hex()}


def write(path: Path, compression: str, records: list[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression)) as writer:
        for record in records:
            writer.write(record)


def main(folder: Path) -> None:
    random = np.random.default_rng(20_26)
    examples, sequences = some_examples(random), some_sequences(random)
    big = random.bytes(BIG)
    found: dict[str, Any] = {}
    for name, compression in COMPRESSIONS.items():
        write(folder / f"examples-{name}", compression, examples)
        write(folder / f"sequences-{name}", compression, sequences)
        write(folder / f"big-{name}", compression, [b"before", big, b"", b"after"])
        read = tf.data.TFRecordDataset(str(folder / f"big-{name}"), compression)
        sums = [hashlib.sha256(record.numpy()).hexdigest() for record in read]
        found[f"big-{name}"] = sums
    found["examples"] = parsed(examples)
    found["sequences"] = parsed_sequences(sequences)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
