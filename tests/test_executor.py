"""The executor works like `concurrent.futures`, and survives workers that die."""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import itertools
import operator
import os
import signal
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import feedline
import feedline._call_queue
import numpy as np
import pytest
import torch
from faults.remains import children, eventually, has_ended, nothing_left
from faults.sets import WAYS, die
from feedline import Executor
from feedline.errors import NotPicklableError, TooManyDeathsError, WorkerDiedError, WorkerDiedWarning
from programs import answer, descriptors, endings

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True, scope="module")
def warm() -> Iterator[None]:
    """Uses torch and a pool once, so that their one-time set-up does not count as a leak."""
    double(torch.ones(1_000_000))
    with Executor(1) as pool:
        pool.submit(int).result()
    # Objects that exist now stay. Collecting them after each test would take longer than most tests.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def leaves_nothing(warm: None) -> Iterator[None]:
    """After each test, processes, threads, descriptors and shared memory are the same as before."""
    with nothing_left():
        yield


@pytest.fixture
def pool() -> Iterator[Executor]:
    with Executor(2) as pool:
        # pytest keeps the value of a fixture for longer than the test.
        yield cast(Executor, weakref.proxy(pool))


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file; calls wait until it exists."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def wait_for(path: Path, value: Any = None) -> Any:
    assert eventually(path.exists, 30)
    return value


def square(number: int) -> int:
    return number * number


def fail(number: int) -> None:
    raise LookupError(f"there is no {number}")


def double(batch: Any) -> Any:
    return batch * 2


def keywords(*arguments: Any, **named: Any) -> Any:
    return arguments, named


def die_once(marker: Path, way: str, value: Any) -> Any:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return value
    die(way)
    return None


def count(path: Path, way: str) -> None:
    """Records the call, then dies."""
    with path.open("a") as file:
        file.write(".")
    die(way)


# ---- like concurrent.futures ----


def test_calls_have_arguments_and_results_as_in_the_pool_of_the_standard_library(pool: Executor) -> None:
    with ProcessPoolExecutor(1) as other:
        for function, arguments, named in (
            (square, (7,), {}),
            (keywords, (1, "two", None), {"three": [4.5], "fn": b"6"}),
            (sorted, ([3, 1, 2],), {"reverse": True}),
            (operator.itemgetter(1), ("abc",), {}),
            (functools.partial(pow, 2), (10,), {}),
        ):
            assert pool.submit(function, *arguments, **named).result(20) == other.submit(
                function, *arguments, **named
            ).result(20)


def test_an_exception_is_that_of_the_call_with_the_traceback_of_the_worker_as_its_cause(
    pool: Executor,
) -> None:
    with ProcessPoolExecutor(1) as other:
        for submit in (pool.submit, other.submit):
            error = submit(fail, 5).exception(20)
            assert type(error) is LookupError
            assert error.args == ("there is no 5",)
            assert 'raise LookupError(f"there is no {number}")' in str(error.__cause__)
            assert "in fail" in "".join(traceback.format_exception(error))

    assert pool.submit(square, 3).result(20) == 9


def test_map_is_in_order_and_ends_with_the_shortest(pool: Executor) -> None:
    with ProcessPoolExecutor(2) as other:
        for chunksize in (1, 3, 100):
            ours = list(pool.map(pow, range(20), range(2, 15), chunksize=chunksize))
            assert ours == list(other.map(pow, range(20), range(2, 15), chunksize=chunksize))
    assert list(pool.map(square, [])) == []


def test_map_raises_at_the_place_of_the_call(pool: Executor) -> None:
    results = pool.map(fail_at_three, range(6))

    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="there is no 3"):
        next(results)
    assert list(results) == []


def fail_at_three(number: int) -> int:
    if number == 3:
        fail(number)
    return number


def test_map_with_a_timeout_raises_and_its_later_calls_are_cancelled(pool: Executor, gate: Path) -> None:
    results = pool.map(wait_for, [gate] * 20, timeout=0.2)

    with pytest.raises(TimeoutError):
        next(results)
    gate.touch()


def test_map_takes_no_more_than_the_buffer_ahead(pool: Executor) -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = pool.map(square, numbers(), buffersize=5)
    assert len(taken) == 5
    assert [next(results) for _ in range(10)] == [number**2 for number in range(10)]
    assert len(taken) <= 16


