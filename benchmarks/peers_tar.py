"""The contestants of the case `tar`: shards of JPEGs with labels, resized to 256, cropped to 224, float32.

`images` is feedline on the same JPEGs as a folder: shards should cost no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from multiprocessing import Value
from pathlib import Path
from typing import Any

import peers
from peers import BATCH, Contestant, Epoch, Workload
from peers_tfrecord import epochs_of

WORKLOAD: Workload = "center-float"


def feedline(folder: str, case: str, threads: int) -> Epoch:
    import feedline as fl

    pipeline = (
        fl.tar(f"{folder}/*.tar")
        .decode(field="jpg")
        .resize(peers.SHORTER)
        .center_crop(peers.SIDE)
        .to_float(peers.MEAN, peers.STD)
    )
    return epochs_of(pipeline.batch(BATCH).loader(threads=threads), "image")


def images(folder: str, case: str, threads: int) -> Epoch:
    return peers.feedline(f"{folder}/photos", WORKLOAD, threads)


def webdataset(folder: str, case: str, threads: int) -> Epoch:
    import webdataset as wds
    from torchvision.transforms import v2

    steps = [*peers.torchvision_steps(WORKLOAD), v2.PILToTensor(), *peers.torchvision_floats(WORKLOAD)]
    transform = v2.Compose(steps)
    paths = sorted(str(path) for path in Path(folder).glob("*.tar"))
    # How many batches each worker delivers; -1 for all. In shared memory, since workers are persistent;
    # breaking out of an epoch instead would leave them busy with the rest.
    limit = Value("q", -1)

    def limited(batches: Iterable[Any]) -> Iterator[Any]:
        count = limit.value
        return itertools.islice(batches, None if count < 0 else count)

    data = (
        wds.WebDataset(paths, shardshuffle=False)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(BATCH)
        .compose(limited)
    )
    loader = wds.WebLoader(data, batch_size=None, num_workers=threads, persistent_workers=threads > 0)

    def epoch(batches: int | None) -> Iterator[Any]:
        limit.value = -1 if batches is None else -(-batches // max(1, threads))
        for pictures, _labels in loader:
            yield pictures

    return epoch


def dali(folder: str, case: str, threads: int) -> Epoch:
    from nvidia.dali import fn

    paths = sorted(Path(folder).glob("*.tar"))

    def read() -> Any:
        return fn.readers.webdataset(
            paths=[str(path) for path in paths],
            index_paths=[str(path.with_suffix(".idx")) for path in paths],
            ext=["jpg", "cls"],
            name="files",
        )

    return peers.dali_epochs(read, WORKLOAD, threads)


PHOTOS = (
    Contestant("feedline", "feedline, threads", ("feedline",), feedline),
    Contestant("images", "feedline on the same JPEGs as a folder", ("feedline",), images),
    Contestant(
        "webdataset",
        "webdataset, worker processes, Pillow",
        ("webdataset", "torch", "torchvision"),
        webdataset,
    ),
    Contestant("dali", "NVIDIA DALI on the CPU, with index files", ("nvidia.dali",), dali),
)
