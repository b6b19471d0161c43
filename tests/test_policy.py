"""Fault policies: refused settings, their meaning, and how the ledger applies them."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import _native, errors
from feedline.events import notify
from feedline.faults import ANOTHER, hint_for, symptom


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"action": "ignore"}, "ignore"),
        ({"action": None}, "None"),
        ({"retry": -1}, "-1"),
        ({"retry": True}, "True"),
        ({"retry": 1.5}, "1.5"),
        ({"retry": "2"}, "2"),
        ({"limit": 1.0}, "1.0"),
        ({"limit": -1}, "-1"),
        ({"limit": float("nan")}, "nan"),
        ({"limit": "few"}, "few"),
        ({"window": 0}, "0"),
        ({"backoff": -0.1}, "-0.1"),
        ({"backoff": fl.Backoff(factor=0.5)}, "0.5"),
        ({"backoff": "long"}, "long"),
        ({"fill": "yes"}, "yes"),
        ({"patience": -1.0}, "-1.0"),
        ({"patience": float("inf")}, "inf"),
        ({"by_type": {OSError: "ignore"}}, "ignore"),
        ({"by_type": {OSError: {"retries": 2}}}, "retries"),
        ({"by_type": {int: 2}}, "int"),
        ({"by_type": [OSError]}, "OSError"),
        ({"quarantine": 5}, "5"),
        ({"quarantine": ""}, '""'),
        ({"replacement": 7}, "replacement=7"),
    ],
)
def test_an_invalid_policy_is_refused_with_its_value(arguments: dict[str, Any], value: str) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        fl.FaultPolicy(**arguments)

    assert "FaultPolicy" in str(caught.value)
    assert value in str(caught.value)


def test_an_error_for_an_argument_points_to_the_right_help() -> None:
    for refused, place in (
        (lambda: fl.FaultPolicy(limit="few"), "feedline.FaultPolicy"),  # type: ignore[arg-type]
        (lambda: fl.FaultPolicy(by_type={int: 2}), "feedline.FaultPolicy"),  # type: ignore[dict-item]
        (lambda: fl.Executor(faults="skip"), "feedline.FaultPolicy"),  # type: ignore[arg-type]
        (lambda: fl.Executor(1, attempts=0), "feedline.Executor"),
    ):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            refused()

        assert caught.value.hint == f"see help({place})"


def test_the_default_limit_is_half_and_none_is_no_limit() -> None:
    assert fl.FaultPolicy().limit == 0.5
    assert fl.FaultPolicy.parse("action=skip") == fl.FaultPolicy("skip")
    unlimited = fl.FaultPolicy("skip", limit=None)
    assert unlimited.text == "action=skip,limit=none"
    assert fl.FaultPolicy.parse(unlimited.text) == unlimited


def test_the_hint_to_skip_is_left_out_if_the_policy_skips() -> None:
    hint = (
        'report the code named above to its library; skip the sample with faults=FaultPolicy(action="skip")'
    )

    assert hint_for(fl.FaultPolicy(), hint) == hint
    assert hint_for(fl.FaultPolicy("skip"), hint) == "report the code named above to its library"
    for hint in (kind.hint for kind in _native.error_kinds()):
        assert (
            "skip" not in hint_for(fl.FaultPolicy("skip"), hint)
            or "FaultPolicy" not in hint
            or "use " in hint
        )


def test_a_policy_is_the_same_as_text_and_after_being_pickled() -> None:
    policy = fl.FaultPolicy(
        "skip", retry=2, limit=0.01, window=50, backoff=fl.Backoff(0.5, 3.0, 9.0, 0.0), fill=False,
        by_type={"OSError": {"retry": 5}, "CorruptImageError": {"action": "skip"}},
        quarantine="bad, or so.jsonl", patience=7.5,
    )  # fmt: skip

    assert fl.FaultPolicy.parse(policy.text) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)).replacement is ANOTHER
    assert fl.FaultPolicy.parse("retry=2,action=skip") == fl.FaultPolicy("skip", retry=2)
    assert fl.FaultPolicy.parse("") == fl.FaultPolicy()


def test_an_invalid_policy_text_is_refused_with_its_value() -> None:
    for text, shown in (
        ("retry=many", "many"), ("action=ignore", "ignore"), ("retries=2", "retries"), ("retry", "retry"),
    ):  # fmt: skip
        with pytest.raises(errors.InvalidArgumentError, match=shown):
            fl.FaultPolicy.parse(text)
    with pytest.raises(errors.InvalidArgumentError, match="5"):
        fl.FaultPolicy.parse(5)  # type: ignore[arg-type]


class StrangeError(ValueError):
    """An exception class of the user."""


def test_numpy_numbers_are_accepted_as_numbers() -> None:
    policy = fl.FaultPolicy("skip", retry=np.int64(2), limit=np.float64(0.25))  # type: ignore[arg-type]

    assert policy.text == "action=skip,retry=2,limit=0.25"


def test_an_exception_is_classified_by_its_classes_and_its_errno() -> None:
    names, number = symptom(FileNotFoundError(errno.ENOENT, "gone"))
    assert (names, number) == (["FileNotFoundError", "OSError", "Exception", "BaseException"], errno.ENOENT)

    names, number = symptom(StrangeError("odd"))
    assert (names[:2], number) == ([f"{__name__}.StrangeError", "ValueError"], None)

    names, _ = symptom(errors.CorruptImageError("truncated"))
    assert names[:2] == ["CorruptImageError", "FeedlineError"]


def test_the_most_specific_class_decides_and_names_need_no_module() -> None:
    policy = fl.FaultPolicy(
        "skip", retry=1, by_type={ValueError: 7, "StrangeError": "raise", FileNotFoundError: "replace"}
    )
    native = _native.Policy(policy.config())

    def ruled(error: Exception) -> tuple[str, int]:
        rule = native.rule(*symptom(error))
        return rule.action, rule.retry

    assert ruled(StrangeError()) == ("raise", 1)
    assert ruled(ValueError()) == ("skip", 7)
    assert ruled(FileNotFoundError()) == ("replace", 1)
    assert ruled(OSError()) == ("skip", 1)


def test_only_transient_errors_are_retried_unless_by_type_names_others() -> None:
    native = _native.Policy(fl.FaultPolicy(retry=2, by_type={KeyError: 1}).config())

    def waits(error: BaseException, attempt: int = 1) -> bool:
        return native.retry_after(*symptom(error), attempt, [7, 3]) is not None

    assert all(map(waits, (TimeoutError(), ConnectionResetError(), OSError(errno.EIO, "bad"), KeyError())))
    assert not any(map(waits, (ValueError(), FileNotFoundError(errno.ENOENT, "gone"), KeyboardInterrupt())))
    assert waits(TimeoutError(), 2)
    assert not waits(TimeoutError(), 3)
    assert native.retry_after(*symptom(TimeoutError()), 1, [7, 3]) == native.retry_after(
        *symptom(TimeoutError()), 1, [7, 3]
    )


class Judged:
    """Calls that fail, as an engine judges them and a ledger writes them down."""

    def __init__(self, policy: fl.FaultPolicy) -> None:
        self.rules = _native.Policy(policy.config())
        self.ledger = _native.Ledger(policy.config())
        self.engine = _native.CallEngine(self.rules)

    def good(self) -> None:
        batch = self.engine.plan(1)
        assert self.engine.order() == batch
        self.engine.add_result(batch, [])

    def fail(self, error: BaseException, index: Any) -> tuple[str, str | None]:
        """The verdict, and the text of an error if there were too many."""
        names, os_error = symptom(error)
        action = self.rules.wanted(names, os_error)
        batch = self.engine.plan(1)
        assert self.engine.order() == batch
        bad = _native.BadSample(0, 7, "substitute" if action == "replace" else action)
        record, *_ = self.engine.add_result(batch, [bad])
        assert isinstance(record, _native.Action.Record)
        assert record.fault == 7
        line = {"index": index, "kind": type(error).__name__, "stage": "worker", "message": str(error)}
        return record.verdict.name, self.ledger.record(names, os_error, json.dumps(line), record.verdict)


def test_a_ledger_counts_the_verdicts_of_the_engine_and_issues_events() -> None:
    judged = Judged(fl.FaultPolicy("skip", limit=2, by_type={KeyError: "replace"}))
    ledger = judged.ledger
    ledger.epoch_started(0, 10)
    for _ in range(4):
        judged.good()

    assert judged.fail(StrangeError("odd"), 4) == ("skip", None)
    assert judged.fail(KeyboardInterrupt(), 3) == ("fail", None)
    assert judged.fail(KeyError("k"), 5) == ("substitute", None)
    verdict, message = judged.fail(KeyError("k"), ("a", 1))

    assert verdict == "too many"
    assert message is not None
    assert message.startswith("3 faults are more than the limit of 2")
    ledger.delivered(8, 0.5)
    ledger.epoch_abandoned()
    report = fl.Report._parse(ledger.report_json(), ledger.report_text())
    assert (report.delivered, report.skipped, report.replaced, report.pending) == (8, 1, 1, 0)
    names = [event.name for event in ledger.take_events()]
    assert names == [
        "epoch_started", "sample_skipped", "call_failed", "sample_replaced", "run_stopped", "epoch_abandoned",
    ]  # fmt: skip
    assert not ledger.has_events


def test_an_epoch_that_does_not_add_up_is_a_bug() -> None:
    ledger = _native.Ledger("")
    ledger.epoch_started(0, 10)
    ledger.delivered(9, 0.0)

    with pytest.raises(errors.InternalError, match="9 samples were delivered"):
        ledger.epoch_ended(0)


def test_deaths_and_slow_samples_are_in_the_report() -> None:
    ledger = _native.Ledger("skip")
    ledger.event("worker_died", json.dumps({"worker": 3, "cause": "out of memory", "text": "worker 3 died"}))
    for number in range(100):
        ledger.slow(str(number), float(number), number % 4, "worker")
    report = fl.Report._parse(ledger.report_json(), ledger.report_text())

    assert report.workers_lost == {"out of memory": 1}
    assert report.deaths == ("worker 3 died",)
    assert [slow.index for slow in report.slowest] == list(range(99, 89, -1))
    assert json.loads(report.to_json())["slowest"][0] == {
        "index": 99, "seconds": 99.0, "worker": 3, "stage": "worker",
    }  # fmt: skip
    assert "worker 3 died" in str(report)


def test_events_are_logged_and_a_callback_that_raises_does_not_break_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    judged = Judged(fl.FaultPolicy("skip"))
    ledger = judged.ledger
    ledger.epoch_started(0, 3)
    judged.fail(StrangeError("odd"), 1)
    seen: list[fl.Event] = []

    def callback(event: fl.Event) -> None:
        seen.append(event)
        raise RuntimeError("no")

    with caplog.at_level(logging.INFO, "feedline"):
        notify(ledger.take_events(), callback)

    assert [(event.name, event.level) for event in seen] == [
        ("epoch_started", "info"), ("sample_skipped", "warning"),
    ]  # fmt: skip
    assert seen[1].details["index"] == 1
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "WARNING", "ERROR"]


def test_a_breaker_opens_probes_closes_and_gives_up() -> None:
    breaker = _native.Breaker(10.0)
    assert isinstance(breaker.may_try(0.0), _native.SourceAccess.Go)
    assert breaker.failed(False, 1.0) == ["opened"]
    access = breaker.may_try(1.0)
    assert isinstance(access, _native.SourceAccess.Wait)
    assert access.seconds == 0.5
    assert isinstance(breaker.may_try(1.5), _native.SourceAccess.Probe)
    assert breaker.state == "half open"
    assert breaker.worked(1.6) == ["closed"]
    breaker.failed(False, 2.0)
    now = 2.0
    while breaker.state != "given up":
        access = breaker.may_try(now)
        if isinstance(access, _native.SourceAccess.Wait):
            now += access.seconds
        else:
            assert isinstance(access, _native.SourceAccess.Probe)
            breaker.failed(False, now)
    assert 12.0 <= now < 18.0
    assert isinstance(breaker.may_try(now), _native.SourceAccess.GiveUp)


WRITER = """
import json, sys
from feedline import _native
from feedline._native import SourceAccess
ledger = _native.Ledger("skip,quarantine=" + sys.argv[1])
engine = _native.CallEngine(_native.Policy("skip,limit=none"))
engine.plan(1)
(record, *_) = engine.add_result(engine.order(), [_native.BadSample(0, 0, "skip")])
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    line = {"index": number, "kind": "ValueError", "message": "x" * 5000}
    ledger.record(["ValueError", "Exception"], None, json.dumps(line), record.verdict)
    print(number, flush=True)