def test_a_call_that_waits_is_cancelled_and_one_that_runs_is_not(pool: Executor, gate: Path) -> None:
    futures = [pool.submit(wait_for, gate, number) for number in range(12)]
    assert eventually(futures[0].running)

    assert not futures[0].cancel()
    assert futures[11].cancel()
    gate.touch()

    assert [future.result(20) for future in futures[:11]] == list(range(11))
    with pytest.raises(CancelledError):
        futures[11].result()


def test_results_are_waited_for_with_the_tools_of_concurrent_futures(pool: Executor, gate: Path) -> None:
    late = pool.submit(wait_for, gate, "late")
    soon_there = pool.submit(square, 2)

    first = concurrent.futures.wait([late, soon_there], return_when="FIRST_COMPLETED", timeout=20)
    assert first.done == {soon_there}
    with pytest.raises(TimeoutError):
        late.result(0.01)
    gate.touch()
    both = {future.result() for future in concurrent.futures.as_completed([late, soon_there], 20)}
    assert both == {"late", 4}


def test_a_callback_can_submit(pool: Executor) -> None:
    chained: Future[Future[int]] = Future()
    first = pool.submit(square, 3)
    first.add_done_callback(lambda done: chained.set_result(pool.submit(square, done.result())))

    assert chained.result(20).result(20) == 81


# ---- shutdown ----


def test_shutdown_waits_for_submitted_calls_and_accepts_no_more(gate: Path) -> None:
    pool = Executor(2)
    futures = [pool.submit(square, number) for number in range(30)]
    pool.shutdown()

    assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [number**2 for number in range(30)]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(square, 1)
    pool.shutdown()


def test_shutdown_without_waiting_returns_and_the_calls_still_run(gate: Path) -> None:
    pool = Executor(1)
    futures = [pool.submit(wait_for, gate, number) for number in range(5)]
    # If shutdown waited, the gate would stay closed.
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(square, 1)
    gate.touch()

    assert [future.result(20) for future in futures] == list(range(5))


def test_shutdown_that_cancels_completes_only_running_calls(gate: Path) -> None:
    pool = Executor(1)
    futures = [pool.submit(wait_for, gate, number) for number in range(10)]
    assert eventually(futures[0].running)
    pool.shutdown(wait=False, cancel_futures=True)
    gate.touch()
    pool.shutdown()

    assert futures[0].result(20) == 0
    assert all(future.done() for future in futures)
    assert all(future.cancelled() for future in futures[3:])


def test_shutdown_of_an_idle_pool_does_not_wait_for_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feedline._call_queue, "_POLL_SECONDS", 1000.0)
    with Executor(1) as pool:
        pool.submit(square, 1).result(20)
    assert pool.workers == []
    # Also if the pool is dropped without a shutdown.
    dropped = Executor(1)
    dropped.submit(square, 1).result(20)
    thread = dropped._pool.thread
    assert thread is not None
    del dropped
    thread.join(20)
    assert not thread.is_alive()


def test_a_pool_that_was_never_used_is_shut_down() -> None:
    before = children(os.getpid())
    with Executor(2) as pool:
        assert children(os.getpid()) == before
        assert pool.deaths == []


def test_a_pool_that_was_shut_down_holds_no_descriptor() -> None:
    before = descriptors()
    pool = Executor(1)
    pool.submit(square, 1).result(20)
    pool.shutdown()

    assert descriptors() == before
    assert pool.deaths == []


@pytest.mark.timeout(300)
def test_a_callback_of_a_cancelled_call_may_use_the_pool_while_it_shuts_down(tmp_path: Path) -> None:
    program = """
    pool = fl.Executor(1)
    gate = Path(arguments[0])
    def wait(path):
        while not path.exists():
            time.sleep(0.01)
    futures = [pool.submit(wait, gate) for _ in range(10)]
    said = []
    def submit(future):
        try:
            pool.submit(int)
        except RuntimeError as error:
            said.append(str(error))
        gate.touch()
    futures[-1].add_done_callback(submit)
    pool.shutdown(cancel_futures=True)
    say(said)
    """

    assert answer(program, tmp_path / "gate", seconds=15) == ["cannot schedule new futures after shutdown"]


