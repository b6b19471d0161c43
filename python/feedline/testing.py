"""For tests of your own: faults on purpose, and what must hold in spite of them.

loader = feedline.testing.chaos(loader, seed=1, kill=0.01, eio=0.05)
feedline.testing.assert_accounted(loader)
"""

from __future__ import annotations

import copy
import errno
import functools
import hashlib
import mmap
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feedline._config import check_finite
from feedline._described import described
from feedline.errors import InvalidArgumentError
from feedline.loader import Loader
from feedline.pipeline import Pipeline
from feedline.report import Report

__all__ = ["Chaos", "ChaosError", "assert_accounted", "assert_same_batches", "chaos"]

# This many samples have a count of their own of how often they were tried; others share one.
_COUNTS = 1 << 20


class ChaosError(ValueError):
    """A fault that was made on purpose."""


@dataclass(frozen=True)
class Chaos:
    """Which faults are made, at which rates: shares of the samples from 0 to 1.

    Attributes:
        seed: the same seed makes the same faults.
        kill: kills the worker, the first time that a sample is made.
        poison: kills the worker whenever the sample is made.
        raise_: raises `ChaosError` whenever the sample is made.
        eio: raises an `OSError` with EIO; each try is drawn again.
        hang: does not come back, the first time that a sample is made.
        slow: takes `slow_seconds` more.
        leak: keeps `leak_bytes` of memory.
        leak_files: opens a file and never closes it.
    """

    seed: int = 0
    kill: float = 0.0
    poison: float = 0.0
    raise_: float = 0.0
    eio: float = 0.0
    hang: float = 0.0
    slow: float = 0.0
    leak: float = 0.0
    leak_files: float = 0.0
    slow_seconds: float = 0.05
    leak_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("kill", "poison", "raise_", "eio", "hang", "slow", "leak", "leak_files"):
            rate = getattr(self, name)
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
                raise InvalidArgumentError.explained(
                    f"chaos: {name} must be a share from 0 to 1, got {described(rate)}"
                )
        check_finite("chaos", "slow_seconds", self.slow_seconds)

    def strikes(self, kind: str, index: object, attempt: int = 0) -> bool:
        """Whether this fault is made at this sample."""
        rate = getattr(self, kind)
        if not rate:
            return False
        key = f"{self.seed}/{kind}/{index!r}/{attempt}".encode()
        thrown = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "little")
        return bool(thrown < rate * 2**56)

    def victims(self, kind: str, indices: Iterable[object]) -> list[object]:
        """The samples at which a fault of this kind is made, at their first try."""
        return [index for index in indices if self.strikes(kind, index)]


_leaked: list[Any] = []


