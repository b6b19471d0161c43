"""A signal handler raises at any step of `next()`: no batch is lost, on any front."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
from feedline import _native
from feedline.torch import DataLoader

from faults.interrupts import FRONTS, SAMPLES, Alarm, Interrupter, Numbers, arrays, batches, numbers_of, same
from faults.remains import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Set before the first batch: handlers that are set later take effect only after some batches."""
    before = signal.signal(signal.SIGUSR2, Interrupter._handle)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("front", FRONTS)
def test_an_exception_raised_at_any_step_of_next_loses_no_batch(front: str) -> None:
    make, skipped = FRONTS[front]
    wanted = [numbers_of(batch) for batch in make()]
    assert sorted(itertools.chain(*wanted)) == sorted(set(range(SAMPLES)) - skipped)
    # More than the steps of one batch: faster signals would each end a call.
    stride, raised = 1009, 0

    for first in range(0, stride, 97):
        loader = make()
        interrupter = Interrupter(first, stride)
        seen = batches(loader, interrupter)
        if interrupter.may_have_lost:
            continue
        assert seen == wanted, f"signals at every {stride}th step from {first} on"
        report = (loader.loader if hasattr(loader, "loader") else loader).report()
        assert (report.delivered, report.skipped) == (SAMPLES - len(skipped), len(skipped))
        raised += interrupter.raised
        if hasattr(loader, "close"):
            loader.close()

    assert raised > 0


@pytest.mark.parametrize("way", ["feedline.map", "Executor.map"])
def test_an_exception_raised_at_any_step_of_next_loses_no_result(way: str) -> None:
    raised = 0
    with fl.Executor(2) as pool:
        for first in range(0, 401, 40):
            mapped: Any = fl.map if way == "feedline.map" else pool.map
            results = mapped(same, range(40), chunksize=3)
            interrupter = Interrupter(first, 401)
            seen = []
            while True:
                try:
                    result = interrupter.next(results)
                except StopIteration:
                    break
                if result is not Alarm:
                    seen.append(result)
            assert interrupter.may_have_lost or seen == list(range(40))
            raised += interrupter.raised

    assert raised > 0


def fail_at_five(number: int) -> int:
    if number == 5:
        raise ValueError("five is bad")
    return number


def test_the_error_of_a_call_survives_exceptions_raised_while_the_workers_end() -> None:
    raised = 0
    for first in range(0, 300, 50):
        results = fl.map(fail_at_five, range(40), workers=1)
        interrupter = Interrupter(first, 29)
        seen = []
        error = None
        while error is None:
            try:
                result = interrupter.next(results)
            except ValueError as raised_by_call:
                error = raised_by_call
            else:
                seen += [] if result is Alarm else [result]
        assert str(error) == "five is bad"
        assert interrupter.may_have_lost or seen == list(range(5))
        raised += interrupter.raised
        with pytest.raises(StopIteration):
            next(results)

    assert raised > 0


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_dropping_results_does_not_wait_for_running_calls(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    dropped: Any = fl.map(wait_for, [gate], workers=1)
    dropped._begin()
    pool = dropped._pool._pool
    assert eventually(lambda: pool._running)

    def forget(number: int) -> int:
        nonlocal dropped
        dropped = None
        return number

    samples: Any = [0, 1]
    loader = DataLoader(samples, batch_size=1, collate_fn=lambda chosen: forget(chosen[0]))

    # Waiting for the call would never end.
    assert list(loader) == [0, 1]
    gate.touch()
    assert eventually(lambda: not pool.thread.is_alive())


def test_a_state_after_an_interrupt_does_not_count_the_pending_batch() -> None:
    wanted = [numbers_of(batch) for batch in arrays().batch(4).loader()]
    for front in ("native", "map"):
        make = FRONTS[front][0]
        for first in range(0, 60, 3):
            with make() as loader, make() as resumed:
                epoch = iter(loader)
                seen = [numbers_of(next(epoch))]
                interrupted = Interrupter(first, 10**9).next(epoch) is Alarm
                resumed.load_state_dict(loader.state_dict())
                seen += [numbers_of(batch) for batch in resumed]
                assert seen == (wanted if interrupted else [wanted[0], *wanted[2:]])


def test_a_second_exception_is_raised_at_once_if_the_first_has_waited_long() -> None:
    """A user who presses Ctrl-C again does not want to wait for a sampler that hangs."""
    pressed = threading.Event()

    class Sampler(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            signal.raise_signal(signal.SIGINT)
            pressed.set()
            time.sleep(1.1)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("both were kept")

    with pytest.raises(KeyboardInterrupt):
        list(DataLoader(Numbers(), sampler=Sampler()))
    assert pressed.is_set()


def test_handlers_are_those_of_the_program_before_and_after_each_batch() -> None:
    seen: list[Any] = []

    def handler(_number: int, _frame: Any) -> None:
        seen.append("called")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.siginterrupt(signal.SIGUSR1, False)
        for batch in DataLoader(Numbers(), batch_size=4):
            assert len(batch) == 4
            assert signal.getsignal(signal.SIGUSR1) is handler
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.raise_signal(signal.SIGUSR1)
        assert seen == ["called"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_two_threads_take_turns_at_one_iterator_and_both_see_its_end() -> None:
    for front in ("native", "map", "torch", "torch, no workers"):
        epoch = iter(FRONTS[front][0]())
        seen: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: seen.extend(numbers_of(batch) for batch in epoch))  # noqa: B023
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), front
        assert sorted(itertools.chain(*seen)) == list(range(SAMPLES))


def test_calling_next_inside_next_is_an_error() -> None:
    epochs: list[Any] = []

    class Sampler(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            next(epochs[0])

    epochs.append(iter(DataLoader(Numbers(), sampler=Sampler())))
    next(epochs[0])
    with pytest.raises(RuntimeError, match="already producing a batch"):
        next(epochs[0])


def test_the_thread_that_forked_is_the_main_thread_of_the_child() -> None:
    class Wrapped(_native.BatchIterator):
        """Whether handlers of signals are wrapped while a batch is produced, as in the main thread."""

        _confirm = None

        def _produce(self) -> bool:
            return signal.getsignal(signal.SIGINT) is not signal.default_int_handler

    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert next(Wrapped())
    found: list[Any] = []

    def fork() -> None:
        found.append(next(Wrapped()))
        pid = os.fork()
        if pid == 0:
            os._exit(0 if next(Wrapped()) else 1)
        found.append(os.waitpid(pid, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(60)
    assert found == [False, 0]