def test_calls_complete_before_the_interpreter_ends(tmp_path: Path) -> None:
    makers = ["concurrent.futures.ProcessPoolExecutor", "fl.Executor"]
    folders = [tmp_path / str(number) for number in range(4)]
    programs = []
    for folder, (maker, end) in zip(
        folders, itertools.product(makers, ["pass", "pool.shutdown(wait=False)"]), strict=True
    ):
        folder.mkdir()
        programs.append(
            f"""
            pool = {maker}(1)
            futures = [pool.submit(Path.touch, Path({str(folder)!r}) / str(number)) for number in range(8)]
            {end}
            """
        )

    assert endings("import concurrent.futures", programs) == [(0, "")] * 4

    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [str(number) for number in range(8)]


def test_a_pool_that_is_dropped_ends_its_workers() -> None:
    def use() -> list[int]:
        pool = Executor(2)
        pool.submit(square, 1).result(20)
        return [worker.pid for worker in pool.workers if worker.pid is not None]

    pids = use()

    assert pids
    assert eventually(lambda: all(has_ended(pid) for pid in pids), 5)


# ---- arguments and results ----


def test_lambdas_closures_and_local_classes_can_be_sent(pool: Executor) -> None:
    factor = 3

    class Scale:
        def __call__(self, number: int) -> int:
            return number * factor

    assert pool.submit(lambda number: number * factor, 5).result(20) == 15
    assert pool.submit(Scale(), 5).result(20) == 15
    assert list(pool.map(lambda one, other: (other, one), "ab", "cd")) == [("c", "a"), ("d", "b")]
    assert pool.submit(lambda function: function(2), lambda number: number + 1).result(20) == 3


class Growing:
    def __init__(self) -> None:
        self.size = 0

    def __call__(self) -> int:
        return self.size


def test_a_callable_is_sent_as_it_is_at_each_call(pool: Executor) -> None:
    growing = Growing()
    seen = []
    for size in (1, 2, 3):
        growing.size = size
        seen.append(pool.submit(growing).result(20))

    with ProcessPoolExecutor(1) as other:
        assert other.submit(growing).result(20) == 3
    assert seen == [1, 2, 3]


def test_large_arrays_and_tensors_are_returned_unchanged_and_writable(pool: Executor) -> None:
    array = np.arange(1_000_000, dtype=np.float64).reshape(1000, 1000)
    tensor = torch.arange(1_000_000).view(1000, 1000)

    arrays = list(pool.map(double, [array] * 3))
    tensors = list(pool.map(double, [tensor, tensor[:, ::2], tensor.t()]))

    for result in arrays:
        np.testing.assert_array_equal(result, array * 2)
        result += 1
    assert torch.equal(tensors[0], tensor * 2)
    assert torch.equal(tensors[1], tensor[:, ::2] * 2)
    assert torch.equal(tensors[2], tensor.t() * 2)
    tensors[0].zero_()
    assert torch.equal(pool.submit(double, tensor).result(20), tensor * 2)


def test_results_outlive_the_pool() -> None:
    with Executor(1) as pool:
        result = pool.submit(double, np.ones(100_000)).result(20)

    assert result.sum() == 200_000


def test_arguments_that_cannot_be_pickled_are_refused_where_they_are_given(pool: Executor) -> None:
    with pytest.raises(
        NotPicklableError, match=r"arguments\[1\]\['lock'\] cannot be pickled: it is a _thread\.lock"
    ):
        pool.submit(keywords, 1, {"lock": threading.Lock()})
    with pytest.raises(NotPicklableError, match=r"function.* cannot be pickled: (.|\n)*_thread\.lock"):
        pool.submit(functools.partial(keywords, threading.Lock()))

    assert pool.submit(square, 2).result(20) == 4


def make_lock() -> Any:
    return {"name": "a", "lock": threading.Lock()}


def test_a_result_that_cannot_be_pickled_is_named_in_its_own_future(pool: Executor) -> None:
    error = pool.submit(make_lock).exception(20)

    assert isinstance(error, NotPicklableError)
    assert "['lock'] cannot be pickled: it is a _thread.lock" in str(error)
    assert "batch" not in str(error), "an executor has no batches"
    assert pool.submit(square, 2).result(20) == 4


