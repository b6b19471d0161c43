"""Reads TFRecord shards with Feedline: the same batches as tfrecord_tf_data.py, and a report of bad records.

    python examples/tfrecord_feedline.py PATTERN

TensorFlow is not needed. `feedline.tensorflow.dataset(loader)` turns the loader into a tf.data.Dataset.
"""

from __future__ import annotations

import sys

import feedline as fl


def make_loader(pattern: str, rank: int = 0, world: int = 1) -> fl.Loader:
    return (
        fl.tfrecord(pattern)
        .shard(rank, world, "uneven", by="shard")
        .interleave(cycle=16, block=1)
        .parse({"image_raw": fl.bytes_(), "label": fl.int64()})
        .decode(field="image_raw")
        .to_float(layout="HWC")
        .batch(64)
        .loader(faults=fl.FaultPolicy(action="skip", limit=0.01))
    )


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit('usage: python examples/tfrecord_feedline.py "data/*.tfrecord"')
    loader = make_loader(sys.argv[1])
    for batch in loader:
        print(batch["image"].shape, batch["image"].dtype, batch["label"][:8])
    print(loader.report())


if __name__ == "__main__":
    main()
