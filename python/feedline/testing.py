"""For your own tests: injects faults, and checks what must hold in spite of them.

loader = feedline.testing.chaos(loader, seed=1, kill=0.01, eio=0.05)
feedline.testing.assert_accounted(loader)
feedline.testing.assert_resumes_exactly(make_loader)
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
from feedline._resume_checks import assert_elastic, assert_resumes_exactly, plain_batch
from feedline.errors import InvalidArgumentError
from feedline.loader import Loader
from feedline.pipeline import Pipeline
from feedline.report import Report

__all__ = [
    "Chaos",
    "ChaosError",
    "assert_accounted",
    "assert_elastic",
    "assert_resumes_exactly",
    "assert_same_batches",
    "chaos",
]

# The number of attempt counters; with more samples than this, several share one.
_COUNTS = 1 << 20


class ChaosError(ValueError):
    """An injected fault."""


@dataclass(frozen=True)
class Chaos:
    """The faults to inject, and their rates: shares of the samples, from 0 to 1.

    Attributes:
        seed: the same seed gives the same faults.
        kill: kills the worker at the first attempt to load a sample.
        poison: kills the worker at every attempt.
        raise_: raises `ChaosError` at every attempt.
        eio: raises an `OSError` with EIO; drawn again for each attempt.
        hang: never returns from the first attempt.
        slow: takes `slow_seconds` longer.
        leak: leaks `leak_bytes` of memory.
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

    def injects(self, kind: str, index: object, attempt: int = 0) -> bool:
        """Whether this fault is injected at this sample."""
        rate = getattr(self, kind)
        if not rate:
            return False
        key = f"{self.seed}/{kind}/{index!r}/{attempt}".encode()
        drawn = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "little")
        return bool(drawn < rate * 2**56)

    def victims(self, kind: str, indices: Iterable[object]) -> list[object]:
        """The samples at whose first attempt a fault of this kind is injected."""
        return [index for index in indices if self.injects(kind, index)]


_leaked: list[Any] = []


class _Injector:
    """Injects the faults, in any process. The attempts are counted in a shared file, since a worker that is
    killed cannot remember them."""

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
        """The number of earlier attempts to load this sample; counts this one."""
        if self._counts is None:
            with Path(self._path).open("r+b") as file:
                self._counts = mmap.mmap(file.fileno(), _COUNTS)
        place = index if isinstance(index, int) else int.from_bytes(repr(index).encode()[-7:], "little")
        place %= _COUNTS
        attempt = self._counts[place]
        self._counts[place] = min(attempt + 1, 255)
        return attempt

    def injected_fault(self, index: object) -> None:
        """Injects the faults of a sample."""
        chaos = self.chaos
        attempt = self._attempt(index)
        # Not in the trainer: if it died or hung, nothing could replace it.
        if os.getpid() != self._home:
            is_first = attempt == 0
            if (is_first and chaos.injects("kill", index)) or chaos.injects("poison", index):
                os.kill(os.getpid(), signal.SIGKILL)
            while is_first and chaos.injects("hang", index):
                time.sleep(3600)
            if chaos.injects("leak", index):
                _leaked.append(bytearray(os.urandom(1) * chaos.leak_bytes))
            if chaos.injects("leak_files", index):
                _leaked.append(os.open(os.devnull, os.O_RDONLY))
        if chaos.injects("slow", index):
            time.sleep(chaos.slow_seconds)
        if chaos.injects("eio", index, attempt):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if chaos.injects("raise_", index):
            raise ChaosError(f"chaos at sample {index!r}")


def _remove(path: str, home: int) -> None:
    if os.getpid() == home:
        Path(path).unlink(missing_ok=True)


class _ChaoticDataset:
    """A map-style data set with faults."""

    def __init__(self, dataset: Any, injector: _Injector) -> None:
        self.dataset = dataset
        self._injector = injector

    def __getitem__(self, index: Any) -> Any:
        self._injector.injected_fault(index)
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Without `__getitems__`, so that samples are loaded one by one and each can fail on its own.
        if name in ("dataset", "_injector", "__getitems__") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _ChaoticFunction:
    """A function with faults, for an Executor: its first argument takes the role of a sample's index."""

    def __init__(self, function: Callable[..., Any], injector: _Injector) -> None:
        self._function = function
        self._injector = injector
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._injector.injected_fault(arguments[0] if arguments else None)
        return self._function(*arguments, **keywords)


class _ChaoticPipeline:
    """A native pipeline with faults, which only offers `loader()`."""

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
    """A copy of a loader, pipeline, data set or function with injected faults.

    Args:
        target: a `feedline.torch.DataLoader`, a map-style data set, a pipeline (before `.loader()`), or a
            function for `feedline.Executor`. It is not changed.
        seed: the same seed gives the same faults.
        rates: see `Chaos`. A native pipeline runs no user code, so it supports only `eio`, `raise_` and
            `slow`.
    """
    settings = Chaos(seed=seed, **rates)
    if isinstance(target, Pipeline):
        return _ChaoticPipeline(target, settings)
    injector = _Injector(settings)
    if hasattr(target, "_loader_state"):
        return _chaotic_loader(target, injector)
    if hasattr(target, "__getitem__"):
        return _ChaoticDataset(target, injector)
    if callable(target):
        return _ChaoticFunction(target, injector)
    raise InvalidArgumentError.explained(f"chaos: cannot inject faults into {target!r}")


def _chaotic_loader(loader: Any, injector: _Injector) -> Any:
    from feedline._account import Account
    from feedline._torch.loader_state import LoaderState
    from feedline._torch.samples import Samples

    chaotic = copy.copy(loader)
    # Through __dict__: torch's class forbids setting these attributes after construction.
    chaotic.__dict__["dataset"] = _ChaoticDataset(loader.dataset, injector)
    account = Account(loader.faults, loader.on_event)
    chaotic.__dict__["_loader_state"] = LoaderState(account, Samples(loader.dataset))
    chaotic.__dict__["_iterator"] = None
    return chaotic


class _Loader(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def report(self) -> Report: ...


def assert_accounted(loader: _Loader) -> Report:
    """Runs an epoch and checks that every sample was delivered or is counted as skipped.

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
            f"{delivered} samples were delivered and {skipped} skipped, "
            f"but {expected} were expected\n{report}"
        )
    return report


def assert_same_batches(
    make_loader: Callable[[int], Iterable[Any]], workers: Iterable[int] = (0, 1, 4)
) -> None:
    """Checks that a loader delivers the same batches with every number of workers.

    Args:
        make_loader: called with a number of workers; returns a loader.
        workers: the numbers to try; the others are compared with the first.
    """
    first: list[Any] | None = None
    first_count = 0
    for count in workers:
        batches = [plain_batch(batch) for batch in make_loader(count)]
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
