"""The contestants of the cases `tfrecord` and `tfrecord-raw`: the same records, read with each loader.

In `tfrecord` all list the shards, take their part of them (here all), interleave 16 shards, parse image and
label, decode, and deliver float32 from 0 to 1 in batches of 64. In `tfrecord-raw` all deliver the bytes of
the records. DALI and grain do not verify checksums; the others do.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peers import BATCH, Contestant, Epoch

CYCLE = 16
READ_BYTES = 1 << 20
FEATURES = "image_raw", "label"


def pattern(folder: str) -> str:
    return f"{folder}/*.tfrecord"


# ---- tfrecord ----


def feedline(folder: str, case: str, threads: int) -> Epoch:
    import feedline as fl

    loader = (
        fl.tfrecord(pattern(folder))
        .shard(rank=0, world=1, by="shard")
        .interleave(cycle=CYCLE, block=1)
        .parse({"image_raw": fl.bytes_(), "label": fl.int64()})
        .decode(field="image_raw")
        .to_float(layout="HWC")
        .batch(BATCH)
        .loader(threads=threads)
    )
    return epochs_of(loader, "image")


def epochs_of(loader: Any, column: str, picked: Callable[[Any], Any] = lambda column: column) -> Epoch:
    """The epochs of a Feedline loader."""

    def epoch(batches: int | None) -> Iterator[Any]:
        running = iter(loader)
        for batch in itertools.islice(running, batches):
            yield picked(batch[column])
        running.close()

    return epoch


def tf_data(folder: str, case: str, threads: int) -> Epoch:
    """As in TensorFlow's guides: record by record."""
    tf = tensorflow()

    def parse(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, _features(tf))
        image = tf.io.decode_png(found["image_raw"], channels=3)
        return tf.cast(image, tf.float32) / 255.0, found["label"]

    data = _interleaved(tf, folder, threads).map(parse, num_parallel_calls=threads).batch(BATCH)
    return _tf_epochs(tf, data, threads, lambda batch: batch[0])


def tf_vectorised(folder: str, case: str, threads: int) -> Epoch:
    """Batches first, so that parsing and the conversion to float are one operation for 64 records."""
    tf = tensorflow()

    def decode(content: Any) -> Any:
        return tf.io.decode_png(content, channels=3)

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, _features(tf))
        images = tf.map_fn(decode, found["image_raw"], fn_output_signature=tf.uint8)
        return tf.cast(images, tf.float32) / 255.0, found["label"]

    data = _interleaved(tf, folder, threads).batch(BATCH).map(parse, num_parallel_calls=threads)
    return _tf_epochs(tf, data, threads, lambda batch: batch[0])


def tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf


def _features(tf: Any) -> dict[str, Any]:
    image, label = FEATURES
    return {image: tf.io.FixedLenFeature([], tf.string), label: tf.io.FixedLenFeature([], tf.int64)}


def _interleaved(tf: Any, folder: str, threads: int) -> Any:
    files = tf.data.Dataset.list_files(pattern(folder), shuffle=False).shard(num_shards=1, index=0)
    return files.interleave(
        tf.data.TFRecordDataset, cycle_length=CYCLE, block_length=1, num_parallel_calls=threads
    )


def _tf_epochs(tf: Any, data: Any, threads: int, picked: Any) -> Epoch:
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads

    def epoch(batches: int | None) -> Iterator[Any]:
        limited = data if batches is None else data.take(batches)
        for batch in limited.prefetch(tf.data.AUTOTUNE).with_options(options):
            yield picked(batch)

    return epoch


