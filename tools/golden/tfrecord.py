"""Writes tests/golden/tfrecord: files of TensorFlow's writer, and the results of its parsers.

    python tools/golden/tfrecord.py

golden.json has a case for each file: the fields as written for Feedline, and for each record the values of
TensorFlow's parser, arrays as their bytes in hexadecimal. If TensorFlow's fast parser differs from protobuf,
which Feedline follows, the values are those of protobuf, and "parser" says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "tfrecord"

Features = dict[str, tf.train.Feature]


def ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(features: Features) -> bytes:
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def sequence(context: Features, lists: dict[str, list[tf.train.Feature]]) -> bytes:
    features = {name: tf.train.FeatureList(feature=steps) for name, steps in lists.items()}
    return tf.train.SequenceExample(
        context=tf.train.Features(feature=context), feature_lists=tf.train.FeatureLists(feature_list=features)
    ).SerializeToString(deterministic=True)


def kinds() -> list[bytes]:
    """Records with every kind of feature, and the smallest and largest values of each type."""
    records = []
    whole = [0, -1, 1, 127, 128, 300, 2**31, 2**63 - 1, -(2**63)]
    real = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 3.4e38, 1e-45, 1 / 3]
    for number in range(9):
        features = {
            "image/encoded": strings(bytes(range(number * 28)) * number),
            "label": ints(whole[number]),
            "name": strings(f"käse {number}".encode()),
            "score": floats(real[number]),
            "grid": ints(*(whole[(number + place) % 9] for place in range(6))),
            "box": floats(*(real[(number + place) % 9] for place in range(number * 4))),
            "ids": ints(*whole[:number]),
            "words": strings(*(b"w" * place for place in range(number))),
            "pair": strings(b"a", b""),
        }
        if number % 2:
            features["weight"] = floats(0.25 * number)
        if number % 3:
            features["extra"] = ints(*range(number))
        if number == 4:
            features["weight"] = tf.train.Feature()
        records.append(example(features))
    return records


KINDS = {
    "image": "fl.bytes_(key='image/encoded')",
    "label": "fl.int64()",
    "name": "fl.text()",
    "score": "fl.float32()",
    "grid": "fl.int64(shape=[2, 3])",
    "box": "fl.float32(shape=[None, 4])",
    "ids": "fl.int64(shape=[None])",
    "words": "fl.bytes_(shape=[None])",
    "pair": "fl.bytes_(shape=[2])",
    "weight": "fl.float32(default=1.0)",
    "extra": "fl.int64(shape=[None], default=[])",
    "lost": "fl.float32(shape=[2], default=[1.0, -2.0])",
}


def kinds_by_tensorflow(record: bytes) -> dict[str, Any]:
    def many(dtype: tf.DType, *shape: int) -> tf.io.FixedLenSequenceFeature:
        return tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=True)

    parsed = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
            "name": tf.io.FixedLenFeature([], tf.string),
            "score": tf.io.FixedLenFeature([], tf.float32),
            "grid": tf.io.FixedLenFeature([2, 3], tf.int64),
            "box": many(tf.float32, 4),
            "ids": many(tf.int64),
            "words": many(tf.string),
            "pair": tf.io.FixedLenFeature([2], tf.string),
            "weight": tf.io.FixedLenFeature([], tf.float32, default_value=1.0),
            "extra": many(tf.int64),
            "lost": tf.io.FixedLenFeature([2], tf.float32, default_value=[1.0, -2.0]),
        },
    )
    parsed["image"] = parsed.pop("image/encoded")
    return {name: value.numpy() for name, value in parsed.items()}


def sequences() -> list[bytes]:
    records = []
    for number in range(5):
        steps = range(number)
        lists = {
            "frames": [strings(b"frame %d" % step) for step in steps],
            "boxes": [floats(step, -step, 0.5, number) for step in steps],
            "ids": [ints(step * number) for step in steps],
        }
        if number % 2:
            lists["maybe"] = [ints(1, 2)]
        records.append(sequence({"length": ints(number), "tags": strings(*[b"t"] * number)}, lists))
    return records


SEQUENCES = {
    "length": "fl.int64()",
    "tags": "fl.bytes_(shape=[None])",
    "frames": "fl.sequence(fl.bytes_())",
    "boxes": "fl.sequence(fl.float32(shape=[4]))",
    "ids": "fl.sequence(fl.int64())",
    "maybe": "fl.sequence(fl.int64(shape=[2], default=[]))",
}


def sequences_by_tensorflow(record: bytes) -> dict[str, Any]:
    def steps(dtype: tf.DType, *shape: int) -> tf.io.FixedLenSequenceFeature:
        return tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=True)

    context, lists = tf.io.parse_single_sequence_example(
        record,
        {
            "length": tf.io.FixedLenFeature([], tf.int64),
            "tags": tf.io.VarLenFeature(tf.string),
        },
        {
            "frames": steps(tf.string),
            "boxes": steps(tf.float32, 4),
            "ids": steps(tf.int64),
            "maybe": steps(tf.int64, 2),
        },
    )
    context["tags"] = context["tags"].values
    return {name: value.numpy() for name, value in {**context, **lists}.items()}


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def entry(key: bytes, *features: bytes) -> bytes:
    return field(1, field(1, key) + b"".join(field(2, feature) for feature in features))


def unpacked() -> list[bytes]:
    """Records with unpacked numbers, as the oldest writers wrote them; TensorFlow's parser reads them too."""
    whole = b"\x08\x01\x08\xac\x02\x08\x00"
    real = b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1.5, -2.0))
    return [
        field(1, entry(b"ids", field(3, whole)) + entry(b"x", field(2, real))),
        field(1, entry(b"ids", field(3, b"\x08\x07")) + entry(b"x", field(2, b""))),
        field(1, entry(b"ids", field(3, b"")) + entry(b"x", field(2, real[:5]))),
    ]


