"""Causes one failure in one front, in this process, and prints the result as JSON.

    python tools/faults/failures.py FRONT FAILURE FOLDER [--default]

With --default only the data set and the workers are set. Fronts: torch (torch's own DataLoader), feedline
(feedline.torch.DataLoader), executor, native. FOLDER has the files that some failures need, and markers that
outlive a worker.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import mmap
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import torch

LENGTH, BATCH, WORKERS = 48, 4, 2
BAD_INDEX = 13
MEBIBYTE = 1 << 20

folder = Path()
lock = threading.Lock()
kept: list[Any] = []


class UnpicklableError(Exception):
    """Cannot be sent to another process."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)
        self.lock = threading.Lock()


def once(name: str) -> bool:
    """True for the first call in any process."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def bus_error() -> None:
    path = folder / f"mapped-{os.getpid()}"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        view = mmap.mmap(file.fileno(), 8192)
        os.truncate(path, 0)
        view[0]


def throw(kind: type[BaseException], *arguments: Any) -> None:
    raise kind(*arguments)


def loop_in_c() -> None:
    # Exponential backtracking, which holds the GIL.
    re.match(r"(a+)+$", "a" * 60 + "b")


def with_lock() -> None:
    with lock:
        pass


def leak_descriptors() -> None:
    time.sleep(0.03)
    kept.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(9))


def use_openmp() -> None:
    torch.stack([torch.ones(300, 300)] * 16).sum()


def eio(index: int) -> None:
    # One read in ten fails.
    count = folder / f"eio-{index}"
    retries = count.stat().st_size if count.exists() else 0
    with count.open("ab") as file:
        file.write(b".")
    if (index * 7 + retries * 3) % 10 == 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def from_mount(index: int) -> None:
    mount = folder / "mount"
    if index == BAD_INDEX and once("vanished"):
        mount.rename(folder / "away")
        if os.fork() == 0:
            time.sleep(1.5)
            (folder / "away").rename(mount)
            os._exit(0)
    (mount / f"{index}").read_bytes()


# Failures that happen before a sample is loaded.
WORKER_FAILURES: dict[str, Callable[[int], Any]] = {
    "exception": lambda index: index == BAD_INDEX and throw(ValueError, "bad sample"),
    "exception that cannot be pickled": lambda index: index == BAD_INDEX and throw(UnpicklableError, 1, 2),
    "SystemExit": lambda index: index == BAD_INDEX and sys.exit(3),
    "StopIteration": lambda index: index == BAD_INDEX and throw(StopIteration),
    "SIGKILL": lambda index: index == BAD_INDEX and once("struck") and os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda index: index == BAD_INDEX and once("struck") and ctypes.string_at(0),
    "SIGBUS": lambda index: index == BAD_INDEX and once("struck") and bus_error(),
    "os._exit": lambda index: index == BAD_INDEX and once("struck") and os._exit(7),
    "hang, interpreter free": lambda index: index == BAD_INDEX and once("struck") and time.sleep(1000),
    "hang in C code, interpreter locked": lambda index: index == BAD_INDEX and once("struck") and loop_in_c(),
    "SIGSTOP": lambda index: index == BAD_INDEX and once("struck") and os.kill(os.getpid(), signal.SIGSTOP),
    "killed out of memory (cgroup)": lambda index: (
        index == BAD_INDEX and once("struck") and kept.append(bytearray(os.urandom(1)) * (2048 * MEBIBYTE))
    ),
    "slow leak of memory": lambda index: kept.append(bytearray(b"x" * (8 * MEBIBYTE))),
    "leak of descriptors": lambda index: leak_descriptors(),
    "EIO at 10 % of the reads": eio,
    "mount that vanishes for 1.5 s": from_mount,
    "sample that always kills": lambda index: index == BAD_INDEX and os.kill(os.getpid(), signal.SIGKILL),
    "sample that always hangs": lambda index: index == BAD_INDEX and time.sleep(1000),
    "lock held while forking": lambda index: with_lock(),
    "OpenMP used before the fork": lambda index: use_openmp(),
}
# Failures that change the sample.
SAMPLES: dict[str, Callable[[int], Any]] = {
    "ragged shapes": lambda index: torch.full((3 if index == BAD_INDEX else 2,), index),
    "None": lambda index: None if index == BAD_INDEX else torch.tensor(index),
    "batch that cannot be pickled": lambda index: {"index": index, "lock": threading.Lock()},
}
# Failures of the training loop or from outside, in the middle of the epoch.
TRAINER = (
    "break",
    "exception in the training loop",
    "Ctrl-C",
    "SIGTERM of the trainer",
    "SIGKILL of the trainer",
)
FAILURES = (*WORKER_FAILURES, *SAMPLES, *TRAINER)


def make(failure: str, index: int) -> Any:
    """Computes a sample, with the failure."""
    if failure in WORKER_FAILURES:
        WORKER_FAILURES[failure](index)
    if failure in SAMPLES:
        return SAMPLES[failure](index)
    return torch.tensor(index)


class Samples(torch.utils.data.Dataset[Any]):
    """A data set with a failure."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return make(self.failure, index)