# ---- initializer ----


SET: list[Any] = []


def remember(*values: Any) -> None:
    SET.append(values)


def remembered(_number: int = 0) -> list[Any]:
    return SET


def test_the_initializer_is_called_once_in_each_worker_with_its_arguments() -> None:
    with Executor(2, initializer=remember, initargs=(1, "two")) as pool:
        assert list(pool.map(remembered, range(6))) == [[(1, "two")]] * 6
    assert SET == []


def test_a_worker_that_replaces_another_is_initialised_too(tmp_path: Path) -> None:
    with Executor(1, initializer=remember, initargs=(1,)) as pool:
        pool.submit(die_once, tmp_path / "died", "SIGKILL", 0).result(20)
        assert pool.submit(remembered).result(20) == [(1,)]


def test_an_initializer_that_fails_ends_the_pool_with_its_own_exception() -> None:
    with Executor(2, initializer=fail, initargs=(5,)) as pool:
        futures = [pool.submit(square, number) for number in range(8)]
        for future in futures:
            assert isinstance(future.exception(20), LookupError)
            assert "there is no 5" in str(future.exception())
        with pytest.raises(LookupError):
            pool.submit(square, 1)


# ---- deaths ----


def test_a_call_whose_worker_dies_is_repeated_without_affecting_others(tmp_path: Path) -> None:
    squares = [number**2 for number in range(10)]
    with Executor(2, max_deaths=len(WAYS)) as pool:
        for way in WAYS:
            futures: list[Future[Any]] = [pool.submit(square, number) for number in range(10)]
            futures.insert(5, pool.submit(die_once, tmp_path / way, way, "alive"))
            futures += [pool.submit(square, number) for number in range(10)]
            results = [future.result(20) for future in futures]

            assert results == [*squares[:5], "alive", *squares[5:], *squares]
            death = pool.deaths[-1]
            assert (death.signal, death.exit_code) == ((None, int(way[-1])) if "exit" in way else (way, None))
            assert death.what is not None
            assert "die_once(" in death.what
        assert len(pool.deaths) == len(WAYS)


