"""Calls that raise, kill or hang are judged by the policy, and all other results arrive."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import feedline
import pytest
from faults.remains import eventually, nothing_left
from faults.sets import WAYS, die
from feedline import Event, Executor, FaultPolicy, Skipped
from feedline.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    TooManyFaultsError,
    WorkerDiedError,
    WorkerStalledWarning,
)
from programs import answer

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

SKIP = FaultPolicy("skip")
REPLACE = FaultPolicy("replace", replacement=-1)
# Long enough that a healthy sample on a busy machine is never late by chance.
DEADLINE = 2.5


@pytest.fixture(autouse=True, scope="module")
def warm() -> Iterator[None]:
    """Uses a pool once, so that its one-time set-up does not count as a leak."""
    with Executor(1) as pool:
        pool.submit(int).result()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def leaves_nothing(warm: None) -> Iterator[None]:
    """After each test, processes, threads, descriptors and shared memory are the same as before."""
    with nothing_left():
        yield


BAD = (3, 7)


def fails(number: int) -> int:
    if number in BAD:
        raise LookupError(f"there is no {number}")
    return number


def kills(number: int) -> int:
    if number in BAD:
        die("SIGKILL")
    return number


def dies(way: str) -> None:
    die(way)


def hangs(number: int) -> int:
    while number in BAD:
        time.sleep(1000)
    return number


def computes_for_ever(number: int) -> int:
    return sum(range(10**12)) if number in BAD else number


def stops(number: int) -> int:
    if number in BAD:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def noted(folder: Path, number: int) -> int:
    """How often a call was made so far, including this time."""
    note = folder / str(number)
    with note.open("ab") as file:
        file.write(b".")
    return note.stat().st_size


def kills_at_first(folder: Path, times: int, number: int) -> int:
    if number in BAD and noted(folder, number) <= times:
        die("SIGKILL")
    return number


def hangs_at_first(folder: Path, number: int) -> int:
    while number in BAD and noted(folder, number) <= 1:
        time.sleep(1000)
    return number


def breaks_at_first(folder: Path, number: int) -> int:
    if number in BAD and noted(folder, number) <= 2:
        raise ConnectionError("for a moment")
    return number


def placed(results: Iterable[Any], count: int = 12) -> bool:
    """Whether every result is at the place of its call, and bad calls are marked."""
    found = list(results)
    assert len(found) == count
    for number, result in enumerate(found):
        assert isinstance(result, Skipped) if number in BAD else result == number, (number, result)
    return True


# ---- bad calls ----


@pytest.mark.parametrize("function", [fails, kills], ids=lambda function: function.__name__)
def test_skipped_calls_keep_their_place_in_map_and_are_named(function: Any) -> None:
    for chunksize in (1, 5, 100):
        with Executor(2, faults=SKIP) as pool:
            assert placed(pool.map(function, range(12), chunksize=chunksize))

            report = pool.report()
        assert (report.submitted, report.returned, report.skipped, report.failed) == (12, 10, 2, 0)
        assert {fault.index for fault in report.faults} == {f"{function.__name__}({bad})" for bad in BAD}
        assert {fault.stage for fault in report.faults} == {"calling"}
        reason = "SIGKILL" if function is kills else "there is no"
        assert all(reason in fault.reason for fault in report.faults)


@pytest.mark.parametrize("chunksize", [1, 5])
def test_zip_pairs_arguments_with_results_despite_skipped_calls(chunksize: int) -> None:
    numbers = range(12)
    with Executor(2, faults=SKIP) as pool:
        pairs = list(zip(numbers, pool.map(fails, numbers, chunksize=chunksize), strict=True))
    pairs += zip(numbers, feedline.map(fails, numbers, workers=1, faults=SKIP), strict=True)

    assert len(pairs) == 24
    for number, result in pairs:
        if number not in BAD:
            assert result == number
            continue
        assert isinstance(result, Skipped)
        assert not result
        assert result.call == f"fails({number})"
        assert type(result.error) is LookupError
        assert repr(result) == f"<skipped: fails({number}) failed with LookupError>"


@pytest.mark.parametrize(
    "function", [hangs, computes_for_ever, stops], ids=lambda function: function.__name__
)
def test_calls_that_pass_their_deadline_are_skipped_and_named(function: Any) -> None:
    with Executor(2, faults=SKIP, deadline=DEADLINE) as pool:
        # Each worker has completed a call: otherwise the fork could be the cause.
        list(pool.map(fails, [0] * 8))
        for chunksize in (1, 5):
            assert placed(pool.map(function, range(12), chunksize=chunksize))

        faults = {fault.index: fault for fault in pool.report().faults}
        deaths = pool.deaths
    assert set(faults) == {f"{function.__name__}({bad})" for bad in BAD}
    assert {fault.times for fault in faults.values()} == {2}
    assert {fault.kind for fault in faults.values()} == {"DeadlineExceededError"}
    assert {death.what for death in deaths} == set(faults)
    assert {death.cause for death in deaths} == {"deadline passed"}
    if function is not stops:
        assert all(f"{function.__name__}() at {__file__}" in (death.code or "") for death in deaths)


def test_however_a_call_kills_its_future_gets_the_error_and_the_others_their_results() -> None:
    with Executor(2, faults=SKIP) as pool:
        bad = {way: pool.submit(dies, way) for way in WAYS}
        good = [pool.submit(fails, number) for number in (0, 1, 2)]

        assert [future.result(20) for future in good] == [0, 1, 2]
        for way, future in bad.items():
            error = future.exception(20)
            assert isinstance(error, WorkerDiedError)
            assert len(error.deaths) == 3
            assert str(error).startswith(f"dies('{way}') killed its worker 3 times:\n")
            assert "hint: " in str(error)


def test_a_future_gets_the_exception_of_its_call_and_the_report_counts_it() -> None:
    with Executor(2, faults=SKIP) as pool:
        error = pool.submit(fails, 3).exception(20)
        report = pool.report()

    assert type(error) is LookupError
    assert error.args == ("there is no 3",)
    assert (report.returned, report.skipped) == (0, 1)


def test_the_replacement_takes_the_place_of_bad_results() -> None:
    right = [-1 if number in BAD else number for number in range(12)]
    with Executor(2, faults=REPLACE, deadline=DEADLINE) as pool:
        list(pool.map(fails, [0] * 8))
        for function, chunksize in itertools.product((fails, kills, hangs), (1, 5)):
            assert list(pool.map(function, range(12), chunksize=chunksize)) == right
        assert pool.submit(kills, 3).result(20) == -1

        report = pool.report()
    assert (report.replaced, report.skipped) == (13, 0)
    assert (report.returned, report.submitted) == (81, 81)


# ---- retried ----


@pytest.mark.parametrize("chunksize", [1, 4])
def test_calls_that_kill_at_first_are_repeated_until_they_have_a_result(
    tmp_path: Path, chunksize: int
) -> None:
    with Executor(2, faults=SKIP, max_deaths=6) as pool:
        for times in (1, 2):
            folder = tmp_path / str(times)
            folder.mkdir()
            calls = ([folder] * 12, [times] * 12, range(12))
            assert list(pool.map(kills_at_first, *calls, chunksize=chunksize)) == list(range(12))

        assert pool.report().faults == ()
        assert len(pool.deaths) == 2 + 4


def test_a_call_that_hangs_once_is_repeated_if_the_policy_says_so(tmp_path: Path) -> None:
    with Executor(2, faults=FaultPolicy(retry=1), deadline=DEADLINE) as pool:
        list(pool.map(fails, [0] * 8))
        assert list(pool.map(hangs_at_first, [tmp_path] * 12, range(12))) == list(range(12))

        assert len(pool.deaths) == 2


def test_a_call_with_a_transient_error_is_repeated_if_the_policy_says_so(tmp_path: Path) -> None:
    with Executor(2, faults=FaultPolicy(retry=2, backoff=0.001)) as pool:
        assert list(pool.map(breaks_at_first, [tmp_path] * 12, range(12), chunksize=4)) == list(range(12))

        assert pool.report().retried == 2


def test_many_killers_do_not_break_the_pool() -> None:
    with Executor(2, faults=SKIP) as pool:
        numbers = [3, 0, 7, 1, 3, 2, 7, 4]

        results = list(pool.map(kills, numbers))

        assert [result for result in results if not isinstance(result, Skipped)] == [0, 1, 2, 4]
        # Three deaths for each call: more than max_deaths if they were not faults.
        assert len(pool.deaths) == 12
        assert pool.submit(fails, 5).result(20) == 5


# ---- without a policy ----


@pytest.mark.parametrize("function", [kills, hangs], ids=lambda function: function.__name__)
def test_without_a_policy_map_raises_at_the_bad_call_and_others_continue(function: Any) -> None:
    with Executor(2, deadline=DEADLINE) as pool:
        list(pool.map(fails, [0] * 8))
        results = pool.map(function, range(6))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises((WorkerDiedError, DeadlineExceededError), match=rf"{function.__name__}\(3\)"):
            next(results)

        assert pool.submit(fails, 5).result(20) == 5


def test_a_call_that_hangs_is_reported_with_its_stack() -> None:
    with Executor(1, deadline=DEADLINE) as pool:
        pool.submit(fails, 0).result(20)
        error = pool.submit(hangs, 3).exception(20)

    assert isinstance(error, DeadlineExceededError)
    assert len(error.deaths) == 1
    for part in ("hangs(3) took longer than its deadline", f"hangs() at {__file__}", "hint: "):
        assert part in str(error)


def test_a_call_in_a_chunk_that_kills_or_hangs_is_named_itself() -> None:
    with Executor(1, deadline=DEADLINE) as pool:
        pool.submit(fails, 0).result(20)
        for function in (kills, hangs):
            with pytest.raises(
                (WorkerDiedError, DeadlineExceededError), match=rf"^{function.__name__}\(3\) "
            ):
                list(pool.map(function, range(6), chunksize=6))
        assert {death.what for death in pool.deaths} == {"kills(3)", "hangs(3)"}


# ---- limits ----


@pytest.mark.parametrize("function", [fails, kills], ids=lambda function: function.__name__)
def test_one_fault_more_than_the_limit_breaks_the_pool_and_every_future(function: Any) -> None:
    with Executor(2, faults=FaultPolicy("skip", limit=1)) as pool:
        futures = [pool.submit(function, number) for number in [*range(12), 3, 3]]
        errors = [future.exception(20) for future in futures]

        broken = [number for number, error in enumerate(errors) if isinstance(error, TooManyFaultsError)]
        assert len(broken) >= 2
        assert sum(isinstance(error, (LookupError, WorkerDiedError)) for error in errors) == 1
        with pytest.raises(TooManyFaultsError):
            pool.submit(fails, 1)


def is_open(path: Path) -> bool:
    links = Path("/proc/self/fd")
    return any(os.path.realpath(link) == str(path) for link in links.iterdir())


@pytest.mark.parametrize("way", ["map", "submit"])
def test_a_pool_that_broke_closes_its_quarantine_file_and_goes_with_its_exception(
    tmp_path: Path, way: str
) -> None:
    path = tmp_path / "bad.jsonl"
    break_by = {
        "map": lambda pool: list(pool.map(fails, [3] * 200, buffersize=4)),
        "submit": lambda pool: [pool.submit(fails, 3) for _ in itertools.count()],
    }
    gc.disable()
    try:
        with Executor(2, faults=FaultPolicy("skip", limit=1, quarantine=path)) as pool:
            assert is_open(path)
            with pytest.raises(TooManyFaultsError) as caught:
                break_by[way](pool)
        report = pool.report()
        assert not is_open(path)
        assert (report.failed, report.skipped, report.pending) == (1, 1, 0)
        broken = weakref.ref(pool._pool)
        del pool, caught
        # What its frames keep is gone with the exception, without the garbage collector.
        assert eventually(lambda: broken() is None)
    finally:
        gc.enable()


def test_a_call_that_fails_cancels_the_others_of_its_chunk_and_the_report_adds_up() -> None:
    """A chunk has one future, so nobody gets the results of its other calls."""
    with Executor(1, faults=FaultPolicy("skip", by_type={LookupError: "raise"})) as pool:
        with pytest.raises(LookupError):
            list(pool.map(fails, range(5), chunksize=5))
        assert list(pool.map(fails, [0, 1], chunksize=2)) == [0, 1]
        report = pool.report()
    assert (report.submitted, report.returned, report.failed, report.cancelled) == (7, 2, 1, 4)


def test_replace_by_type_needs_what_stands_in_the_place_of_results() -> None:
    with pytest.raises(InvalidArgumentError, match="replacement="):
        Executor(1, faults=FaultPolicy("skip", by_type={KeyError: "replace"}))


def test_a_rule_for_a_class_of_errors_overrides_the_policy() -> None:
    policy = FaultPolicy("skip", by_type={"WorkerDiedError": "raise"})
    with Executor(2, faults=policy) as pool:
        assert placed(pool.map(fails, range(12)))
        with pytest.raises(WorkerDiedError, match=r"kills\(3\)"):
            list(pool.map(kills, range(12)))


# ---- events ----


def test_every_decision_is_an_event() -> None:
    events: list[Event] = []
    with Executor(1, faults=SKIP, deadline=DEADLINE, on_event=events.append) as pool:
        for function in (fails, kills, hangs):
            assert placed(pool.map(function, range(5)), 5)

    names = [event.name for event in events]
    assert (names.count("sample_skipped"), names.count("worker_died")) == (3, 4)
    skipped = [event.text for event in events if event.name == "sample_skipped"]
    for text, name in zip(skipped, ("fails", "kills", "hangs"), strict=True):
        assert f"call {name}(3) failed" in text


def test_an_on_event_that_fails_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest keeps log records, and with them the frames of the exception.
    monkeypatch.setattr(logging.getLogger("feedline"), "propagate", False)

    def fail(event: Event) -> None:
        raise LookupError(event.name)

    with Executor(1, faults=SKIP, on_event=fail) as pool:
        assert placed(pool.map(kills, range(12)))


def waits(gate: Path) -> str:
    assert eventually(gate.exists, 30)
    return gate.name


def test_a_call_that_stalls_is_reported_once_with_its_stack_and_has_its_result(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    events: list[Event] = []

    def record(event: Event) -> None:
        events.append(event)
        if event.name == "worker_stalled":
            # Long enough that a second report would come.
            threading.Timer(0.3, gate.touch).start()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Executor(1, stall=0.1, on_event=record) as pool:
            assert pool.submit(waits, gate).result(20) == "gate"
            assert pool.deaths == []

    reported = [str(one.message) for one in caught if one.category is WorkerStalledWarning]
    assert reported == [event.text for event in events if event.name == "worker_stalled"]
    (text,) = reported
    for part in ("worker 0", "in waits(", "no progress", "waits() at"):
        assert part in text


# ---- workers that are renewed ----


def number_and_pid(number: int) -> tuple[int, int]:
    return number, os.getpid()


def test_workers_are_renewed_after_their_maximum_of_calls_and_no_result_is_lost() -> None:
    events: list[Event] = []
    made: list[tuple[int, int]] = []
    with Executor(2, max_samples_per_worker=20, on_event=events.append) as pool:

        def make_more() -> bool:
            made.extend(pool.map(number_and_pid, range(len(made), len(made) + 50)))
            return any(event.name == "worker_renewed" for event in events)

        assert eventually(make_more)
        assert pool.deaths == []
    assert [number for number, _ in made] == list(range(len(made)))
    assert len({pid for _, pid in made}) > 2


# ---- locks that were held when the workers were forked ----


def test_workers_forked_with_a_held_lock_are_restarted_from_a_fresh_interpreter(tmp_path: Path) -> None:
    (tmp_path / "locked.py").write_text(
        textwrap.dedent(
            """
            import threading
            LOCK = threading.Lock()
            def locked(number):
                with LOCK:
                    return number
            """
        )
    )
    program = """
    import warnings
    warnings.simplefilter("ignore")
    sys.path.insert(0, arguments[0])
    import locked
    is_held, may_end = threading.Event(), threading.Event()
    def hold():
        with locked.LOCK:
            is_held.set()
            may_end.wait()
    threading.Thread(target=hold).start()
    is_held.wait()
    events = []
    with fl.Executor(2, stall=0.4, on_event=events.append) as pool:
        results = list(pool.map(locked.locked, range(20)))
        deaths = len(pool.deaths)
    may_end.set()
    say([results, deaths, [event.text for event in events if event.name == "zygote_restarted"]])
    """

    results, deaths, reported = answer(program, tmp_path)

    assert (results, deaths) == (list(range(20)), 0)
    (text,) = reported
    for part in ("waiting for a lock", "locked() at", "fresh interpreter"):
        assert part in text
