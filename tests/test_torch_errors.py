"""Exceptions of a worker reach the trainer with torch's type and message, and with their place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import feedline.torch
import pytest
import torch
import torch.utils.data
from alike import described
from faults.remains import eventually, has_ended
from feedline.errors import NotPicklableError
from torch.utils.data import Dataset, IterableDataset, get_worker_info

# A loader class: torch's or ours.
Kind = type[torch.utils.data.DataLoader[Any]]
Arguments = dict[str, Any]
THEIRS: Kind = torch.utils.data.DataLoader
OURS: Kind = feedline.torch.DataLoader

# A worker that torch's loader does not end takes seconds to exit, so there are as few as possible.


class Fails(Dataset[int]):
    """Ten samples; some of them perform an action instead."""

    def __init__(self, deeds: dict[int, Callable[[], Any]]) -> None:
        self.deeds = deeds

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.deeds[index]() if index in self.deeds else index


class FailsWhole(Fails):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def raising(error: BaseException | type[BaseException], *arguments: Any) -> Callable[[], Any]:
    def action() -> Any:
        raise error(*arguments) if isinstance(error, type) else error

    return action


def as_it_is(samples: Any) -> Any:
    return samples


def failing(error: BaseException | type[BaseException], *arguments: Any, at: int = 5) -> Fails:
    return Fails({at: raising(error, *arguments)})


def seen(loader: Any) -> list[Any]:
    """Batches, or exceptions in their place, until the end."""
    running = iter(loader)
    result: list[Any] = []
    while len(result) < 50:
        try:
            result.append(next(running))
        except StopIteration:
            break
        except BaseException as error:
            # Its frames would keep the iterator alive, and torch's workers with it.
            result.append(error.with_traceback(None) if loader.num_workers > 0 else error)
    return result


def caught_from(loader: Any) -> BaseException:
    """The only exception of an epoch."""
    errors = [batch for batch in seen(loader) if isinstance(batch, BaseException)]
    assert len(errors) == 1, errors
    return errors[0]


def place_of(error: Any) -> tuple[Any, ...]:
    return error.index, error.batch_offset, error.batch, error.worker


# ---- type, message and place ----


class DescribedError(Exception):
    """Takes a keyword, which torch passes if the class has an attribute of that name."""

    message = "no words"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class PickyError(Exception):
    """Cannot be constructed from a text."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")


class GuardedError(ValueError):
    """Has a read-only attribute."""

    @property
    def index(self) -> str:
        return "mine"


def picky() -> Any:
    raise PickyError(7, reason="it is late")


def chained() -> Any:
    try:
        raise OSError("the disk is gone")
    except OSError as error:
        raise ValueError("no picture") from error


CASES: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "a value": (raising(ValueError, "bad pixel"), ValueError, "ValueError: bad pixel"),
    "a key": (raising(KeyError, "label"), KeyError, "KeyError: 'label'"),
    "an index": (raising(IndexError, "out of range"), IndexError, "IndexError: out of range"),
    "a file": (raising(FileNotFoundError, 2, "gone", "a.jpg"), FileNotFoundError, "[Errno 2] gone: 'a.jpg'"),
    "an assertion": (raising(AssertionError), AssertionError, "AssertionError"),
    "a type with a message": (raising(DescribedError, "words"), DescribedError, "words"),
    "a type that takes more": (picky, RuntimeError, "code 7: it is late"),
    "a type that takes bytes": (lambda: b"\xff".decode(), RuntimeError, "UnicodeDecodeError"),
    "two in a chain": (chained, ValueError, "OSError: the disk is gone"),
    "memory": (raising(MemoryError, "full"), MemoryError, "MemoryError: full"),
}


