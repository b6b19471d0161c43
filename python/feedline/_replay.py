"""Makes a batch or a sample of a native pipeline again, in the thread that asks, for debugging."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline import _native
from feedline._config import as_json
from feedline._described import described
from feedline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from feedline.faults import FaultPolicy
    from feedline.loader import Loader

__all__ = ["Recipe", "checked", "generators_kept", "one_of"]

# Settings of `loader` that do not concern the values of samples.
_OF_WORKERS = ("workers", "deadline", "max_deaths", "max_worker_memory", "mp_context", "threads", "readers")


def checked(name: str, value: object) -> int:
    """An argument of `replay` that must be a whole number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidArgumentError.explained(
            f"replay: {name} must be a whole number from 0, got {described(value)}",
            "the message of an error or warning has the numbers",
        )
    return number


def one_of(batch: object, index: object) -> None:
    """Rejects a call that does not say what to replay, or says it twice."""
    if (batch is None) == (index is None):
        raise InvalidArgumentError.explained(
            "replay: give either batch= or index=", "replay(batch=12), or replay(index=48213, epoch=2)"
        )


@dataclass(frozen=True)
class Recipe:
    """What a loader was made of, so that another one can be made of a few of its samples."""

    source: _native.Source
    calls: tuple[dict[str, Any], ...]
    faults: FaultPolicy | None

    def batch(self, native: _native.Loader, number: int, epoch: int) -> Any:
        """A batch as the loop got it, or the error of its first bad sample. If batches depend on the samples
        before them, all batches of the epoch up to this one are made."""
        members = native.batch_members(epoch, number)
        if members is None:
            return self._after_others(number, epoch)
        with self._loader(len(members)) as loader:
            loader._native.choose(epoch, members)
            return _first(loader)

    def sample(self, native: _native.Loader, index: int, epoch: int) -> Any:
        """A sample as the functions of samples made it; None if a filter left it out."""
        number = native.sample_number(epoch, index)
        with self._loader(1, is_alone=True) as loader:
            loader._native.choose(epoch, [number])
            batch = _first(loader)
        return None if batch is None else _row(batch)

    def _after_others(self, number: int, epoch: int) -> Any:
        with self._loader(None) as loader:
            loader._native.choose(epoch, None)
            for at, batch in enumerate(_apart(loader)):
                if at == number:
                    return batch
        raise InvalidArgumentError.explained(
            f"there is no batch {number}: epoch {epoch} has {at + 1} batches", "batches count from 0"
        )

    def _loader(self, size: int | None, *, is_alone: bool = False) -> Loader:
        """A loader of the same samples, in batches of this size. It raises faults, unless the size is None:
        then it skips as the user's loader did."""
        from feedline._mapped.builder import has_functions
        from feedline._mapped.loader import MappedLoader
        from feedline.loader import Loader

        calls = [self._changed(call, size) for call in self.calls if call["call"] != "cache"]
        if size is not None:
            calls = [call for call in calls if call["call"] != "bucket"]
        if is_alone:
            calls = [call for call in calls if call["call"] != "map_batch"]
        faults = self.faults if size is None else None
        native = _native.Loader(self.source, as_json(calls))
        if not has_functions(calls):
            return Loader(native, "", [])
        return MappedLoader(native, "", [], None, tuple(calls), faults, "fork", None, is_replay=True)

    def _changed(self, call: dict[str, Any], size: int | None) -> dict[str, Any]:
        if call["call"] == "batch" and size is not None:
            return {**call, "size": size, "drop_last": False}
        if call["call"] != "loader":
            return call
        kept = {name: value for name, value in call.items() if name not in _OF_WORKERS}
        faults = kept.pop("faults", None)
        if size is None and faults is not None:
            kept["faults"] = {**faults, "quarantine": None}
        return {**kept, "stall": 0.0}


def _first(loader: Loader) -> Any:
    return next(_apart(loader), None)


def _apart(loader: Loader) -> Iterator[Any]:
    """The batches of the next epoch. The global generators of the program stay as they were."""
    epoch = iter(loader)
    while True:
        with generators_kept():
            try:
                batch = next(epoch)
            except StopIteration:
                return
        yield batch


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restores the global generators of `random`, NumPy and torch, which functions seed and draw from."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(legacy=False)
    of_torch = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.default_generator.set_state(of_torch)


def _row(batch: Any) -> Any:
    """The sample of a batch of one."""
    if isinstance(batch, dict):
        return {name: _row(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [_row(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch[0]