def dali(folder: str, case: str, threads: int) -> Epoch:
    import numpy as np
    from nvidia.dali import fn, tfrecord, types
    from nvidia.dali.pipeline import Pipeline

    paths = sorted(Path(folder).glob("*.tfrecord"))
    pipeline = Pipeline(batch_size=BATCH, num_threads=threads, device_id=None, seed=1)
    with pipeline:
        found: Any = fn.readers.tfrecord(
            path=[str(path) for path in paths],
            index_path=[str(path.with_suffix(".idx")) for path in paths],
            features={
                "image_raw": tfrecord.FixedLenFeature([], tfrecord.string, ""),
                "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
            name="records",
        )
        images = fn.decoders.image(found["image_raw"], device="cpu", output_type=types.RGB)
        pipeline.set_outputs(fn.cast(images, dtype=types.FLOAT) / 255.0, found["label"])
    pipeline.build()
    whole = -(-pipeline.reader_meta("records")["epoch_size"] // BATCH)

    def epoch(batches: int | None) -> Iterator[Any]:
        # As in the image benchmark, as many batches are ready at the start as at the end.
        for _ in range(whole if batches is None else min(batches, whole)):
            images, _labels = pipeline.run()
            yield np.asarray(images.as_tensor())

    return epoch


def grain(folder: str, case: str, threads: int) -> Epoch:
    import numpy as np
    from PIL import Image

    tf = tensorflow()

    def parse(record: bytes) -> tuple[Any, int]:
        feature = tf.train.Example.FromString(record).features.feature
        with Image.open(io.BytesIO(feature["image_raw"].bytes_list.value[0])) as image:
            pixels = np.asarray(image.convert("RGB"))
        return pixels.astype(np.float32) / np.float32(255), feature["label"].int64_list.value[0]

    return grain_epochs(_grain_records(folder).map(parse).batch(BATCH), lambda batch: batch[0])


def _grain_records(folder: str) -> Any:
    import grain
    from grain import experimental

    paths = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    files = grain.MapDataset.source(paths).map(experimental.TFRecordIterDataset)
    return experimental.InterleaveIterDataset(files, cycle_length=CYCLE)


def grain_epochs(data: Any, picked: Any) -> Epoch:
    def epoch(batches: int | None) -> Iterator[Any]:
        for batch in itertools.islice(iter(data), batches):
            yield picked(batch)

    return epoch


# ---- tfrecord-raw ----


def feedline_raw(folder: str, case: str, threads: int) -> Epoch:
    import feedline as fl

    return epochs_of(fl.tfrecord(pattern(folder)).batch(BATCH).loader(threads=threads), "bytes")


def feedline_bytes(folder: str, case: str, threads: int) -> Epoch:
    import feedline as fl

    loader = fl.tfrecord(pattern(folder)).batch(BATCH).loader(threads=threads)
    return epochs_of(loader, "bytes", lambda records: records.tolist())


def tf_data_raw(folder: str, case: str, threads: int) -> Epoch:
    tf = tensorflow()
    return _tf_epochs(tf, _interleaved(tf, folder, threads).batch(BATCH), threads, lambda batch: batch)


def tf_data_bytes(folder: str, case: str, threads: int) -> Epoch:
    tf = tensorflow()
    data = _interleaved(tf, folder, threads).batch(BATCH)
    return _tf_epochs(tf, data, threads, lambda batch: batch.numpy())


def tf_data_files(folder: str, case: str, threads: int) -> Epoch:
    """Uses the parallel reading of TFRecordDataset itself, with a large buffer."""
    tf = tensorflow()
    paths = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    data = tf.data.TFRecordDataset(paths, buffer_size=READ_BYTES, num_parallel_reads=threads)
    return _tf_epochs(tf, data.batch(BATCH), threads, lambda batch: batch)


def grain_raw(folder: str, case: str, threads: int) -> Epoch:
    return grain_epochs(_grain_records(folder).batch(BATCH, batch_fn=list), lambda batch: batch)


def plain_read(folder: str, case: str, threads: int) -> Epoch:
    """Reads whole files one after another, without splitting them into records."""
    return threaded_read(folder, case, 1)


def threaded_read(folder: str, case: str, threads: int) -> Epoch:
    """Reads whole files, several at a time."""
    from material import RAW_BYTES

    paths, pool = sorted(Path(folder).glob("*.tfrecord")), ThreadPoolExecutor(threads)
    # The size of a record with its frame.
    each = RAW_BYTES[case] + 16

    def read(path: Path) -> int:
        return len(path.read_bytes())

    def epoch(batches: int | None) -> Iterator[Any]:
        for size in pool.map(read, paths if batches is None else paths[:batches]):
            yield range(size // each)

    return epoch


EXAMPLES = (
    Contestant("feedline", "feedline, threads", ("feedline",), feedline),
    Contestant("tf.data", "tf.data as in its guides, record by record", ("tensorflow",), tf_data),
    Contestant("tf.data-batch", "tf.data, batches first", ("tensorflow",), tf_vectorised),
    Contestant("dali", "NVIDIA DALI on the CPU, with index files", ("nvidia.dali",), dali),
    Contestant("grain", "grain, parsed by TensorFlow, decoded by Pillow", ("grain", "tensorflow"), grain),
)
RAW = (
    Contestant("feedline", "feedline, threads", ("feedline",), feedline_raw),
    Contestant("tf.data", "tf.data, interleaved", ("tensorflow",), tf_data_raw),
    Contestant(
        "tf.data-files", "tf.data, num_parallel_reads and a large buffer", ("tensorflow",), tf_data_files
    ),
    Contestant("grain", "grain, which does not verify checksums", ("grain",), grain_raw),
    Contestant("feedline-bytes", "feedline, every record as Python's bytes", ("feedline",), feedline_bytes),
    Contestant("tf.data-bytes", "tf.data, every record as Python's bytes", ("tensorflow",), tf_data_bytes),
    Contestant("read", "the bytes of one file after another, unparsed", (), plain_read),
    Contestant("read-threads", "the same, with threads", (), threaded_read),
)
