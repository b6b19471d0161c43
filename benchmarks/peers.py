"""The contestants of the image benchmark: the same work, written for each loader.

All read the same folder, decode with the accurate DCT and smooth chroma, resize with antialiasing and deliver
batches with labels: uint8, or float32 minus the mean and divided by the standard deviation. None may do less
than the others, and none may cache decoded images.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BATCH = 64
SHORTER, SIDE = 256, 224
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
BARE = Path(__file__).parent.parent / "target" / "release" / "examples" / "bare"

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Workload = Literal["center", "random", "center-float", "random-float"]
# Yields the images of one epoch batch by batch, or only of its first batches. After the last one no work of
# that epoch is in progress, so that it does not count in the next measurement.
Epoch = Callable[[int | None], Iterator[Any]]


@dataclass(frozen=True)
class Contestant:
    """A loader, the function that opens it, and the modules that it needs."""

    name: str
    about: str
    needs: tuple[str, ...]
    # Takes a folder, a workload and a number of threads.
    open: Callable[[str, Any, int], Epoch] | None

    def missing(self) -> str | None:
        """Why this contestant cannot run here."""
        if self.open is None:
            how = "cargo build --release -p feedline-core --features testing --example bare"
            return None if BARE.exists() else f"{BARE} is missing; build it with {how}"
        absent = [module for module in self.needs if not _is_installed(module)]
        return f"not installed: {', '.join(absent)}" if absent else None


def is_random(workload: Workload) -> bool:
    return workload.startswith("random")


def is_float(workload: Workload) -> bool:
    return workload.endswith("float")


def feedline(folder: str, workload: Workload, threads: int) -> Epoch:
    import feedline as fl

    source = fl.images(folder)
    if is_random(workload):
        pipeline = source.shuffle(1).decode().random_resized_crop(SIDE).flip()
    else:
        pipeline = source.decode().resize(SHORTER).center_crop(SIDE)
    if is_float(workload):
        pipeline = pipeline.to_float(MEAN, STD)
    loader = pipeline.batch(BATCH).loader(threads=threads)

    def epoch(batches: int | None) -> Iterator[Any]:
        running = iter(loader)
        for batch in itertools.islice(running, batches):
            yield batch["image"]
        running.close()

    return epoch


def torch_pil(folder: str, workload: Workload, threads: int) -> Epoch:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = torchvision_steps(workload)
    transform = v2.Compose([*steps, v2.PILToTensor(), *torchvision_floats(workload)])
    return torch_epochs(ImageFolder(folder, transform), is_random(workload), threads, lambda batch: batch[0])


def torch_io(folder: str, workload: Workload, threads: int) -> Epoch:
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    def load(path: str) -> Any:
        return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)

    transform = v2.Compose([*torchvision_steps(workload), *torchvision_floats(workload)])
    dataset = ImageFolder(folder, transform, loader=load)
    return torch_epochs(dataset, is_random(workload), threads, lambda batch: batch[0])


def torchvision_steps(workload: Workload) -> list[Any]:
    from torchvision.transforms import v2

    if is_random(workload):
        return [v2.RandomResizedCrop(SIDE, AREA, RATIO, antialias=True), v2.RandomHorizontalFlip()]
    return [v2.Resize(SHORTER, antialias=True), v2.CenterCrop(SIDE)]


def torchvision_floats(workload: Workload) -> list[Any]:
    import torch
    from torchvision.transforms import v2

    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if is_float(workload) else []


def torch_epochs(dataset: Any, shuffled: bool, threads: int, picked: Callable[[Any], Any]) -> Epoch:
    """The epochs of torch's loader over a map-style data set; `picked` returns the part of a batch that is
    counted."""
    import torch
    from torch.utils.data import DataLoader, Sampler

    class Order(Sampler[int]):
        """All samples, or the first ones: breaking out of an epoch would leave workers busy with the rest."""

        limit: int | None = None

        def __iter__(self) -> Iterator[int]:
            count = len(dataset)
            order = torch.randperm(count).tolist() if shuffled else list(range(count))
            return iter(order[: self.limit])

        def __len__(self) -> int:
            return min(len(dataset), len(dataset) if self.limit is None else self.limit)

    order = Order()
    # Persistent workers start during the warm-up, and their CPU time can be read at any moment.
    loader = DataLoader(
        dataset, batch_size=BATCH, sampler=order, num_workers=threads, persistent_workers=threads > 0
    )

    def epoch(batches: int | None) -> Iterator[Any]:
        order.limit = None if batches is None else batches * BATCH
        for batch in loader:
            yield picked(batch)

    return epoch


def tf_data(folder: str, workload: Workload, threads: int) -> Epoch:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    # By default TensorFlow uses the fast, less accurate DCT.
    accurate = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}

    def center(path: Any, label: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), **accurate)
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        shorter = tf.minimum(height, width)
        size = tf.stack([SHORTER * height // shorter, SHORTER * width // shorter])
        image = tf.image.resize(image, size, "bilinear", antialias=True)
        top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
        image = tf.image.crop_to_bounding_box(image, top, left, SIDE, SIDE)
        return converted(image), label

    def converted(image: Any) -> Any:
        return (image / 255.0 - MEAN) / STD if is_float(workload) else tf.cast(image, tf.uint8)

    def random(path: Any, label: Any) -> tuple[Any, Any]:
        content = tf.io.read_file(path)
        begin, size, _box = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(content),
            bounding_boxes=tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=AREA,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(content, window, **accurate)
        image = tf.image.resize(image, [SIDE, SIDE], "bilinear", antialias=True)
        return tf.image.random_flip_left_right(converted(image)), label

    classes = sorted(entry for entry in Path(folder).iterdir() if entry.is_dir())
    listed = [(str(path), label) for label, kind in enumerate(classes) for path in sorted(kind.iterdir())]
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads

    def epoch(batches: int | None) -> Iterator[Any]:
        limit = None if batches is None else batches * BATCH
        paths, labels = zip(*listed[:limit], strict=True)
        data = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
        if is_random(workload):
            data = data.shuffle(len(paths))
        data = data.map(random if is_random(workload) else center, num_parallel_calls=threads)
        for images, _labels in data.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options):
            yield images

    return epoch


def dali(folder: str, workload: Workload, threads: int) -> Epoch:
    from nvidia.dali import fn

    def read() -> Any:
        return fn.readers.file(file_root=folder, name="files", shuffle_after_epoch=is_random(workload))

    return dali_epochs(read, workload, threads)


def dali_epochs(read: Callable[[], Any], workload: Workload, threads: int) -> Epoch:
    """The epochs of DALI over a reader named "files", which returns JPEGs and labels."""
    import numpy as np
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipeline = Pipeline(batch_size=BATCH, num_threads=threads, device_id=None, seed=1)
    with pipeline:
        content, labels = read()
        if is_random(workload):
            images = fn.decoders.image_random_crop(
                content, device="cpu", output_type=types.RGB, random_area=AREA, random_aspect_ratio=RATIO
            )
            images = fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
            mirror = fn.random.coin_flip()
        else:
            images = fn.decoders.image(content, device="cpu", output_type=types.RGB)
            images = fn.resize(
                images, resize_shorter=SHORTER, interp_type=types.INTERP_LINEAR, antialias=True
            )
            mirror = None
        if is_float(workload):
            images = fn.crop_mirror_normalize(
                images,
                crop=(SIDE, SIDE),
                mirror=0 if mirror is None else mirror,
                mean=[255 * mean for mean in MEAN],
                std=[255 * std for std in STD],
                dtype=types.FLOAT,
            )
        elif mirror is None:
            images = fn.crop(images, crop=(SIDE, SIDE))
        else:
            images = fn.flip(images, horizontal=mirror)
        pipeline.set_outputs(images, labels)
    pipeline.build()
    whole = -(-pipeline.reader_meta("files")["epoch_size"] // BATCH)

    def epoch(batches: int | None) -> Iterator[Any]:
        # The pipeline prefetches across the end of an epoch, so as many batches are ready at the start of a
        # measurement as at its end. The last batch of an epoch is filled from the next one.
        for _ in range(whole if batches is None else min(batches, whole)):
            images, _labels = pipeline.run()
            yield np.asarray(images.as_tensor())

    return epoch


def run_bare(folder: str, workload: Workload, threads: int) -> dict[str, float]:
    """Feedline's decoding and resizing in a bare loop, without a loader. The program measures itself."""
    command = [str(BARE), folder, workload, str(threads)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return measured


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("feedline", "feedline, threads", ("feedline",), feedline),
        Contestant(
            "torch-pil", "torch DataLoader, worker processes, Pillow", ("torch", "torchvision"), torch_pil
        ),
        Contestant(
            "torch-io", "torch DataLoader, worker processes, decode_jpeg", ("torch", "torchvision"), torch_io
        ),
        Contestant("tf.data", "tf.data, parallel map", ("tensorflow",), tf_data),
        Contestant("dali", "NVIDIA DALI on the CPU", ("nvidia.dali",), dali),
        Contestant("bare", "feedline's decode and resize in a loop, no loader", (), None),
    )
}
