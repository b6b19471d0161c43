"""The place of a process in a data set: how many samples were drawn from its iterator, and the states of data
sets and iterators that have one of their own. Used in workers and in the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from feedline._torch.sampling import is_stateful
from feedline._torch.state import from_plain, plain

__all__ = [
    "DatasetPlace",
    "DatasetState",
    "DatasetTracker",
    "Stated",
    "dataset_state",
    "load_dataset",
    "restore",
]

# What `dataset_state` returns: the states of the data set and of its iterator, as plain data.
DatasetState = dict[str, Any]


@dataclass(slots=True)
class DatasetPlace:
    """Where one process stands in a data set."""

    # Samples that were drawn from the iterator in this epoch.
    drawn: int = 0
    # The last state that was saved, and how many samples were drawn then.
    state: DatasetState | None = None
    state_drawn: int = 0
    # Whether the iterator had no more samples then.
    has_ended: bool = False
    # Whether the state is that of the end of the epoch before.
    is_new: bool = False
    # Why there is no state, though the data set should have one.
    problem: str | None = None

    def as_plain(self) -> dict[str, Any]:
        return {
            "drawn": self.drawn,
            "state": self.state,
            "state_drawn": self.state_drawn,
            "has_ended": self.has_ended,
            "is_new": self.is_new,
        }

    def begin_epoch(self) -> DatasetPlace:
        """The place in the next epoch of the same process."""
        return DatasetPlace(state=self.state, is_new=True)


@dataclass(slots=True)
class Stated:
    """A batch, and the place in the data set behind it."""

    batch: Any
    place: DatasetPlace


def dataset_state(dataset: Any, iterator: Any = None) -> DatasetState | None:
    """The states of a data set and its iterator; None if they have none."""
    state = {}
    if iterator is not None and is_stateful(iterator):
        state["iterator"] = plain(iterator.state_dict(), "the state of the data set's iterator")
    if dataset is not iterator and is_stateful(dataset):
        state["dataset"] = plain(dataset.state_dict(), "the state of the data set")
    return state or None


def load_dataset(dataset: Any, place: DatasetPlace) -> None:
    if place.state is not None and "dataset" in place.state:
        dataset.load_state_dict(from_plain(place.state["dataset"]))


def restore(dataset: Any, iterator: Any, place: DatasetPlace, reach: Callable[[int], None]) -> Iterator[Any]:
    """The iterator of a data set, brought to a place. `iterator` is one that was just begun; None to begin
    one, after the state of the data set was loaded. `reach` is called with the number of each sample that is
    drawn again."""
    state = place.state or {}
    if iterator is None:
        iterator = iter(dataset)
    if "iterator" in state:
        iterator.load_state_dict(from_plain(state["iterator"]))
    begun: Iterator[Any] = iterator
    if place.is_new:
        return iter(dataset) if "iterator" in state else begun
    if place.has_ended and state:
        return iter(())
    for number in range(place.state_drawn, place.drawn):
        reach(number)
        try:
            next(begun)
        except StopIteration:
            break
        except (Exception, SystemExit):
            # It was reported the first time.
            continue
    return begun


class DatasetTracker:
    """Keeps the place of one process, batch by batch."""

    def __init__(self, every: int) -> None:
        """States are taken after each `every` batches of an iterator; 0 is never but at its end."""
        self._every = every
        self._batches = 0
        self._last = DatasetPlace()

    def begin(self, place: DatasetPlace | None = None) -> None:
        self._batches = 0
        self._last = place or DatasetPlace()

    def place(self, dataset: Any, iterator: Any, drawn: int, *, has_ended: bool = False) -> DatasetPlace:
        """The place behind a batch that was just made."""
        self._batches += 1
        last = self._last
        is_due = has_ended or iterator is None or (self._every and self._batches % self._every == 0)
        state, problem = None, None
        if is_due:
            try:
                state = dataset_state(dataset, iterator)
            except Exception as raised:
                # A run whose state nobody asks for is not disturbed.
                problem = f"{type(raised).__name__}: {raised}"
        if state is None:
            place = DatasetPlace(
                drawn, last.state, last.state_drawn, last.has_ended, last.is_new, problem or last.problem
            )
        else:
            place = DatasetPlace(drawn, state, drawn, has_ended)
        self._last = place
        return place
