"""How a pool names its calls in exceptions, its report, the quarantine file and warnings."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from faults.remains import eventually, nothing_left
from faults.sets import die
from feedline import CallReport, Executor, FailedCall, FaultPolicy, Skipped
from feedline._call import Function, shown
from feedline.errors import InvalidArgumentError, TooManyFaultsError, WorkerDiedError, WorkerDiedWarning
from programs import answer

pytestmark = pytest.mark.timeout(300)

SKIP = FaultPolicy("skip")
RAISE = FaultPolicy("raise")


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


def parse(text: str, *, strict: bool = True) -> Any:
    return json.loads(text, strict=strict)


def returns(value: Any) -> Any:
    return value


def fails(*arguments: Any, **keywords: Any) -> None:
    raise LookupError("there is none")


def kills(_value: object) -> None:
    die("SIGKILL")


def wait_for(path: Path) -> None:
    assert eventually(path.exists, 30)


class TwoArgumentsError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.one = one
        self.lock = threading.Lock()


class GuardedError(Exception):
    """Refuses new attributes."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def raise_two_arguments() -> None:
    raise TwoArgumentsError(1, 2)


def raise_guarded() -> None:
    raise GuardedError("do not touch")


def raise_a_local_class() -> None:
    class HiddenError(Exception):
        pass

    raise HiddenError("not to be found by name")


def leave() -> None:
    raise SystemExit(3)


def open_a_missing_file(path: Path) -> None:
    path.read_text()


# ---- exceptions ----


@pytest.mark.parametrize("faults", [None, RAISE, SKIP], ids=["none", "raise", "skip"])
def test_an_exception_keeps_its_type_and_attributes_and_names_its_call(
    faults: FaultPolicy | None,
) -> None:
    path = Path(__file__).with_name("none")
    with Executor(1, faults=faults) as pool:
        error = pool.submit(parse, "{", strict=False).exception(20)
        assert type(error) is json.JSONDecodeError
        assert (error.doc, error.pos, error.lineno) == ("{", 1, 1)
        call = error.call  # type: ignore[attr-defined]
        assert call == FailedCall("parse", "'{', strict=False", 0, 1)
        assert error.__notes__ == ["feedline: in parse('{', strict=False), worker 0"]
        assert "in parse" in str(error.__cause__), "the traceback of the worker"

        missing = pool.submit(open_a_missing_file, path).exception(20)
        assert type(missing) is FileNotFoundError
        assert missing.filename == str(path)

        # It cannot be unpickled, so it is rebuilt without its constructor.
        error = pool.submit(raise_two_arguments).exception(20)
        assert type(error) is TwoArgumentsError
        assert (error.args, error.one) == (("1 and 2",), 1)
        assert error.__notes__[0] == "feedline: without lock, which cannot be pickled"

        assert type(pool.submit(leave).exception(20)) is SystemExit
        assert type(pool.submit(raise_guarded).exception(20)) is GuardedError


@pytest.mark.parametrize("faults", [None, SKIP], ids=["none", "skip"])
def test_an_exception_that_cannot_be_sent_arrives_with_its_name_message_and_traceback(
    faults: FaultPolicy | None,
) -> None:
    with Executor(1, faults=faults) as pool:
        error = pool.submit(raise_a_local_class).exception(20)

    assert type(error) is RuntimeError
    assert str(error) == "HiddenError: not to be found by name"
    assert "HiddenError could not be sent from the worker" in error.__notes__[0]
    assert "so a RuntimeError is raised instead" in error.__notes__[0]
    assert "raise HiddenError" in str(error.__cause__)


def test_an_exception_of_a_program_that_spawns_its_workers_keeps_its_type() -> None:
    program = """
    class Missing(Exception):
        def __init__(self, one, other):
            super().__init__(f"{one} and {other}")
    def fail():
        raise Missing(1, 2)
    with fl.Executor(1, "spawn") as pool:
        error = pool.submit(fail).exception()
    say([type(error) is Missing, str(error)])
    """

    assert answer(program) == [True, "1 and 2"]


def test_the_exception_of_a_chunk_names_the_call_that_raised() -> None:
    with Executor(1) as pool, pytest.raises(json.JSONDecodeError) as raised:
        list(pool.map(parse, ["1", "2", "{", "4"], chunksize=4))

    assert raised.value.call.arguments == "'{'"  # type: ignore[attr-defined]
    report = pool.report()
    assert (report.submitted, report.failed, report.cancelled, report.returned) == (4, 1, 3, 0)