class Call:
    """A function with a failure, for an executor."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def __call__(self, index: int) -> Any:
        sample = make(self.failure, index)
        return sample if isinstance(sample, (dict, type(None))) else index


def policy() -> fl.FaultPolicy:
    return fl.FaultPolicy("skip", retry=5, backoff=0.02)


def loader_of(front: str, failure: str, *, is_default: bool) -> Any:
    """The loader or executor of a front."""
    common: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS}
    if front == "torch":
        return torch.utils.data.DataLoader(Samples(failure), **common)
    more: dict[str, Any] = {} if is_default else {"faults": policy(), "deadline": 2.0}
    if failure == "slow leak of memory" and not is_default:
        more["max_worker_memory"] = "700MiB"
    if front == "feedline":
        from feedline.torch import DataLoader

        return DataLoader(Samples(failure), **common, **more)
    if front == "executor":
        return fl.Executor(WORKERS, **more)
    return native(failure, is_default=is_default)


def native(failure: str, *, is_default: bool) -> Any:
    files = folder / "mount"
    if failure == "exception":
        (files / f"{BAD_INDEX:03}.png").write_bytes(b"no picture")
    if failure == "mount that vanishes for 1.5 s":
        threading.Thread(target=vanish, args=(files,), daemon=True).start()
    pipeline = fl.files(sorted(files.glob("*.png"))).decode().resize((8, 8)).batch(BATCH, index=True)
    if failure == "EIO at 10 % of the reads":
        from feedline.testing import chaos

        pipeline = chaos(pipeline, seed=1, eio=0.1)
    # Prefetched batches would hide what happens in the middle of the epoch.
    return pipeline.loader(faults=None if is_default else policy(), prefetch=1)


def vanish(files: Path) -> None:
    time.sleep(0.02)
    files.rename(folder / "away")
    time.sleep(1.5)
    (folder / "away").rename(files)


def indices_of(front: str, batch: Any) -> list[int]:
    if front == "executor":
        if isinstance(batch, fl.Skipped):
            return []
        return [batch if isinstance(batch, int) else BAD_INDEX]
    if isinstance(batch, dict):
        return [int(index) for index in batch["index"]]
    return [int(index) for index in batch.flatten()]


def iterate(front: str, failure: str, loader: Any) -> Iterator[Any]:
    if front == "executor":
        return iter(loader.map(Call(failure), range(LENGTH)))
    return iter(loader)


def prepare(failure: str) -> None:
    """Prepares the failure before workers are started."""
    mount = folder / "mount"
    mount.mkdir(exist_ok=True)
    from PIL import Image

    for index in range(LENGTH):
        (mount / f"{index}").write_bytes(b"here")
        Image.fromarray(np.full((8, 8, 3), index, np.uint8)).save(mount / f"{index:03}.png")
    if failure == "lock held while forking":
        held = threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                time.sleep(1000)

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
    if failure == "OpenMP used before the fork":
        torch.set_num_threads(4)
        use_openmp()
    if failure == "leak of descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    if failure == "SIGTERM of the trainer":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    global folder
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("front")
    parser.add_argument("failure")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--default", action="store_true", help="set nothing but the data set and the workers")
    arguments = parser.parse_args()
    front, failure, folder = arguments.front, arguments.failure, arguments.folder
    prepare(failure)
    began = time.monotonic()
    warned: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        warned.append(str(message))
        # At once: a run that hangs never ends.
        print("warned " + json.dumps([round(time.monotonic() - began), str(message)]), flush=True)

    warnings.simplefilter("always")
    warnings.showwarning = show
    delivered: list[int] = []
    ended = "completed"
    loader: Any = None
    try:
        loader = loader_of(front, failure, is_default=arguments.default)
        for number, batch in enumerate(iterate(front, failure, loader)):
            delivered += indices_of(front, batch)
            if number == 1 and failure in TRAINER:
                print("ready", flush=True)
                trainer(failure)
            if failure in TRAINER and failure == "break" and number == 1:
                ended = "left"
                break
    except BaseException as raised:
        ended = "\n".join([f"{type(raised).__name__}: {raised}", *getattr(raised, "__notes__", [])])
        del raised
    named: list[Any] = []
    if loader is not None and front != "torch":
        report = loader.report()
        named = [fault.index for fault in report.faults]
    if front == "executor" and loader is not None:
        loader.shutdown(wait=False, cancel_futures=True)
    # Processes that still run after this are counted as left behind.
    del loader
    result = {"delivered": sorted(delivered), "named": named, "ended": ended, "warnings": warned}
    print(json.dumps(result, default=str), flush=True)


def trainer(failure: str) -> None:
    if failure == "exception in the training loop":
        raise ZeroDivisionError("in the training loop")
    if failure not in ("break",):
        # The parent process sends the signal now.
        time.sleep(20)


if __name__ == "__main__":
    # Imported by name: objects of __main__ would be sent to other processes by value, including locks.
    import failures

    failures.main()