# A worker that is short of memory ends, and a fresh one raises.
@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning")
@pytest.mark.filterwarnings("ignore::feedline.errors.ResourceShortageWarning")
@pytest.mark.parametrize("name", CASES)
def test_an_exception_has_its_type_torchs_message_its_traceback_and_its_place(name: str) -> None:
    action, kind, text = CASES[name]

    error = caught_from(OURS(Fails({5: action}), batch_size=2, num_workers=2))

    assert type(error) is kind
    lines = str(error).splitlines()
    assert lines[0].startswith("Caught ")
    assert lines[0].endswith(" in DataLoader worker process 0.")
    assert lines[1] == "Original Traceback (most recent call last):"
    assert "in __getitem__" in str(error)
    assert text in str(error)
    assert lines[-2] == "feedline: at sample 5, offset 1 of batch 2, worker 0"
    assert lines[-1] == "replay: loader.replay(index=5, epoch=0)"
    assert place_of(error) == (5, 1, 2, 0)


def test_the_first_and_last_line_of_the_traceback_and_the_rest_of_the_epoch_are_torchs() -> None:
    dataset = Fails({3: raising(KeyError, "label"), 6: picky, 7: raising(DescribedError, "words")})

    ours = seen(OURS(dataset, batch_size=2, num_workers=2))
    theirs = seen(THEIRS(dataset, batch_size=2, num_workers=2))

    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        if not isinstance(one, BaseException):
            assert described(one) == described(other)
            continue
        said, expected = str(one).splitlines(), str(other).splitlines()
        assert said[:2] == expected[:2]
        assert expected[-1] in said


def test_a_local_class_of_exceptions_arrives_as_a_runtime_error() -> None:
    class Local(Exception):  # noqa: N818
        pass

    error = caught_from(OURS(failing(Local, "nobody knows it"), num_workers=1))

    assert type(error) is RuntimeError
    assert "Caught Local in DataLoader worker process 0." in str(error)
    assert "nobody knows it" in str(error)


def test_an_exception_with_a_read_only_attribute_gets_the_others() -> None:
    error: Any = caught_from(OURS(failing(GuardedError, "x"), batch_size=2, num_workers=1))

    assert type(error) is GuardedError
    assert place_of(error) == ("mine", 1, 2, 0)


def test_the_place_is_the_index_as_the_sampler_named_it() -> None:
    class Named(Dataset[int]):
        def __getitem__(self, name: str) -> int:
            return {"a": 1, "b": 2}[name]

    error = caught_from(OURS(Named(), sampler=["a", "x", "b"], batch_size=3, num_workers=1))

    assert place_of(error) == ("x", 1, 0, 0)
    place, replay = str(error).splitlines()[-2:]
    assert place == "feedline: at sample 'x', offset 1 of batch 0, worker 0"
    assert replay == "replay: loader.replay(index='x', epoch=0)"


def test_without_batches_the_sample_is_named() -> None:
    error = caught_from(OURS(failing(ValueError, "x"), batch_size=None, num_workers=2))

    assert place_of(error)[0] == 5
    assert place_of(error)[2:] == (5, 1)
    place, replay = str(error).splitlines()[-2:]
    assert "at sample 5" in place
    assert replay == "replay: loader.replay(index=5, epoch=0)"


def test_with_getitems_all_indices_of_the_batch_are_named() -> None:
    dataset = FailsWhole({5: raising(ValueError, "x")})

    error = caught_from(OURS(dataset, batch_size=4, num_workers=1))

    assert place_of(error) == ([4, 5, 6, 7], None, 1, 0)
    place, replay = str(error).splitlines()[-2:]
    assert place == "feedline: among samples [4, 5, 6, 7], batch 1, worker 0"
    assert replay == "replay: loader.replay(batch=1, epoch=0)"


def fail_to_collate(samples: list[int]) -> list[int]:
    if 5 in samples:
        raise ValueError("no batch of these")
    return samples


def test_an_exception_of_the_collate_function_names_batch_and_worker() -> None:
    loader = OURS(Fails({}), batch_size=2, collate_fn=fail_to_collate, num_workers=2)

    error = caught_from(loader)

    assert type(error) is ValueError
    assert "in fail_to_collate" in str(error)
    place, replay = str(error).splitlines()[-2:]
    assert place == "feedline: while the samples were collated, batch 2, worker 0"
    assert replay == "replay: loader.replay(batch=2, epoch=0)"
    assert place_of(error) == ([4, 5], None, 2, 0)


