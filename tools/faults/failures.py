"""The failures, and the programs that meet them: one run is one process, which says what became of it.

    python tools/faults/failures.py FRONT FAILURE FOLDER [--default]

With --default nothing is set but the data set and the workers. Fronts: torch (torch's own DataLoader),
feedline (feedline.torch.DataLoader), executor, native. FOLDER has the files that some failures need, and
markers that outlive a worker.
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
AT = 13
MEBIBYTE = 1 << 20

folder = Path()
lock = threading.Lock()
kept: list[Any] = []


class UnpicklableError(Exception):
    """Cannot leave its process."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)
        self.lock = threading.Lock()


def once(name: str) -> bool:
    """True the first time, in whichever process."""
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


def fall(kind: type[BaseException], *arguments: Any) -> None:
    raise kind(*arguments)


def loop_in_c() -> None:
    # Exponential, and the lock of the interpreter is held all the while.
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
    # One read in ten fails, wherever and whenever.
    count = folder / f"eio-{index}"
    retries = count.stat().st_size if count.exists() else 0
    with count.open("ab") as file:
        file.write(b".")
    if (index * 7 + retries * 3) % 10 == 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def from_mount(index: int) -> None:
    mount = folder / "mount"
    if index == AT and once("vanished"):
        mount.rename(folder / "away")
        if os.fork() == 0:
            time.sleep(1.5)
            (folder / "away").rename(mount)
            os._exit(0)
    (mount / f"{index}").read_bytes()


# What is done before a sample is made, by the name of the failure.
STRIKES: dict[str, Callable[[int], Any]] = {
    "exception": lambda index: index == AT and fall(ValueError, "bad sample"),
    "exception that cannot be pickled": lambda index: index == AT and fall(UnpicklableError, 1, 2),
    "SystemExit": lambda index: index == AT and sys.exit(3),
    "StopIteration": lambda index: index == AT and fall(StopIteration),
    "SIGKILL": lambda index: index == AT and once("struck") and os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda index: index == AT and once("struck") and ctypes.string_at(0),
    "SIGBUS": lambda index: index == AT and once("struck") and bus_error(),
    "os._exit": lambda index: index == AT and once("struck") and os._exit(7),
    "hang, interpreter free": lambda index: index == AT and once("struck") and time.sleep(1000),
    "hang in C code, interpreter locked": lambda index: index == AT and once("struck") and loop_in_c(),
    "SIGSTOP": lambda index: index == AT and once("struck") and os.kill(os.getpid(), signal.SIGSTOP),
    "killed out of memory (cgroup)": lambda index: (
        index == AT and once("struck") and kept.append(bytearray(os.urandom(1)) * (2048 * MEBIBYTE))
    ),
    "slow leak of memory": lambda index: kept.append(bytearray(b"x" * (8 * MEBIBYTE))),
    "leak of descriptors": lambda index: leak_descriptors(),
    "EIO at 10 % of the reads": eio,
    "mount that vanishes for 1.5 s": from_mount,
    "sample that always kills": lambda index: index == AT and os.kill(os.getpid(), signal.SIGKILL),
    "sample that always hangs": lambda index: index == AT and time.sleep(1000),
    "lock held while forking": lambda index: with_lock(),
    "OpenMP used before the fork": lambda index: use_openmp(),
}
# What a sample is instead.
SAMPLES: dict[str, Callable[[int], Any]] = {
    "ragged shapes": lambda index: torch.full((3 if index == AT else 2,), index),
    "None": lambda index: None if index == AT else torch.tensor(index),
    "batch that cannot be pickled": lambda index: {"index": index, "lock": threading.Lock()},
}
# What the training loop or somebody outside does in the middle of the epoch.
TRAINER = (
    "break",
    "exception in the training loop",
    "Ctrl-C",
    "SIGTERM of the trainer",
    "SIGKILL of the trainer",
)
FAILURES = (*STRIKES, *SAMPLES, *TRAINER)


def make(failure: str, index: int) -> Any:
    """A sample."""
    if failure in STRIKES:
        STRIKES[failure](index)
    if failure in SAMPLES:
        return SAMPLES[failure](index)
    return torch.tensor(index)


class Samples(torch.utils.data.Dataset[Any]):
    """The data set that meets an failure."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return make(self.failure, index)


class Call:
    """The same for an executor."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def __call__(self, index: int) -> Any:
        made = make(self.failure, index)
        return made if isinstance(made, (dict, type(None))) else index


def policy() -> fl.FaultPolicy:
    return fl.FaultPolicy("skip", retry=5, backoff=0.02)


def loader_of(front: str, failure: str, *, is_default: bool) -> Any:
    """What the front gives batches with."""
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
        (files / f"{AT:03}.png").write_bytes(b"no picture")
    if failure == "mount that vanishes for 1.5 s":
        threading.Thread(target=vanish, args=(files,), daemon=True).start()
    pipeline = fl.files(sorted(files.glob("*.png"))).decode().resize((8, 8)).batch(BATCH, index=True)
    if failure == "EIO at 10 % of the reads":
        from feedline.testing import chaos

        pipeline = chaos(pipeline, seed=1, eio=0.1)
    # Batches ahead of the consumer would hide what happens in the middle.
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
        return [batch if isinstance(batch, int) else AT]
    if isinstance(batch, dict):
        return [int(index) for index in batch["index"]]
    return [int(index) for index in batch.flatten()]


def iterate(front: str, failure: str, loader: Any) -> Iterator[Any]:
    if front == "executor":
        return iter(loader.map(Call(failure), range(LENGTH)))
    return iter(loader)


def prepare(failure: str) -> None:
    """What must be so before workers are there."""
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
    reported: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        reported.append(str(message))
        # At once: a run that hangs comes to no end.
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
    # A number that is kept by a name goes with it: what remains after this is left behind.
    del loader
    answer = {"delivered": sorted(delivered), "named": named, "ended": ended, "told": reported}
    print(json.dumps(answer, default=str), flush=True)


def trainer(failure: str) -> None:
    if failure == "exception in the training loop":
        raise ZeroDivisionError("in the training loop")
    if failure not in ("break",):
        # Somebody outside does it now.
        time.sleep(20)


if __name__ == "__main__":
    # Under its own name: what lies in __main__ is sent to other processes by value, locks and all.
    import failures

    failures.main()