def test_a_worker_that_is_killed_from_outside_is_replaced_and_the_warning_names_the_call(gate: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Executor(2) as pool:
            future = pool.submit(wait_for, gate, "done")
            assert eventually(lambda: any(is_calling(pool, worker_id) for worker_id in range(2)))
            (worker_id,) = [worker_id for worker_id in range(2) if is_calling(pool, worker_id)]
            pid = pool.workers[worker_id].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            gate.touch()
            assert future.result(20) == "done"

    (warning,) = caught
    assert warning.category is WorkerDiedWarning
    for part in (f"worker {worker_id}", f"pid {pid}", "SIGKILL", "wait_for("):
        assert part in str(warning.message)


def is_calling(pool: Executor, worker_id: int) -> bool:
    worker_pool = pool._pool._worker_pool
    doing = None if worker_pool is None else worker_pool.activity(worker_id)
    return doing is not None and doing.stage not in ("starting", "waiting")


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_call_that_always_kills_fails_alone_after_its_attempts(tmp_path: Path, attempts: int) -> None:
    path = tmp_path / "calls"
    with Executor(2, attempts=attempts) as pool:
        good = [pool.submit(square, number) for number in range(10)]
        bad = pool.submit(count, path, "SIGSEGV")
        good += [pool.submit(square, number) for number in range(10)]
        error = bad.exception(20)
        assert [future.result(20) for future in good] == [number**2 for number in range(10)] * 2
        assert pool.submit(square, 5).result(20) == 25

    assert path.read_text() == "." * attempts
    assert isinstance(error, WorkerDiedError)
    for part in ("count(", "SIGSEGV", *(f"pid {death.pid}" for death in pool.deaths)):
        assert part in str(error)
    assert len(pool.deaths) == attempts


def test_too_many_deaths_end_the_pool(tmp_path: Path) -> None:
    with Executor(1, max_deaths=3) as pool:
        # Each call kills once, so no call is the cause more than another.
        calls = [pool.submit(die_once, tmp_path / f"{number}", "SIGKILL", number) for number in range(8)]
        errors = [call.exception(20) for call in calls]
        error = errors[-1]
        assert isinstance(error, TooManyDeathsError)
        assert len(error.deaths) == 4
        assert str(error).count("was killed by SIGKILL") == 4
        with pytest.raises(TooManyDeathsError):
            pool.submit(square, 1)


def test_a_death_does_not_break_the_pool_if_warnings_are_errors(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Executor(1) as pool:
            assert pool.submit(die_once, tmp_path / "died", "SIGKILL", "alive").result(20) == "alive"


def test_calls_complete_when_the_zygote_is_killed(gate: Path) -> None:
    with Executor(2) as pool:
        before = children(os.getpid())
        futures = [pool.submit(wait_for, gate, number) for number in range(6)]
        assert eventually(lambda: any(is_calling(pool, worker_id) for worker_id in range(2)))
        (zygote,) = children(os.getpid()) - before
        os.kill(zygote, signal.SIGKILL)
        gate.touch()
        assert [future.result(20) for future in futures] == list(range(6))


def test_workers_of_a_fresh_interpreter_are_replaced_too(tmp_path: Path) -> None:
    # By value: for a function of this module, the interpreter would have to import torch.
    def die_at_first(marker: Path) -> int:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return os.getpid()

    with Executor(1, "spawn") as pool:
        assert pool.submit(die_at_first, tmp_path / "died").result(50) != os.getpid()
        assert len(pool.deaths) == 1


# ---- feedline.map ----


def test_map_over_an_endless_iterable_is_in_order_and_ends_its_workers_with_the_loop() -> None:
    before = children(os.getpid())
    taken = []
    for result in feedline.map(square, itertools.count(), workers=2):
        taken.append(result)
        if len(taken) == 50:
            break
    del result

    assert taken == [number**2 for number in range(50)]
    assert eventually(lambda: children(os.getpid()) == before, 5)


@pytest.mark.parametrize(("chunksize", "ahead"), [(1, None), (1, 1), (4, None), (4, 7), (100, 1)])
def test_map_gives_what_the_builtin_gives(chunksize: int, ahead: int | None) -> None:
    results = feedline.map(pow, range(30), range(2, 40), workers=2, chunksize=chunksize, ahead=ahead)

    assert list(results) == list(map(pow, range(30), range(2, 40)))


def test_map_survives_deaths_and_raises_exceptions_of_calls(tmp_path: Path) -> None:
    markers = [tmp_path / str(number) for number in range(4)]
    results = feedline.map(die_once, markers, WAYS, range(4), workers=2, max_deaths=10)

    assert list(results) == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="there is no 0"):
        list(feedline.map(fail, range(3), workers=1))


def test_map_that_is_never_iterated_leaves_nothing() -> None:
    before = children(os.getpid())
    results = feedline.map(square, range(10), workers=1)
    del results

    assert eventually(lambda: children(os.getpid()) == before, 5)


# ---- arguments, threads ----


def test_max_workers_is_another_name_for_workers() -> None:
    with Executor(max_workers=3) as pool:
        pool.submit(square, 1).result(20)
        assert len(pool.workers) == 3


class SlowToPickle:
    """Lets another thread run while it is pickled."""

    def __reduce__(self) -> Any:
        other = threading.Event()
        other.wait(0.002)
        return int, (0,)


def test_each_of_several_threads_gets_the_results_of_its_own_calls(pool: Executor) -> None:
    wrong: list[object] = []

    def use(number: int) -> None:
        def mine(_: object) -> int:
            return number

        for _ in range(30):
            try:
                result = pool.submit(mine, SlowToPickle()).result(20)
            except Exception as error:
                wrong.append(error)
                return
            if result != number:
                wrong.append((number, result))

    users = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()

    assert wrong == []


def test_many_calls_from_several_threads_are_each_made_once(pool: Executor) -> None:
    sums: list[int] = []

    def use(first: int) -> None:
        sums.append(sum(pool.map(square, range(first, first + 100), chunksize=5)))

    users = [threading.Thread(target=use, args=(first,)) for first in (0, 100, 200)]
    for user in users:
        user.start()
    for user in users:
        user.join()

    assert sum(sums) == sum(number**2 for number in range(300))
