"""Checks for users' own tests that a loader can be resumed: at every batch, and on another number of ranks.

It works with every loader that has `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

__all__ = ["assert_elastic", "assert_resumes_exactly", "plain_batch"]


class _Resumable(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> None: ...


@contextlib.contextmanager
def _made(loader: _Resumable, state: Any = None) -> Iterator[_Resumable]:
    """The loader, from this state on; closed at the end."""
    try:
        if state is not None:
            loader.load_state_dict(state)
        yield loader
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()


def _saved(loader: _Resumable) -> Any:
    """The state of a loader, as it comes back from a file."""
    state = loader.state_dict()
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError):
        # A data set may have put anything into its part of the state.
        return copy.deepcopy(state)


def _take(loader: _Resumable, most: int, epochs: int) -> list[Any]:
    """The next batches: the rest of an epoch, which may be empty, and those of the epochs after it."""
    taken: list[Any] = []
    for _ in range(epochs):
        for batch in loader:
            taken.append(plain_batch(batch))
            if len(taken) == most:
                return taken
    return taken


def assert_resumes_exactly(make_loader: Callable[[], _Resumable], *, epochs: int = 2) -> None:
    """Resumes a loader after every batch, and compares what follows with a run without interruptions, bit for
    bit.

    The states go through JSON if they can. A resumed run is interrupted again, and once more: the second and
    the third resume must continue too.

    Args:
        make_loader: makes a new loader; called often, so the data set should be small.
        epochs: how many epochs are compared.
    """
    batches: list[Any] = []
    with _made(make_loader()) as loader:
        states = [(0, "before the first batch", _saved(loader))]
        for epoch in range(epochs):
            for batch in loader:
                batches.append(plain_batch(batch))
                states.append((len(batches), f"after batch {len(batches) - 1}", _saved(loader)))
            states.append((len(batches), f"at the end of epoch {epoch}", _saved(loader)))
    if not batches:
        raise AssertionError("the loader has no batches, so there is nothing to resume")
    for taken, place, state in states:
        found: list[Any] = []
        current = state
        for most in (1, 1, len(batches)):
            most = min(most, len(batches) - taken - len(found))
            if most == 0:
                break
            with _made(make_loader(), current) as loader:
                found += _take(loader, most, epochs + 2)
                current = _saved(loader)
        _compare(batches[taken:], found, place)


def _compare(expected: list[Any], found: list[Any], place: str) -> None:
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            raise AssertionError(f"resumed {place}: batch {number} of those that follow differs")
    if len(found) < len(expected):
        raise AssertionError(f"resumed {place}: only {len(found)} of {len(expected)} batches follow")


def assert_elastic(
    make_loader: Callable[[int, int], _Resumable],
    worlds: Iterable[int] = (1, 2, 3, 8),
    *,
    samples: Callable[[Any], Iterable[Any]] | None = None,
    may_drop: bool = False,
    may_repeat: bool = False,
) -> None:
    """Interrupts an epoch on some ranks and resumes it on another number of ranks, twice, for all pairs of
    `worlds`. Checks that no sample is lost, and that none comes twice but for the padding that gives all
    ranks the same number.

    Args:
        make_loader: called with a rank and the number of ranks; returns the loader of that rank. It should
            have some ten batches on one rank.
        worlds: numbers of ranks.
        samples: what identifies the samples of a batch, for example `lambda batch: batch["index"].tolist()`.
            By default a sample is its row of each array.
        may_drop: whether samples may be lost because short batches or the remainder are dropped.
        may_repeat: whether samples may come twice because ranks repeat some in place of skipped ones.
    """
    rows = samples or _rows
    counts = list(worlds)
    with _made(make_loader(0, 1)) as loader:
        expected = Counter(_key(row) for batch in loader for row in rows(batch))
    for number, (first, second) in enumerate(itertools.product(counts, counts)):
        third = counts[number % len(counts)]
        for stop in _stops(make_loader, first):
            what = (
                f"{first} ranks, {stop} batches each, then {second} ranks, a batch each, then {third} ranks"
            )
            found, states = _run(make_loader, first, None, stop, rows)
            for world, most in ((second, 1), (third, None)):
                if states is not None:
                    more, states = _run(make_loader, world, states, most, rows)
                    found += more
            lost = expected - found
            if lost and not may_drop:
                raise AssertionError(
                    f"{what}: {lost.total()} samples are lost, such as {next(iter(lost))!r:.200}"
                )
            twice = found - expected
            if twice.total() >= first + second + third and not may_repeat:
                raise AssertionError(f"{what}: {twice.total()} samples come twice")


def _stops(make_loader: Callable[[int, int], _Resumable], world: int) -> list[int]:
    """After how many batches of each rank an epoch is interrupted: at its ends and in the middle."""
    with contextlib.ExitStack() as open_loaders:
        loaders = [open_loaders.enter_context(_made(make_loader(rank, world))) for rank in range(world)]
        least = min(sum(1 for _ in loader) for loader in loaders)
    return sorted({0, min(1, least), least // 2, max(0, least - 1)})


def _run(
    make_loader: Callable[[int, int], _Resumable],
    world: int,
    states: Sequence[Any] | None,
    stop: int | None,
    rows: Callable[[Any], Iterable[Any]],
) -> tuple[Counter[Any], list[Any] | None]:
    """What the ranks of an epoch deliver from these states on, each this many batches or all, and their
    states; no states if no rank has a batch left."""
    found: Counter[Any] = Counter()
    with contextlib.ExitStack() as open_loaders:
        loaders = []
        for rank in range(world):
            state = None if states is None else states[0] if len(states) == 1 else list(states)
            loaders.append(open_loaders.enter_context(_made(make_loader(rank, world), state)))
        epochs = [iter(loader) for loader in loaders]
        for _ in itertools.count() if stop is None else range(stop):
            batches = [batch for epoch in epochs if (batch := next(epoch, None)) is not None]
            for batch in batches:
                found.update(_key(row) for row in rows(batch))
            if not batches:
                return found, None
        saved = [_saved(loader) for loader in loaders]
        # Of all ranks: each may be the only one that has a batch left.
        has_more = [next(epoch, None) is not None for epoch in epochs]
        return found, saved if any(has_more) else None


def _rows(batch: Any) -> list[Any]:
    """The samples of a batch: the rows of its arrays and lists."""
    if isinstance(batch, dict):
        columns = [_rows(column) for column in batch.values()]
        return list(zip(*columns, strict=True))
    if isinstance(batch, (list, tuple)) and any(hasattr(part, "shape") for part in batch):
        return list(zip(*(_rows(part) for part in batch), strict=True))
    return [plain_batch(row) for row in batch]


def _key(row: Any) -> Any:
    """A sample as something that can be counted."""
    return row if isinstance(row, (int, str, bytes)) else repr(row)


def plain_batch(value: Any) -> Any:
    """Converts a batch to values that == compares bit for bit."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        import torch

        content = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        return (str(value.dtype), tuple(value.shape), content)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return (str(value.dtype), tuple(value.shape), value.tobytes())
    if isinstance(value, dict):
        return {key: plain_batch(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_batch(one) for one in value]
    return value
