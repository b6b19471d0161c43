"""Measures epochs with a cache beside epochs without, and beside tf.data's `.cache()`.

    python benchmarks/cache.py           everything, for published results
    python benchmarks/cache.py --quick   checks that everything runs, measures little

All contestants decode JPEGs of 500x375, resize the shorter side to 256, crop a random part of 224x224, flip
it at random and make batches of 64 in float32, in shuffled order. They differ in what they keep of the first
epoch:

    feedline               nothing; the system keeps the files in its page cache
    feedline bytes         .cache(memory=...) before decode: the files
    feedline memory        .cache(memory=...) after resize: the images
    feedline folder        .cache("folder", size=...) after resize: the images, in files
    tf.data                nothing
    tf.data memory         .cache() after the resize
    tf.data folder         .cache("file") after the resize

Each measurement is a process of its own, in turns. Epochs 1 and 2 are measured separately.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import photos
import report
from clocks import cpu_seconds
from turns import log

ROOT = Path(__file__).parent.parent
CONTESTANTS = (
    "feedline",
    "feedline bytes",
    "feedline memory",
    "feedline folder",
    "tf.data",
    "tf.data memory",
    "tf.data folder",
)
BATCH, SHORTER, SIDE, EPOCHS = 64, 256, 224, 2
MEMORY, FOLDER = "2GiB", "8GiB"
COUNT, QUICK_COUNT = 3000, 320
THREADS = 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LONGEST_SECONDS = 1200

Epoch = Callable[[], Iterator[Any]]


def open_feedline(folder: str, kept: str, target: str) -> Epoch:
    import feedline as fl

    pipeline = fl.images(folder).shuffle(seed=7)
    if kept == "bytes":
        pipeline = pipeline.cache(memory=MEMORY)
    pipeline = pipeline.decode().resize(SHORTER)
    if kept == "memory":
        pipeline = pipeline.cache(memory=MEMORY)
    elif kept == "folder":
        pipeline = pipeline.cache(target, size=FOLDER)
    pipeline = pipeline.random_crop(SIDE).flip().to_float(MEAN, STD).batch(BATCH)
    loader = pipeline.loader(threads=THREADS)
    return lambda: (batch["image"] for batch in loader)


def open_tensorflow(folder: str, kept: str, target: str) -> Epoch:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    files = sorted(map(str, Path(folder).rglob("*.jpg")))

    def load(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        shape = tf.cast(tf.shape(image)[:2], tf.float32)
        scale = SHORTER / tf.reduce_min(shape)
        size = tf.cast(tf.round(shape * scale), tf.int32)
        resized = tf.image.resize(image, size, antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)

    def augment(image: Any) -> Any:
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, (SIDE, SIDE, 3)))
        return (tf.cast(image, tf.float32) / 255 - MEAN) / STD

    data = tf.data.Dataset.from_tensor_slices(files).map(load, num_parallel_calls=THREADS)
    if kept == "memory":
        data = data.cache()
    elif kept == "folder":
        data = data.cache(target + "/cache")
    data = data.shuffle(1000, reshuffle_each_iteration=True).map(augment, num_parallel_calls=THREADS)
    data = data.batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    data = data.with_options(options)
    return lambda: iter(data)


def measure(contestant: str, folder: str) -> list[list[float]]:
    """Images per second and CPU µs per image of each epoch."""
    for path in Path(folder).rglob("*.jpg"):
        path.read_bytes()
    loader, _, kept = contestant.partition(" ")
    open_one = open_feedline if loader == "feedline" else open_tensorflow
    with tempfile.TemporaryDirectory(dir=ROOT / ".bench") as target:
        epoch = open_one(folder, kept, target)
        measured = []
        for _ in range(EPOCHS):
            images = 0
            cpu, start = cpu_seconds(), time.perf_counter()
            for batch in epoch():
                assert SIDE in tuple(batch.shape)
                assert "float32" in str(batch.dtype)
                images += len(batch)
            seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
            measured.append([images / seconds, 1e6 * cpu / images])
        return measured


def run_one(contestant: str, folder: Path) -> list[list[float]]:
    command = [sys.executable, __file__, "--one", contestant, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    found: list[list[float]] = json.loads(lines[-1])
    return found


def table(measured: dict[str, list[list[list[float]]]]) -> list[str]:
    rows = [
        [
            "contestant",
            "epoch 1, images/s",
            "epoch 2, images/s",
            "CPU µs",
            "CPU µs",
            "epoch 2 / epoch 1",
            "CPU",
        ]
    ]
    for name, runs in measured.items():
        if not runs:
            continue
        (rate_1, cpu_1), (rate_2, cpu_2) = (
            [median(run[epoch][of] for run in runs) for of in (0, 1)] for epoch in (0, 1)
        )
        rates = [f"{rate_1:,.0f}", f"{rate_2:,.0f}", f"{cpu_1:,.0f}", f"{cpu_2:,.0f}"]
        rows.append([name, *rates, f"{rate_2 / rate_1:.2f}", f"{cpu_2 / cpu_1:.2f}"])
    return report.aligned(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few images, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (3; with --quick 1)")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.folder)), flush=True)
        return
    folder = ROOT / ".bench" / ("quick-small" if arguments.quick else "small")
    photos.make(folder, QUICK_COUNT if arguments.quick else COUNT, 500, 375)
    names = arguments.only
    measured: dict[str, list[list[list[float]]]] = {name: [] for name in names}
    repeat = arguments.repeat or (1 if arguments.quick else 3)
    for repetition in range(repeat):
        turn = repetition % len(names)
        for name in [*names[turn:], *names[:turn]]:
            try:
                found = run_one(name, folder)
            except RuntimeError as error:
                log(f"{name}: left out, {error}")
                continue
            measured[name].append(found)
            log(
                f"{repetition + 1}/{repeat} {name}: " + ", ".join(f"{rate:.0f} images/s" for rate, _ in found)
            )
    machine = report.machine()
    lines = table(measured)
    print("\n".join(lines))
    results = (
        arguments.results or ROOT / (".bench" if arguments.quick else "benchmarks") / "results" / "cache"
    )
    results.mkdir(parents=True, exist_ok=True)
    text = [*report.opening("Caches: the second epoch", machine), "", *lines]
    (results / "cache.md").write_text("\n".join(text) + "\n")
    (results / "cache.json").write_text(json.dumps({**machine, "measured": measured}, indent=1) + "\n")
    log(f"wrote {results}")


if __name__ == "__main__":
    main()