def test_after_an_exception_the_epoch_continues_with_the_next_batch() -> None:
    dataset = Fails({2: raising(ValueError, "x"), 3: raising(ValueError, "y"), 9: raising(ValueError, "z")})

    for workers in (0, 2):
        batches = seen(OURS(dataset, batch_size=2, num_workers=workers))
        shown = [None if isinstance(batch, ValueError) else batch.tolist() for batch in batches]
        assert shown == [[0, 1], None, [4, 5], [6, 7], None]


def test_persistent_workers_continue_in_the_epochs_after_an_exception() -> None:
    loader = OURS(failing(ValueError, "x"), batch_size=2, num_workers=2, persistent_workers=True)

    for _ in range(3):
        batches = seen(loader)
        assert [isinstance(batch, ValueError) for batch in batches] == [False, False, True, False, False]


def test_every_sample_may_fail() -> None:
    dataset = Fails({index: raising(ValueError, f"sample {index}") for index in range(10)})

    errors = seen(OURS(dataset, num_workers=2))

    assert [error.index for error in errors] == list(range(10))


# ---- other places ----


def fail_to_start(worker: int) -> None:
    raise ValueError(f"worker {worker} does not start")


def fail_to_start_with_exit(worker: int) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_of_worker_init_fn_is_raised_at_the_first_batch(persistent: bool) -> None:
    more: Arguments = {"num_workers": 1, "persistent_workers": persistent}
    running = iter(OURS(Fails({}), worker_init_fn=fail_to_start, **more))

    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0") as caught:
        next(running)

    assert "worker 0 does not start" in str(caught.value)
    assert "in fail_to_start" in str(caught.value)


def test_an_exit_in_worker_init_fn_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Caught SystemExit in DataLoader worker process 0"):
        list(OURS(Fails({}), worker_init_fn=fail_to_start_with_exit, num_workers=1))


class Once:
    """Fails to start the workers of the first epoch."""

    def __init__(self) -> None:
        self.fails = True

    def __call__(self, worker: int) -> None:
        if self.fails:
            raise ValueError("not yet")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_whose_workers_did_not_start_can_be_iterated_again(persistent: bool) -> None:
    start = Once()
    loader = OURS(Fails({}), worker_init_fn=start, num_workers=1, persistent_workers=persistent)
    with pytest.raises(ValueError, match="not yet"):
        next(iter(loader))

    start.fails = False

    assert torch.cat(list(loader)).tolist() == list(range(10))


class Streams(IterableDataset[Any]):
    """Three samples in each worker. `__iter__` calls `start` first, and `step` before each sample."""

    def __init__(self, start: Callable[[int], None], step: Callable[[int], None]) -> None:
        self.start = start
        self.step = step
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        self.start(self.epochs)
        return _Stream(self.step)


