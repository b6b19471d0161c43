"""A program that runs every check of `feedline.tensorflow` below and prints the results.

It is a separate process, because two devices must be declared before TensorFlow starts, and one process for
all checks, because TensorFlow starts slowly. `test_tensorflow.py` runs it and asserts the results.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import struct
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import feedline as fl
import feedline.tensorflow
import numpy as np
import tensorflow as tf
from feedline._tensorflow import table
from feedline.tensorflow import dataset, distributed, unwrapped

CHECKS: dict[str, Callable[[Path], Any]] = {}


def check(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    CHECKS[function.__name__] = function
    return function


def rows(count: int) -> dict[str, Any]:
    """Numbers of several types that identify each sample."""
    numbers = np.arange(count)
    return {
        "id": numbers,
        "vector": (numbers[:, None] * [1.0, 0.5, 0.25]).astype(np.float32),
        "small": numbers.astype(np.uint16),
        "is_even": numbers % 2 == 0,
    }


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].numpy().tolist() for batch in batches]


def strategy() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def on_replicas(two: Any, distributed_batches: Any) -> list[list[Any]]:
    """The ids that each replica saw, step by step."""
    seen: list[list[Any]] = [[], []]
    for batch in distributed_batches:
        for replica, local in enumerate(two.experimental_local_results(batch)):
            seen[replica].append(local["id"].numpy().tolist())
    return seen


class Opened:
    """Counts with inotify how often each file of a folder is opened."""

    def __init__(self, folder: Path) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.queue = self.libc.inotify_init1(os.O_NONBLOCK)
        in_open = 0x20
        assert self.libc.inotify_add_watch(self.queue, os.fsencode(folder), in_open) >= 0

    def counts(self) -> Counter[str]:
        found: Counter[str] = Counter()
        while True:
            try:
                events = os.read(self.queue, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                _watch, _mask, _cookie, length = struct.unpack_from("iIII", events, at)
                at += 16
                name = events[at : at + length].rstrip(b"\0").decode()
                at += length
                # Events of the folder itself have no name.
                found.update([name] if name else [])


# ---- elements ----


@check
def specs(photos: Path) -> Any:
    of = {
        "open": fl.arrays(rows(10)).batch(4),
        "full": fl.arrays(rows(10)).batch(4, drop_last=True, index=True),
        "pictures": fl.images(photos).decode().batch(1),
        "padded": fl.images(photos).decode("gray").to_float().batch(2, pad=True),
        "cropped": fl.images(photos).decode().center_crop(8).cast("float16").batch(2),
        "files": fl.images(photos).batch(2, drop_last=True),
    }
    return {
        name: {
            column: [spec.dtype.name, spec.shape.as_list()]
            for column, spec in dataset(one).element_spec.items()
        }
        for name, one in of.items()
    }


@check
def every_column_is_that_of_the_loader(photos: Path) -> Any:
    pipeline = fl.arrays(rows(10)).shuffle(3).batch(4)
    batches, tensors = list(pipeline.loader()), list(dataset(pipeline))
    return [len(batches), len(tensors)] + [
        bool(np.array_equal(theirs[name].numpy(), ours[name]))
        for ours, theirs in zip(batches, tensors, strict=True)
        for name in ours
    ]


@check
def an_array_is_the_memory_of_the_batch(photos: Path) -> Any:
    made, original = [], table.array_of

    def noted(value: Any, kind: str) -> Any:
        array = original(value, kind)
        made.append(array.ctypes.data)
        return array

    table.array_of = noted
    try:
        batches = list(dataset(fl.arrays({"x": np.ones((12, 1000), np.float32)}).batch(4)))
    finally:
        table.array_of = original
    return [np.from_dlpack(batch["x"]).ctypes.data for batch in batches] == made


@check
def bytes_come_whole(photos: Path) -> Any:
    folder = photos.parent / "raw"
    folder.mkdir()
    contents = [b"one", b"\0two\0\0", bytes(range(256)), b""]
    for number, content in enumerate(contents):
        (folder / f"{number}.bin").write_bytes(content)
    batches = list(dataset(fl.files(f"{folder}/*.bin").batch(3)))
    return [batch["bytes"].dtype.name for batch in batches], [
        bytes(one) in contents for batch in batches for one in batch["bytes"].numpy()
    ]


@check
def chosen_columns_come_as_tuples_and_one_alone(photos: Path) -> Any:
    loader = fl.arrays(rows(4)).batch(4).loader()
    (vector, number), alone = next(iter(dataset(loader, ["vector", "id"]))), next(iter(dataset(loader, "id")))
    return [list(vector.shape), number.numpy().tolist(), alone.numpy().tolist()]


def shards(folder: Path, count: int, records: int) -> str:
    """TFRecord files from TensorFlow's own writer; each record contains its file and its number."""
    folder.mkdir()
    for shard in range(count):
        with tf.io.TFRecordWriter(str(folder / f"{shard:02}.tfrecord")) as writer:
            for number in range(records + shard):
                feature = {
                    "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[100 * shard + number])),
                    "box": tf.train.Feature(
                        float_list=tf.train.FloatList(value=[float(number)] * 4 * (number % 3))
                    ),
                    "words": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[b"w%d" % word for word in range(number % 4)])
                    ),
                    "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=["übung".encode()])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return f"{folder}/*.tfrecord"


FIELDS = {
    "id": fl.int64(),
    "box": fl.float32(shape=[None, 4]),
    "words": fl.bytes_(shape=[None]),
    "name": fl.text(),
}


@check
def what_differs_in_length_is_ragged(photos: Path) -> Any:
    source = fl.tfrecord(shards(photos.parent / "ragged", 1, 5)).parse(FIELDS)
    spec = dataset(source.batch(3)).element_spec
    full = dataset(source.batch(3, drop_last=True)).element_spec
    padded = dataset(source.batch(3, pad=True).loader(), ("box", "box_lengths"))
    return {
        "spec": [
            spec["box"] == tf.RaggedTensorSpec([None, None, 4], tf.float32, 1),
            spec["words"] == tf.RaggedTensorSpec([None, None], tf.string, 1),
            full["box"].shape.as_list(),
            list(spec),
        ],
        "box": [batch["box"].to_list() for batch in dataset(source.batch(3))],
        "words": [
            [[word.decode() for word in sample] for sample in batch["words"].to_list()]
            for batch in dataset(source.batch(3))
        ],
        "name": [name.decode() for batch in dataset(source.batch(3)) for name in batch["name"].numpy()],
        "one": [one.to_list() for one in dataset(source.batch(5), "box")],
        "padded": [[box.numpy().tolist(), counts.numpy().tolist()] for box, counts in padded],
    }


# ---- epochs ----


@check
def each_iteration_is_the_next_epoch(photos: Path) -> Any:
    pipeline = fl.arrays(rows(6)).shuffle(5).batch(4)
    loader, tensors = pipeline.loader(), dataset(pipeline)
    expected = [[batch["id"].tolist() for batch in loader] for _ in range(2)]
    return expected, [ids(tensors) for _ in range(2)], ids(dataset(pipeline).repeat(2).prefetch(2))


@check
def the_number_of_batches_is_known(photos: Path) -> Any:
    loader = fl.arrays(rows(10)).batch(4).loader()
    sharded = fl.arrays(rows(10)).shard(0, 2).batch(4)
    skip = fl.FaultPolicy("skip")
    unknown = tf.data.UNKNOWN_CARDINALITY
    return {
        "open": len(dataset(loader)),
        "full": len(dataset(fl.arrays(rows(10)).batch(4, drop_last=True))),
        "chosen": len(dataset(loader, ("vector", "id"))),
        "skips": bool(dataset(fl.arrays(rows(10)).batch(4), faults=skip).cardinality() == unknown),
        "skips and fills": len(dataset(sharded, faults=skip)),
    }


def our_threads() -> list[str]:
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended meanwhile.
            names.append((thread / "comm").read_text().strip())
    return [name for name in names if name.startswith("feedline")]


@check
def an_iteration_can_be_left(photos: Path) -> Any:
    pipeline = fl.images(photos).decode().center_crop(8).batch(2, index=True)
    # A small prefetch, so that threads wait for the consumer.
    tensors = dataset(pipeline, prefetch=1000)
    left, during = [], []
    for _ in range(3):
        for batch in tensors:
            left.append(batch["index"].numpy().tolist())
            during.append(len(our_threads()) > 0)
            break
    gc.collect()
    after = our_threads()
    whole = [batch["index"].numpy().tolist() for batch in tensors]
    for _batch in distributed(strategy(), pipeline, prefetch=1000):
        break
    gc.collect()
    return left, during, after, whole, our_threads()


@check
def a_resumed_epoch_is_the_rest(photos: Path) -> Any:
    def fresh() -> fl.Loader:
        return fl.arrays(rows(10)).batch(2).loader()

    first = fresh()
    running = iter(first)
    next(running), next(running)
    text = first.state_dict()
    resumed = fresh()
    resumed.load_state_dict(text)
    tensors = dataset(resumed)
    late = fresh()
    made_before = dataset(late)
    late.load_state_dict(text)
    try:
        reported = str(ids(made_before))
    except tf.errors.OpError as error:
        reported = str(error)
    return ids(tensors), ids(tensors), reported


# ---- errors ----


@check
def an_error_says_what_it_would_say_without_tensorflow(photos: Path) -> Any:
    folder = photos.parent / "bad"
    folder.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:6]):
        content = path.read_bytes()
        (folder / f"{number}.jpg").write_bytes(content[:300] if number == 4 else content)
    tensors = dataset(fl.files(f"{folder}/*.jpg").decode().center_crop(8).batch(2))
    good, text, kind = 0, "", ""
    try:
        for _batch in tensors:
            good += 1
    except tf.errors.OpError as error:
        text, kind = str(error), type(error).__name__
    try:
        with unwrapped():
            list(tensors.prefetch(1))
    except fl.errors.CorruptImageError as error:
        attributes = [
            error.index,
            error.path,
            bool(error.hint),
            isinstance(error.__cause__, tf.errors.OpError),
        ]
    return good, kind, text, attributes


@check
def errors_of_others_pass_unchanged(photos: Path) -> Any:
    def broken(batch: Any) -> Any:
        return tf.ensure_shape(batch["id"], [7])

    try:
        with unwrapped():
            list(dataset(fl.arrays(rows(4)).batch(2)).map(broken))
    except tf.errors.InvalidArgumentError:
        return True
    return False


@check
def mistakes_are_refused(photos: Path) -> Any:
    pipeline = fl.arrays(rows(8)).batch(4)
    context = tf.distribute.InputContext(num_input_pipelines=1, num_replicas_in_sync=2)
    three = tf.distribute.InputContext(num_input_pipelines=1, num_replicas_in_sync=3)
    two: list[Callable[[], Any]] = [
        lambda: dataset([1, 2]),  # type: ignore[arg-type]
        lambda: dataset(pipeline, ["vector", "label"]),
        lambda: dataset(pipeline.loader(), threads=1),
        lambda: dataset(pipeline.loader(), input_context=context),
        lambda: dataset(pipeline, input_context=three),
        lambda: dataset(fl.arrays(rows(8)).shard(0, 2).batch(4), input_context=context),
        lambda: dataset(fl.arrays(rows(8)), input_context=context),
    ]
    reported = []
    for mistake in two:
        try:
            mistake()
            reported.append("")
        except fl.errors.InvalidArgumentError as error:
            reported.append(str(error))
    return reported


# ---- Python functions ----


def described(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["id"])
    return {"id": number, "half": np.full(3, number / 2, np.float32), "name": f"n{number}", "raw": b"x\0"}


def paired(batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return batch["vector"] * 2, {"id": batch["id"]}


def refused_at_six(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 6:
        raise LookupError("six is not there")
    return sample


@check
def functions_make_tensors_of_what_they_return(photos: Path) -> Any:
    pipeline = fl.arrays(rows(7)).shuffle(2).map(described).batch(3)
    expected = [
        [batch["id"].tolist() for batch in epoch]
        for epoch in [list(loader) for loader in [pipeline.loader()] * 2]
    ]
    tensors = dataset(pipeline, workers=1)
    spec = {name: [one.dtype.name, one.shape.as_list()] for name, one in tensors.element_spec.items()}
    found, epochs = [], []
    for _ in range(2):
        batches = list(tensors)
        epochs.append(ids(batches))
        found += [
            [batch["half"].numpy()[0, 0] * 2 == batch["id"].numpy()[0], batch["raw"].numpy()[0] == b"x\0"]
            for batch in batches
        ]
    names = [name.decode() for batch in tensors for name in batch["name"].numpy()]
    return spec, expected, epochs, bool(np.all(found)), len(tensors), sorted(names)


@check
def functions_of_batches_may_return_anything_that_tensors_hold(photos: Path) -> Any:
    pipeline = fl.arrays(rows(5)).batch(3).map_batch(paired, threads=True)
    tensors = dataset(pipeline)
    reported = dataset(
        pipeline,
        element_spec=(tf.TensorSpec([None, None], tf.float32), {"id": tf.TensorSpec(None, tf.int64)}),
    )
    first = next(iter(tensors))
    spec = tensors.element_spec
    return [
        spec[0].shape.as_list(),
        spec[1]["id"].dtype.name,
        reported.element_spec[0].shape.as_list(),
        first[0].numpy().tolist(),
        [batch[1]["id"].numpy().tolist() for batch in reported],
    ]


@check
def variable_lengths_stay_ragged_behind_functions(photos: Path) -> Any:
    fields = {"id": fl.int64(), "box": fl.float32(shape=[None, 4]), "words": fl.bytes_(shape=[None])}
    source = fl.tfrecord(shards(photos.parent / "mapped", 1, 4)).parse(fields).map(dict, threads=True)
    return [
        [
            batch["id"].numpy().tolist(),
            batch["box"].to_list(),
            [len(words) for words in batch["words"].to_list()],
        ]
        for batch in dataset(source.batch(2))
    ]


@check
def filters_leave_the_length_open(photos: Path) -> Any:
    pipeline = fl.arrays(rows(7)).filter(lambda sample: sample["id"] % 2 == 0, threads=True).batch(3)
    tensors = dataset(pipeline, "id")
    unknown = bool(tensors.cardinality() == tf.data.UNKNOWN_CARDINALITY)
    return [batch.numpy().tolist() for batch in tensors], unknown


@check
def what_no_tensor_holds_is_refused(photos: Path) -> Any:
    def of_different_shapes(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.zeros(1 + int(batch["id"][0]) // 2)[None]}

    def objects(sample: dict[str, Any]) -> dict[str, Any]:
        return {"id": sample["id"], "meta": {"a"}}

    source = fl.arrays(rows(4))
    reported = []
    for attempt in (
        lambda: dataset(source.map(objects, threads=True).batch(2)),
        lambda: list(dataset(source.batch(2).map_batch(of_different_shapes, threads=True))),
        lambda: dataset(source.batch(2), element_spec={"id": tf.TensorSpec([None], tf.int64)}),
    ):
        try:
            with unwrapped():
                attempt()
            reported.append("")
        except fl.errors.FeedlineError as error:
            reported.append(str(error))
    chosen = dataset(source.map(objects, threads=True).batch(2), ["id"])
    return reported, [batch[0].numpy().tolist() for batch in chosen]


@check
def an_exception_of_a_function_can_be_had(photos: Path) -> Any:
    tensors = dataset(fl.arrays(rows(8)).map(refused_at_six, threads=True).batch(2))
    try:
        with unwrapped():
            list(tensors)
    except LookupError as error:
        return str(error), isinstance(error.__cause__, tf.errors.OpError)
    return None


@check
def replicas_share_functions(photos: Path) -> Any:
    two = strategy()
    pipeline = fl.arrays(rows(9)).map(described).batch(4)
    context = tf.distribute.InputContext(num_input_pipelines=1, num_replicas_in_sync=2)
    loaders = feedline.tensorflow._loaders(pipeline, context, "auto", {"workers": 4})
    seen = on_replicas(two, distributed(two, pipeline, workers=2))
    return seen, [loader.count for loader in loaders]  # type: ignore[attr-defined]


# ---- replicas ----


@check
def two_replicas_have_a_shard_each(photos: Path) -> Any:
    two = strategy()
    batches = distributed(two, fl.arrays(rows(12)).batch(6))
    return [on_replicas(two, batches) for _ in range(2)]


@check
def samples_that_cannot_be_divided_come_once(photos: Path) -> Any:
    two = strategy()
    pipeline = fl.arrays(rows(13)).shuffle(1).batch(4)
    return on_replicas(two, distributed(two, pipeline))


@check
def full_batches_end_with_the_shortest(photos: Path) -> Any:
    two = strategy()
    return on_replicas(two, distributed(two, fl.arrays(rows(13)).batch(4, drop_last=True)))


@check
def a_global_batch_is_divided_among_replicas(photos: Path) -> Any:
    two = strategy()
    whole = dataset(fl.arrays(rows(13)).batch(4))
    return on_replicas(two, two.experimental_distribute_dataset(whole))


@check
def replicas_open_no_file_twice(photos: Path) -> Any:
    two = strategy()
    folder = photos.parent / "opened"
    folder.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:12]):
        (folder / f"{number:02}.jpg").write_bytes(path.read_bytes())
    pipeline = fl.files(f"{folder}/*.jpg", labels=range(12)).decode().center_crop(8).batch(4)
    opened = Opened(folder)
    batches = distributed(two, pipeline)
    seen: list[int] = []
    for batch in batches:
        for local in two.experimental_local_results(batch):
            seen += local["label"].numpy().tolist()
    return sorted(seen), sorted(opened.counts().items())


@check
def replicas_have_shards_of_their_own(photos: Path) -> Any:
    folder, two = photos.parent / "shards", strategy()
    pipeline = fl.tfrecord(shards(folder, 5, 7)).shuffle(3).parse(FIELDS).batch(6)
    opened = Opened(folder)
    seen = on_replicas(two, distributed(two, pipeline))
    counts = sorted(opened.counts().items())
    by_record = distributed(two, pipeline, by="record")
    counted = distributed(
        two, fl.tfrecord(f"{folder}/*.tfrecord").take(20).parse({"id": fl.int64()}).batch(6)
    )
    return seen, counts, on_replicas(two, by_record), on_replicas(two, counted)


@check
def workers_with_an_input_context_each_have_their_replicas(photos: Path) -> Any:
    """Simulates two machines with two replicas each."""
    machines = []
    for number in range(2):
        context = tf.distribute.InputContext(
            num_input_pipelines=2, input_pipeline_id=number, num_replicas_in_sync=4
        )
        tensors = dataset(fl.arrays(rows(16)).batch(8), input_context=context)
        policy = tensors.options().experimental_distribute.auto_shard_policy
        machines.append([ids(tensors), policy.name])
    whole = dataset(fl.arrays(rows(16)).batch(8))
    return machines, whole.options().experimental_distribute.auto_shard_policy.name


@check
def replicas_share_what_one_may_use(photos: Path) -> Any:
    context = tf.distribute.InputContext(num_input_pipelines=1, num_replicas_in_sync=2)
    pipeline = fl.images(photos).decode().center_crop(8).batch(4)
    loaders = feedline.tensorflow._loaders(
        pipeline, context, "auto", {"threads": 6, "files": 9, "memory": "64MiB"}
    )
    return [[loader.decided[name] for name in ("threads", "files", "memory")] for loader in loaders]


# ---- Keras ----


def model() -> Any:
    made = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    return made


class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches of each epoch, and how many Keras expected."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[int | None]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append([0, self.params["steps"]])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.epochs[-1][0] = (self.epochs[-1][0] or 0) + 1


@check
def keras_fits_and_knows_the_steps(photos: Path) -> Any:
    loader = fl.arrays({"x": np.ones((20, 3), np.float32), "y": np.ones((20, 1), np.float32)}).shuffle(1)
    tensors, steps = dataset(loader.batch(8), ("x", "y")), Steps()
    history = model().fit(tensors, epochs=3, verbose=0, callbacks=[steps])
    return steps.epochs, len(history.history["loss"])


@check
def keras_fits_on_two_replicas(photos: Path) -> Any:
    loader = fl.arrays({"x": np.ones((20, 3), np.float32), "y": np.ones((20, 1), np.float32)}).batch(8)
    steps, two = Steps(), strategy()
    with two.scope():
        model().fit(dataset(loader, ("x", "y")), epochs=2, verbose=0, callbacks=[steps])
    return steps.epochs


@check
def a_compiled_loop_can_iterate(photos: Path) -> Any:
    tensors = dataset(fl.arrays(rows(10)).batch(4))

    @tf.function  # type: ignore[untyped-decorator]
    def total() -> Any:
        result = tf.constant(0, tf.int64)
        for batch in tensors:
            result += tf.reduce_sum(batch["id"])
        return result

    return int(total()), int(total())


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    wanted = sys.argv[2:] or CHECKS
    found = {}
    for name in wanted:
        try:
            found[name] = CHECKS[name](Path(sys.argv[1]))
        except Exception:
            found[name] = {"raised": traceback.format_exc()}
    found["threads at the end"] = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