def test_attempts_count_deaths_and_retries(tmp_path: Path) -> None:
    def stumble(folder: Path) -> None:
        for number in range(5):
            try:
                (folder / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            if number == 0:
                die("SIGKILL")
            raise ConnectionError(number)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerDiedWarning)
        with Executor(1, faults=FaultPolicy(retry=2, backoff=0.001)) as pool:
            error = pool.submit(stumble, tmp_path).exception(20)

    assert type(error) is ConnectionError
    assert error.call.attempts == 4  # type: ignore[attr-defined]
    assert "after 4 attempts" in error.__notes__[-1]


# ---- names of calls ----


class Hostile:
    """All of its methods raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Huge(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "x" * 10_000_000


def test_the_description_of_a_call_is_short_for_any_arguments() -> None:
    for argument, said in (
        (10**5000, "<int of 16610 bits>"),
        (Hostile(), "<Hostile>"),
        (Huge("a"), "'a'"),
        ([1] * 1_000_000, "[1, 1, 1, 1, ... 999996 more]"),
        ({"a": {"b": [1, [2]]}}, "{'a': {'b': [...]}}"),
        ((1,), "(1,)"),
        (b"\xff" * 100, repr(b"\xff" * 19)[:77] + "..."),
        (np.zeros((3, 4), np.float32), "<ndarray (3, 4) float32>"),
        (np.int64(7), "7"),
        (Path("/data/a.jpg"), "PosixPath('/data/a.jpg')"),
        (None, "None"),
    ):
        assert shown(argument) == said
    named = Function(functools.partial(parse, strict=False), b"")
    assert named.describe(("x" * 100,), {}) == f"parse('{'x' * 76}..., strict=False)"
    assert len(named.describe(tuple("x" * 100 for _ in range(1000)), {})) < 400


def test_calls_with_arguments_that_cannot_be_shown_fail_alone(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    arguments = [10**5000, Huge("a"), [1] * 100_000, endless, float("nan"), "\udcff"]
    with Executor(1, faults=FaultPolicy("skip", limit=100, quarantine=tmp_path / "bad.jsonl")) as pool:
        for argument in arguments:
            assert isinstance(pool.submit(fails, argument, key=argument).exception(20), LookupError)
        assert pool.submit(returns, 5).result(20) == 5

        assert pool.report().quarantined == len(arguments)
    assert (tmp_path / "bad.jsonl").stat().st_size < 20_000


# ---- the report ----


def adds_up(report: CallReport) -> bool:
    parts = (
        report.returned,
        report.failed,
        report.skipped,
        report.excluded,
        report.cancelled,
        report.pending,
    )
    return sum(parts) == report.submitted


def test_a_call_that_fails_is_counted_and_named_as_failed() -> None:
    with Executor(1) as pool:
        pool.submit(fails, 1, key="a").exception(20)
        pool.submit(returns, 1).result(20)
        report = pool.report()

    assert (report.submitted, report.returned, report.failed) == (2, 1, 1)
    assert adds_up(report)
    (fault,) = report.faults
    assert (fault.index, fault.kind, fault.reason) == ("fails(1, key='a')", "LookupError", "there is none")
    assert fault.call == {"function": f"{__name__}.fails", "arguments": [1], "keywords": {"key": "a"}}
    lines = str(report).splitlines()
    assert lines[0] == "1 call returned + 1 failed + 0 skipped = 2 submitted"
    assert lines[1] == "  call fails(1, key='a') failed: LookupError: there is none"
    assert json.loads(report.to_json())["failed"] == 1
    for word in ("epoch", "batch", "sample", "delivered"):
        assert word not in str(report)


def test_calls_that_wait_or_are_cancelled_are_counted(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Executor(1) as pool:
        futures = [pool.submit(wait_for, gate) for _ in range(8)]
        report = pool.report()
        assert (report.submitted, report.pending) == (8, 8)
        assert futures[7].cancel()
        gate.touch()
        for future in futures[:7]:
            future.result(20)
        assert eventually(lambda: pool.report().pending == 0)
        report = pool.report()
        assert (report.returned, report.cancelled) == (7, 1)
        gate.unlink()
        held = [pool.submit(wait_for, gate) for _ in range(8)]
        assert eventually(held[0].running)
        pool.shutdown(wait=False, cancel_futures=True)
        gate.touch()
    report = pool.report()
    assert report.cancelled > 1
    assert report.pending == 0
    assert adds_up(report)


def test_a_pool_that_breaks_counts_all_its_calls() -> None:
    with Executor(1, faults=FaultPolicy("skip", limit=1)) as pool:
        with pytest.raises(TooManyFaultsError):
            list(pool.map(parse, ["1", "{", "2", "{", "3", "{", *"456789"], chunksize=3))
        assert eventually(lambda: pool.report().pending == 0)
        report = pool.report()

    assert (report.submitted, report.skipped, report.failed) == (12, 1, 1)
    assert adds_up(report)


def test_map_has_a_report_of_its_calls_at_any_time() -> None:
    results = feedline.map(parse, ["1", "{", "3"], workers=1, faults=SKIP)
    assert results.report().submitted == 0

    assert [result for result in results if not isinstance(result, Skipped)] == [1, 3]

    report = results.report()
    assert (report.submitted, report.returned, report.skipped) == (3, 2, 1)
    assert results.deaths == []


def test_map_that_is_closed_makes_no_more_calls() -> None:
    with feedline.map(returns, iter(int, 1), workers=1) as results:
        assert next(results) == 0
    assert list(results) == []
    assert adds_up(results.report())
    assert results.report().pending == 0


# ---- quarantine ----


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("action", ["raise", "skip"])
def test_the_quarantine_file_has_function_and_arguments(tmp_path: Path, action: Any) -> None:
    path = tmp_path / "bad.jsonl"
    with Executor(1, faults=FaultPolicy(action, limit=100, quarantine=path)) as pool:
        for arguments in ((1, 2.5, None, [True, "a"]), (Path("/a"), (np.int64(3),)), ({1: 2},), (b"a",)):
            pool.submit(fails, *arguments).exception(20)
        pool.submit(functools.partial(fails, 1, key=2), 3).exception(20)

    name = f"{__name__}.fails"
    assert [line["call"] for line in lines(path)] == [
        {"function": name, "arguments": [1, 2.5, None, [True, "a"]]},
        {"function": name, "arguments": ["/a", [3]]},
        {"function": name},
        {"function": name},
        {"function": name, "arguments": [1, 3], "keywords": {"key": 2}},
    ]


def test_calls_of_a_quarantine_file_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    texts = ["1", "{", "0.1", "[", "3"]
    policy = FaultPolicy("skip", limit=100, quarantine=path)
    with Executor(1, faults=policy) as pool:
        first = list(pool.map(parse, texts))
        pool.submit(fails, 0.1 + 0.2, key=1e-7).exception(20)

    for chunksize in (1, 2, 5):
        with Executor(1, exclude=path) as pool:
            second = list(pool.map(parse, texts, chunksize=chunksize))
            assert [result for result in second if result] == [1, 0.1, 3]
            assert [result.call for result in second if isinstance(result, Skipped)] == [
                "parse('{')",
                "parse('[')",
            ]
            assert [isinstance(one, Skipped) for one in second] == [isinstance(one, Skipped) for one in first]
            assert repr(second[1]) == "<skipped: parse('{') is excluded>"
            report = pool.report()
            assert (report.submitted, report.excluded, report.returned) == (5, 2, 3)
            assert adds_up(report)
            with pytest.raises(CancelledError):
                pool.submit(fails, 0.1 + 0.2, key=1e-7).result(20)
            # Another function with the same arguments, and the same function with other arguments.
            assert pool.submit(returns, "{").result(20) == "{"
            assert pool.submit(parse, "{", strict=False).exception(20) is not None
    assert list(map(bool, feedline.map(parse, ["1", "{"], workers=1, exclude=path))) == [True, False]


def test_calls_that_cannot_be_recognised_in_a_quarantine_file_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with Executor(1, faults=FaultPolicy("skip", limit=100, quarantine=path)) as pool:
        pool.submit(fails, b"bytes").exception(20)
        pool.submit(fails, "x" * 100_000).exception(20)
        pool.submit(fails, "text").exception(20)

    with pytest.warns(UserWarning, match="2 of 3 calls cannot be recognised") as caught:
        Executor(1, exclude=path)
    assert caught[0].filename == __file__
    path.write_text('{"index": 7, "kind": "CorruptImageError"}\n')
    for wrong, said in ((path, "names samples of a loader"), (tmp_path / "none", "none"), (5, "got 5")):
        with pytest.raises(InvalidArgumentError, match=said):
            Executor(1, exclude=wrong)  # type: ignore[arg-type]


# ---- a call that kills ----


def test_a_call_that_kills_each_time_is_one_warning_at_the_users_line_and_one_error() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Executor(1) as pool:
            line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
            error = pool.submit(kills, "a").exception(20)

    (warning,) = caught
    assert warning.category is WorkerDiedWarning
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert "the call is made again" in str(warning.message)
    assert isinstance(error, WorkerDiedError)
    assert len(error.deaths) == 3
    assert error.call == FailedCall("kills", "'a'", 0, 3)  # type: ignore[attr-defined]
    text = str(error)
    assert text.startswith("kills('a') killed its worker 3 times:\n")
    assert text.count("was killed by SIGKILL") == 3
    assert text.count("kills('a')") == 1


def test_a_warning_of_map_points_at_the_loop_of_the_user() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = list(feedline.map(kills, [1], workers=1, faults=SKIP))

    assert isinstance(results[0], Skipped)
    deaths = [warning for warning in caught if warning.category is WorkerDiedWarning]
    assert [warning.filename for warning in deaths] == [__file__]


# ---- refusals ----


def test_a_wrong_argument_is_refused_at_once_with_its_value_and_a_hint_for_this_front() -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Executor(0), "workers must be a whole number from 1 to 4096, got 0"),
        (lambda: Executor(-3), "got -3"),
        (lambda: Executor(max_workers=0), "got 0"),
        (lambda: Executor("many"), 'got "many"'),  # type: ignore[arg-type]
        (lambda: Executor(2.5), "got 2.5"),  # type: ignore[arg-type]
        (lambda: Executor(2, attempts=0), "got 0"),
        (lambda: Executor(2, max_deaths=-1), "got -1"),
        (lambda: Executor(2, max_deaths="lots"), 'got "lots"'),
        (lambda: Executor(2, death_window=0), "got 0"),
        (lambda: Executor(2, memory="much"), "much"),
        (lambda: Executor(2, deadline=0), "got 0"),
        (lambda: Executor(2, deadline="soon"), "soon"),
        (lambda: Executor(2, "cloning"), "cloning"),
        (lambda: Executor(2, initializer=5), "initializer must be callable, got 5"),  # type: ignore[arg-type]
        (lambda: Executor(2, max_workers=3), "workers=2 and max_workers=3"),
        (lambda: Executor(2, faults="skip"), "got 'skip'"),  # type: ignore[arg-type]
        (lambda: Executor(2, faults=FaultPolicy("replace")), "replacement="),
        (lambda: Executor(2, on_event=3), "got 3"),  # type: ignore[arg-type]
        (
            lambda: feedline.map(len),
            r"feedline.map needs the items to call len with: feedline.map\(len, items\)",
        ),
        (lambda: feedline.map(5, [1]), "must be a function, got 5"),  # type: ignore[arg-type]
        (lambda: feedline.map(len, 5), "cannot go over 5"),  # type: ignore[arg-type]
        (lambda: feedline.map(len, [], workers=0), "got 0"),
        (lambda: feedline.map(len, [], ahead=0), "ahead must be at least 1, got 0"),
        (lambda: feedline.map(len, [], chunksize="a"), "chunksize must be a whole number"),  # type: ignore[arg-type]
        (
            lambda: feedline.map(len, [], worker=2),
            "unexpected keyword argument 'worker'; did you mean workers?",
        ),
    ]
    with Executor(1) as pool:
        wrong += [
            (lambda: pool.submit(5), "must be a function, got 5"),  # type: ignore[arg-type]
            (lambda: pool.map(len), r"Executor.map needs the items to call len with"),
            (lambda: pool.map(len, 5), "cannot go over 5"),  # type: ignore[arg-type]
            (lambda: pool.map(len, [], chunksize=0), "chunksize must be at least 1, got 0"),
            (lambda: pool.map(len, [], chunksize=-1), "got -1"),
            (lambda: pool.map(len, [], buffersize=0), "buffersize must be at least 1, got 0"),
        ]
        for call, said in wrong:
            with pytest.raises((InvalidArgumentError, ValueError, TypeError), match=said) as refused:
                call()
            assert "feedline.Pipeline" not in str(refused.value)
        assert pool.workers == [], "nothing was started for them"