class _Stream:
    """Not a generator: it continues after an exception."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.step = step
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.count == 5:
            raise StopIteration
        self.count += 1
        self.step(self.count)
        info = get_worker_info()
        return (0 if info is None else info.id) * 100 + self.count


def fine(_count: int) -> None:
    pass


def at(count: int, action: Callable[[], Any]) -> Callable[[int], None]:
    def step(reached: int) -> None:
        if reached == count:
            action()

    return step


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_iter_is_raised(workers: int) -> None:
    dataset = Streams(at(1, raising(ValueError, "no stream")), fine)

    with pytest.raises(ValueError, match="no stream"):
        list(OURS(dataset, num_workers=workers))


def test_with_workers_an_exception_of_iter_is_raised_at_the_first_batch() -> None:
    running = iter(OURS(Streams(at(1, raising(ValueError, "no stream")), fine), num_workers=1))

    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        next(running)


def test_an_exception_of_iter_in_a_later_epoch_is_raised_too() -> None:
    dataset = Streams(at(2, raising(ValueError, "no second stream")), fine)
    loader = OURS(dataset, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 5

    with pytest.raises(ValueError, match="no second stream"):
        list(loader)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_iterable_continues_after_an_exception_as_with_torch(batch_size: int | None) -> None:
    dataset = Streams(fine, at(3, raising(ValueError, "a bad line")))

    def shown(kind: Kind) -> list[Any]:
        batches = seen(kind(dataset, batch_size=batch_size, num_workers=2))
        return [type(batch) if isinstance(batch, ValueError) else described(batch) for batch in batches]

    assert shown(OURS) == shown(THEIRS)


def test_an_exception_of_an_iterable_names_batch_and_worker() -> None:
    dataset = Streams(fine, at(3, raising(ValueError, "a bad line")))

    error: Any = next(
        batch
        for batch in seen(OURS(dataset, batch_size=2, num_workers=1))
        if isinstance(batch, BaseException)
    )

    assert "in __next__" in str(error)
    assert str(error).splitlines()[-1].endswith("batch 1, worker 0")
    assert (error.index, error.batch, error.worker) == (None, 1, 0)


def order_that_fails(after: int) -> Iterator[int]:
    yield from range(after)
    raise ValueError("no more indices")


class Order:
    def __init__(self, after: int) -> None:
        self.after = after

    def __iter__(self) -> Iterator[int]:
        return order_that_fails(self.after)


@pytest.mark.parametrize(("workers", "after"), [(0, 4), (2, 0), (2, 9)])
def test_an_exception_of_the_sampler_is_raised_unchanged_at_the_same_moment(workers: int, after: int) -> None:
    def moment(kind: Kind) -> tuple[int, str]:
        count, text = 0, ""
        # pytest keeps caught exceptions, and torch's workers with them.
        try:
            for _ in kind(Fails({}), sampler=Order(after), num_workers=workers):
                count += 1
        except ValueError as error:
            text = str(error)
        return count, text

    ours = moment(OURS)

    assert ours == moment(THEIRS)
    assert ours[1] == "no more indices"


# ---- exceptions with a special meaning ----

OTHERWISE: list[type[BaseException]] = [
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
]


@pytest.mark.parametrize("kind", OTHERWISE)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_exceptions_that_would_end_the_epoch_or_the_program_are_errors(
    kind: type[BaseException], batch_size: int | None
) -> None:
    batches = seen(OURS(failing(kind, "x"), batch_size=batch_size, num_workers=2))

    (error,) = [batch for batch in batches if isinstance(batch, BaseException)]
    assert type(error) is RuntimeError
    assert f"Caught {kind.__name__} in DataLoader worker process" in str(error)
    assert error.index == 5  # type: ignore[attr-defined]
    # The whole epoch except one batch.
    assert len(batches) == 10 // (batch_size or 1)


@pytest.mark.parametrize("kind", OTHERWISE)
def test_an_epoch_without_workers_is_never_short(kind: type[BaseException]) -> None:
    batches = seen(OURS(failing(kind, "x"), batch_size=2))

    (error,) = [batch for batch in batches if isinstance(batch, BaseException)]
    assert type(error) is (RuntimeError if kind is StopIteration else kind)
    assert "sample 5, offset 1 of batch 2" in str(error) + str(getattr(error, "__notes__", ""))
    assert len(batches) == 5


def stop_collating(_samples: Any) -> Any:
    raise StopIteration


@pytest.mark.parametrize("dataset", [Fails({}), Streams(fine, fine)], ids=["map", "iterable"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_cannot_end_the_epoch(dataset: Any, workers: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(OURS(dataset, batch_size=2, collate_fn=stop_collating, num_workers=workers))


class StopsWhole(FailsWhole):
    """Calls `next` once too often on its own iterator."""


@pytest.mark.parametrize("workers", [0, 1])
def test_getitems_cannot_end_the_epoch(workers: int) -> None:
    dataset = StopsWhole({5: raising(StopIteration)})

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(OURS(dataset, batch_size=2, num_workers=workers))


def test_a_sampler_may_end_the_epoch() -> None:
    assert len(list(OURS(Fails({}), sampler=iter(range(3)), num_workers=1))) == 3


# ---- without workers ----


def test_without_workers_the_exception_is_the_same_object_with_a_note() -> None:
    original = ValueError("bad pixel")

    error = caught_from(OURS(failing(original), batch_size=2))

    assert error is original
    assert str(error) == "bad pixel"
    replay = "replay: loader.replay(index=5, epoch=0)"
    assert error.__notes__ == [f"feedline: at sample 5, offset 1 of batch 2\n{replay}"]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({"batch_size": None}, ["feedline: among samples 5, batch 5", "index=5"]),
        (
            {"batch_size": 2, "dataset": FailsWhole({5: raising(ValueError)})},
            ["feedline: among samples [4, 5], batch 2", "batch=2"],
        ),
        ({"batch_size": 2, "dataset": Streams(fine, at(3, raising(ValueError)))}, ["feedline: batch 1"]),
        (
            {"batch_size": 2, "dataset": Fails({}), "collate_fn": fail_to_collate},
            ["feedline: while the samples were collated, batch 2", "batch=2"],
        ),
    ],
    ids=["without batches", "whole batches", "iterable", "collate"],
)
def test_without_workers_the_note_names_the_possible_samples(arguments: Arguments, note: list[str]) -> None:
    error = caught_from(OURS(**{"dataset": failing(ValueError), **arguments}))

    (text,) = error.__notes__
    place, *replayed = note
    lines = [place, *(f"replay: loader.replay({argument}, epoch=0)" for argument in replayed)]
    assert text.replace("at sample", "among samples").splitlines() == lines


def test_without_workers_the_traceback_leads_to_the_data_set() -> None:
    error = caught_from(OURS(failing(ValueError, "x")))

    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    assert last.tb_frame.f_code.co_name == "action"


# ---- pickling errors ----


class Holder:
    def __init__(self, thing: Any) -> None:
        self.fn = thing


class Refuses:
    """Refuses to be pickled with its own message."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        raise self.kind("not me")