def odd() -> list[bytes]:
    """Records that protobuf allows, and that TensorFlow's fast parser reads differently or rejects."""
    one, two = field(3, b"\x08\x01"), field(3, b"\x0a\x02\x02\x03")
    real = field(2, b"\x0d" + np.float32(0.5).tobytes())
    unknown = b"\x48\x05\x53\x08\x01\x54"
    x = entry(b"x", real)
    return [
        # Packed and unpacked runs in one list.
        field(1, entry(b"ids", field(3, b"\x08\x01\x0a\x02\x02\x03\x08\x04")) + x),
        # A list in two parts; a feature with two types, of which the last counts.
        field(1, entry(b"ids", one + two) + entry(b"x", one + real)),
        # A feature in two parts.
        field(1, entry(b"ids", one, two) + x),
        # Repeated keys, in one map and in two.
        field(1, entry(b"ids", one) + x + entry(b"ids", two)),
        field(1, entry(b"ids", one) + x) + field(1, entry(b"ids", two)),
        # A value before its key, unknown fields, an entry without a key.
        field(1, field(1, field(2, two) + field(1, b"ids")) + x) + unknown,
        field(1, entry(b"ids", two + unknown) + x + field(1, field(2, one)) + unknown),
    ]


def by_protobuf(record: bytes) -> dict[str, Any]:
    features = tf.train.Example.FromString(record).features.feature
    return {
        "ids": np.array(features["ids"].int64_list.value, np.int64),
        "x": np.array(features["x"].float_list.value, np.float32),
    }


def unpacked_by_tensorflow(record: bytes) -> dict[str, Any]:
    def many(dtype: tf.DType) -> tf.io.FixedLenSequenceFeature:
        return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)

    parsed = tf.io.parse_single_example(record, {"ids": many(tf.int64), "x": many(tf.float32)})
    return {name: value.numpy() for name, value in parsed.items()}


NUMBERS = {"ids": "fl.int64(shape=[None])", "x": "fl.float32(shape=[None])"}


def as_json(value: Any) -> Any:
    """A value of TensorFlow as JSON: bytes, a list of them, or an array."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if value.dtype == object:
        return {"list": [part.hex() for part in value.reshape(-1).tolist()]}
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.tobytes().hex()}


def write(name: str, records: list[bytes], compression: str) -> str:
    name += {"": "", "GZIP": ".gz", "ZLIB": ".zlib"}[compression]
    with tf.io.TFRecordWriter(str(GOLDEN / name), tf.io.TFRecordOptions(compression)) as writer:
        for record in records:
            writer.write(record)
    return name


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    cases: list[dict[str, Any]] = []
    tensorflow = f"TensorFlow {tf.__version__}"
    for name, compressions, records, fields, parse, parser in [
        ("kinds.tfrecord", ["", "GZIP", "ZLIB"], kinds(), KINDS, kinds_by_tensorflow, tensorflow),
        ("sequences.tfrecord", [""], sequences(), SEQUENCES, sequences_by_tensorflow, tensorflow),
        ("unpacked.tfrecord", [""], unpacked(), NUMBERS, unpacked_by_tensorflow, tensorflow),
        ("odd.tfrecord", [""], odd(), NUMBERS, by_protobuf, "protobuf"),
    ]:
        files = [write(name, records, compression) for compression in compressions]
        values = [{key: as_json(value) for key, value in parse(record).items()} for record in records]
        cases.append({"files": files, "parser": parser, "fields": fields, "records": values})
    raw = [b"", b"x", b"", b"y" * 1000]
    for name, compressions, records in [
        ("empty-record.tfrecord", [""], [b""]),
        ("raw.tfrecord", ["", "GZIP", "ZLIB"], raw),
        ("empty.tfrecord", ["", "GZIP"], []),
    ]:
        files = [write(name, records, compression) for compression in compressions]
        read = tf.data.TFRecordDataset(str(GOLDEN / name))
        values = [{"bytes": as_json(record.numpy())} for record in read]
        cases.append({"files": files, "parser": tensorflow, "fields": None, "records": values})
    (GOLDEN / "golden.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