class _Striker:
    """Makes the faults, in whatever process it is. How often a sample was tried stands in a file, since a
    worker that is killed cannot remember it."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self._home = os.getpid()
        handle, self._path = tempfile.mkstemp(prefix="feedline-chaos-")
        os.truncate(handle, _COUNTS)
        os.close(handle)
        self._counts: mmap.mmap | None = None
        self._remove = weakref.finalize(self, _remove, self._path, self._home)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counts": None, "_remove": None}

    def _attempt(self, index: object) -> int:
        """How often this sample was tried before."""
        if self._counts is None:
            with Path(self._path).open("r+b") as file:
                self._counts = mmap.mmap(file.fileno(), _COUNTS)
        place = index if isinstance(index, int) else int.from_bytes(repr(index).encode()[-7:], "little")
        place %= _COUNTS
        attempt = self._counts[place]
        self._counts[place] = min(attempt + 1, 255)
        return attempt

    def strike(self, index: object) -> None:
        """Makes the faults that are due at a sample."""
        chaos = self.chaos
        attempt = self._attempt(index)
        # In the trainer itself nobody could take the place of who dies or hangs.
        if os.getpid() != self._home:
            is_first = attempt == 0
            if (is_first and chaos.strikes("kill", index)) or chaos.strikes("poison", index):
                os.kill(os.getpid(), signal.SIGKILL)
            while is_first and chaos.strikes("hang", index):
                time.sleep(3600)
            if chaos.strikes("leak", index):
                _leaked.append(bytearray(os.urandom(1) * chaos.leak_bytes))
            if chaos.strikes("leak_files", index):
                _leaked.append(os.open(os.devnull, os.O_RDONLY))
        if chaos.strikes("slow", index):
            time.sleep(chaos.slow_seconds)
        if chaos.strikes("eio", index, attempt):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if chaos.strikes("raise_", index):
            raise ChaosError(f"chaos at sample {index!r}")


def _remove(path: str, home: int) -> None:
    if os.getpid() == home:
        Path(path).unlink(missing_ok=True)


class _ChaoticDataset:
    """A map-style data set with faults."""

    def __init__(self, dataset: Any, striker: _Striker) -> None:
        self.dataset = dataset
        self._striker = striker

    def __getitem__(self, index: Any) -> Any:
        self._striker.strike(index)
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # A data set that makes all samples of a batch at once makes them one by one here.
        if name in ("dataset", "_striker", "__getitems__") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _ChaoticFunction:
    """A function with faults, for an Executor: its first argument is what a sample is elsewhere."""

    def __init__(self, function: Callable[..., Any], striker: _Striker) -> None:
        self._function = function
        self._striker = striker
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._striker.strike(arguments[0] if arguments else None)
        return self._function(*arguments, **keywords)


class _ChaoticPipeline:
    """A native pipeline with faults: all there is left to do is to make its loader."""

    def __init__(self, pipeline: Pipeline, chaos: Chaos) -> None:
        self._pipeline = pipeline
        self._rates = {
            "seed": chaos.seed,
            "eio": chaos.eio,
            "raise": chaos.raise_,
            "slow": chaos.slow,
            "seconds": chaos.slow_seconds,
        }

    def loader(self, **settings: Any) -> Loader:
        return self._pipeline.loader(**settings, chaos=self._rates)


def chaos(target: Any, seed: int = 0, **rates: Any) -> Any:
    """The same loader, pipeline, data set or function, with faults that the seed decides on.

    Args:
        target: a `feedline.torch.DataLoader`, a map-style data set, a pipeline (before `.loader()`), or a
            function for `feedline.Executor`. It is left as it is; what is returned has the faults.
        seed: the same seed makes the same faults.
        rates: see `Chaos`. A native pipeline runs no code of others, so only `eio`, `raise_` and `slow`
            strike there.
    """
    settings = Chaos(seed=seed, **rates)
    if isinstance(target, Pipeline):
        return _ChaoticPipeline(target, settings)
    striker = _Striker(settings)
    if hasattr(target, "_loader_state"):
        return _chaotic_loader(target, striker)
    if hasattr(target, "__getitem__"):
        return _ChaoticDataset(target, striker)
    if callable(target):
        return _ChaoticFunction(target, striker)
    raise InvalidArgumentError.explained(f"chaos: there is no way to make faults in {target!r}")


def _chaotic_loader(loader: Any, striker: _Striker) -> Any:
    from feedline._account import Account
    from feedline._torch.loader_state import LoaderState
    from feedline._torch.samples import Samples

    chaotic = copy.copy(loader)
    # torch's class forbids to set these after it was made; this one is not made again.
    chaotic.__dict__["dataset"] = _ChaoticDataset(loader.dataset, striker)
    chaotic.__dict__["_loader_state"] = LoaderState(
        Account(loader.faults, loader.on_event), Samples(loader.dataset)
    )
    chaotic.__dict__["_iterator"] = None
    return chaotic


class _Loader(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def report(self) -> Report: ...


def assert_accounted(loader: _Loader) -> Report:
    """Goes through an epoch, and checks that every sample was delivered or is named in the report.

    Returns the report.
    """
    before = loader.report()
    for _ in loader:
        pass
    report = loader.report()
    expected = report.expected - before.expected
    delivered = report.delivered - before.delivered
    skipped = report.skipped - before.skipped
    if delivered + skipped != expected:
        raise AssertionError(
            f"{delivered} samples were delivered and {skipped} skipped, but {expected} expected\n{report}"
        )
    return report


def assert_same_batches(
    make_loader: Callable[[int], Iterable[Any]], workers: Iterable[int] = (0, 1, 4)
) -> None:
    """Checks that a loader gives the same batches whatever the number of workers.

    Args:
        make_loader: called with a number of workers; returns a loader.
        workers: which numbers are tried; the first is what the others are compared with.
    """
    first: list[Any] | None = None
    first_count = 0
    for count in workers:
        batches = [_plain(batch) for batch in make_loader(count)]
        if first is None:
            first, first_count = batches, count
            continue
        if len(batches) != len(first):
            raise AssertionError(
                f"{len(first)} batches with {first_count} workers, {len(batches)} with {count}"
            )
        for number, (one, other) in enumerate(zip(first, batches, strict=True)):
            if one != other:
                raise AssertionError(f"batch {number} with {first_count} workers and with {count} differ")


def _plain(value: Any) -> Any:
    """Something that can be compared with ==, bit for bit."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        import torch

        content = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        return (str(value.dtype), tuple(value.shape), content)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return (str(value.dtype), tuple(value.shape), value.tobytes())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