def local_thing() -> Any:
    class Local:
        pass

    return Local()


HOPELESS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a function": (lambda: {"x": [1, Holder(lambda: None)]}, "batch['x'][1].fn", "function"),
    "a lock": (lambda: {"x": (1, 2, threading.Lock())}, "batch['x'][2]", "lock"),
    "a thing of a local class": (lambda: [{"a": 1}, {"b": local_thing()}], "batch[1]['b']", "Local"),
    "a generator": (lambda: (number for number in range(3)), "batch", "generator"),
    "a file": (lambda: {"file": open(__file__)}, "batch['file']", "TextIOWrapper"),  # noqa: SIM115, PTH123
    "a gradient": (lambda: {"x": torch.ones(3, requires_grad=True) * 2}, "batch['x']", "Tensor"),
    "a thing that refuses": (lambda: [Refuses(TypeError)], "batch[0]", "Refuses"),
    "a thing that asserts": (lambda: [Refuses(AssertionError)], "batch[0]", "Refuses"),
    "a thing without a key": (lambda: [Refuses(KeyError)], "batch[0]", "Refuses"),
    "a thing that is not ready": (lambda: [Refuses(NotImplementedError)], "batch[0]", "Refuses"),
    "a thing that is anything": (lambda: [Refuses(Exception)], "batch[0]", "Refuses"),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_batch_that_cannot_be_pickled_is_reported_with_the_path_to_the_cause(name: str) -> None:
    make, path, kind = HOPELESS[name]
    loader = OURS(Fails({3: make}), batch_size=None, collate_fn=as_it_is, num_workers=2)

    batches = seen(loader)

    error = batches.pop(3)
    assert batches == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert isinstance(error, NotPicklableError)
    assert f"{path} cannot be pickled" in str(error)
    assert kind in str(error)
    assert "hint: " in str(error)
    assert place_of(error)[0] == 3
    assert place_of(error)[2:] == (3, 1)


def test_a_feedline_error_from_a_worker_keeps_its_hint() -> None:
    (error,) = seen(OURS([threading.Lock()], batch_size=None, collate_fn=as_it_is, num_workers=1))  # type: ignore[arg-type]

    assert isinstance(error, NotPicklableError)
    assert error.hint
    assert error.hint in str(error)