"""


def test_two_processes_share_a_quarantine_file_and_one_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bad.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    with (
        subprocess.Popen([*command, "0", "100"], stdout=subprocess.PIPE, text=True) as steady,
        subprocess.Popen([*command, "1000", "1000000"], stdout=subprocess.PIPE, text=True) as killed,
    ):
        assert killed.stdout is not None
        said = [int(killed.stdout.readline()) for _ in range(50)]
        os.kill(killed.pid, signal.SIGKILL)
        said += [int(line) for line in killed.stdout.read().splitlines()]
        steady.communicate()

    found = _native.excluded(path)

    assert set(range(100)) | set(said) <= set(found)
    assert len(set(found)) == len(found) <= 100 + len(said) + 1


def test_an_invalid_quarantine_file_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"index": [1, "b"], "kind": "A"}\n\n{"index": 5, "ki')
    assert _native.excluded(tmp_path) == [[1, "b"]]

    (tmp_path / "a.jsonl").write_text('{"index": 1, "kind": "A"}\nhello\n')
    with pytest.raises(errors.InvalidArgumentError, match="line 2 is not a fault"):
        _native.excluded(tmp_path)
    with pytest.raises(errors.InvalidArgumentError, match="no such file"):
        _native.excluded(tmp_path / "none")


def test_a_quarantine_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="/proc/none"):
        _native.Ledger("skip,quarantine=/proc/none/bad.jsonl")