class Transforms(Dataset[int]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"dataset": Transforms(Holder(threading.Lock()))}, "dataset.transform.fn"),
        ({"dataset": Transforms([1, {"a": threading.Lock()}])}, "dataset.transform[1]['a']"),
        ({"collate_fn": Holder(threading.Lock())}, "collate_fn.fn"),
        ({"worker_init_fn": Holder(threading.Lock())}, "worker_init_fn.fn"),
    ],
    ids=["attribute", "container", "collate", "init"],
)
def test_a_data_set_that_cannot_be_sent_to_a_fresh_interpreter_is_reported_with_the_path(
    arguments: Arguments, path: str
) -> None:
    loader = OURS(**{"dataset": Fails({}), "num_workers": 1, "multiprocessing_context": "spawn", **arguments})

    with pytest.raises(NotPicklableError, match="lock") as caught:
        list(loader)

    assert f"{path}" in str(caught.value)
    assert "cannot be pickled" in str(caught.value)


def test_a_data_set_that_cannot_be_loaded_in_a_fresh_interpreter_is_reported() -> None:
    class Unloadable(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

        def __reduce__(self) -> Any:
            return int, ("not a number",)

    with pytest.raises(RuntimeError, match="not a number"):
        list(OURS(Unloadable(), num_workers=1, multiprocessing_context="spawn"))


# ---- timeouts ----


def hang() -> Any:
    threading.Event().wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_late_batch_is_reported_with_its_sample_and_its_worker_ends(workers: int) -> None:
    loader = OURS(Fails({5: hang}), batch_size=2, num_workers=workers, timeout=60)
    running: Any = iter(loader)
    assert [batch.tolist() for batch in islice(running, 2)] == [[0, 1], [2, 3]]

    text = f"at sample 5, offset 1 of batch 2, worker {2 % workers}"
    while text not in too_late(running, 0.3):
        continue

    pids = [worker.pid for worker in running._workers]
    del running
    assert eventually(lambda: all(has_ended(pid) for pid in pids))


def too_late(running: Any, seconds: float) -> str:
    """The message of a timeout. On a busy machine the worker may not have reached its sample yet."""
    running._timeout = seconds
    with pytest.raises(RuntimeError) as caught:
        next(running)
    said = str(caught.value)
    # The exception holds this frame, and the iterator with it.
    del caught
    assert said.startswith(f"DataLoader timed out after {seconds} seconds\n")
    return said


def test_an_iterator_can_wait_again_after_a_timeout() -> None:
    gate = torch.multiprocessing.get_context("fork").Event()
    running: Any = iter(OURS(Fails({0: gate.wait}), batch_size=None, num_workers=1, timeout=0.3))
    assert too_late(running, 0.3)

    gate.set()
    running._timeout = 60

    assert list(running) == [True, *range(1, 10)]


def late(_samples: Any) -> Any:
    threading.Event().wait()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"collate_fn": late}, "while the samples were collated, batch 0, worker 0"),
        ({"dataset": Streams(fine, at(2, hang)), "batch_size": 2}, "batch 0, worker 0"),
        ({"worker_init_fn": late}, "worker 0"),
        ({"in_order": False, "dataset": Fails({1: hang}), "batch_size": 2}, "sample 1, offset 1 of batch 0"),
    ],
    ids=["collate", "iterable", "init", "out of order"],
)
def test_the_timeout_names_what_is_late(arguments: Arguments, text: str) -> None:
    running = iter(OURS(**{"dataset": Fails({}), "num_workers": 1, "timeout": 0.4, **arguments}))

    assert eventually(lambda: text in too_late(running, 0.4))


@pytest.mark.parametrize("kind", [OURS, THEIRS])
def test_a_timeout_without_workers_is_refused_by_iter(kind: Kind) -> None:
    loader = kind(Fails({}), timeout=1)

    # Up to torch 2.9 the error has no message.
    with pytest.raises(AssertionError, match=r"^$|requires timeout == 0"):
        iter(loader)


def test_workers_end_after_an_exception_too() -> None:
    running: Any = iter(OURS(failing(ValueError, "x", at=0), num_workers=2))
    with pytest.raises(ValueError, match="x"):
        next(running)

    pids = [worker.pid for worker in running._workers]
    del running

    assert eventually(lambda: all(has_ended(pid) for pid in pids))
