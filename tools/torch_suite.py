"""Runs torch's own tests of its DataLoader with Feedline's class instead, and reports what did not pass.

    python tools/torch_suite.py PATH/TO/test_dataloader.py [-k TEXT] [--loader torch|feedline]

The file is `test/test_dataloader.py` of PyTorch's sources. It is not part of torch's wheel and must never be
copied into this repository. It needs `expecttest`: install that in its own folder and add it to PYTHONPATH.

The tests run one after the other in a child process. A test that takes too long or crashes its process is
reported as such, and a new process continues with the next.

Exit codes: 0 all tests passed, 1 some did not, 2 the tests could not be run.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fnmatch
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The tests that are left out, and why. Only tests of torch's internals, and tests that torch's own class does
# not pass either: every other failure is a bug of Feedline. Written for the file of torch 2.6, run with torch
# 2.15.
DEAD_WORKER = "It expects torch's message for a dead worker, and fails when it finds that message."
FROZEN = "torch's own class fails it: WorkerInfo is now a frozen dataclass, which raises another error."
LEFT_OUT: dict[str, str] = {
    "TestDataLoader.test_segfault": DEAD_WORKER,
    "TestDataLoaderPersistentWorkers.test_segfault": DEAD_WORKER,
    "TestDataLoader.test_get_worker_info": FROZEN,
    "TestDataLoaderPersistentWorkers.test_get_worker_info": FROZEN,
    "TestOutOfOrderDataLoader.test_out_of_order_index_ds": (
        "torch's own class fails it: which worker loads which batch was changed after the file was written."
    ),
    **dict.fromkeys(
        [
            "TestDataLoader.test_default_collate_shared_tensor",
            "TestDataLoaderPersistentWorkers.test_default_collate_shared_tensor",
        ],
        "It creates no loader, and replaces torch's private _utils.worker._worker_info.",
    ),
    **dict.fromkeys(
        [
            "TestDataLoader.test_numpy_gen_state",
            "TestDataLoaderPersistentWorkers.test_numpy_gen_state",
        ],
        "It creates no loader, and calls torch's private _utils.worker._generate_state.",
    ),
}

# Replaces torch's class in every Python process that a test starts, also by spawn and as `python -c`: as
# sitecustomize it runs before anything is imported. It waits for the end of the import of torch, because
# Feedline's class needs all of torch, and is derived from torch's class.
STAND_IN = """
import importlib, importlib.abc, importlib.machinery, sys

class StandIn(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in ("torch", "feedline.torch"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            if name == "torch":
                # If a module of Feedline imports torch, it is not complete yet and cannot be imported here.
                # feedline.torch itself is handled below, and a worker creates no loaders.
                ours = [part for name, part in sys.modules.items() if name.split(".")[0] == "feedline"]
                if not any(part.__spec__._initializing for part in ours):
                    importlib.import_module("feedline.torch")
                return
            import torch.utils.data
            if hasattr(module, "DataLoader"):
                torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = module.DataLoader
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, StandIn())
"""

# Seconds that a process may take to print its stacks.
STACK_SECONDS = 5.0


@dataclass
class Outcome:
    kind: str
    seconds: float
    text: str = ""


@dataclass
class Run:
    """The outcome of each test, by its name."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> dict[str, Outcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome.kind in kinds}


class CannotRunError(Exception):
    pass


# ---- in the process that runs the tests ----


class Reporter(unittest.TestResult):
    """Sends each event to the parent process, as a line of JSON."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe
        self.started = time.monotonic()

    def send(self, **event: Any) -> None:
        os.write(self.pipe, json.dumps(event).encode() + b"\n")

    def send_end(self, test: Any, kind: str, text: str = "") -> None:
        self.send(end=name_of(test), kind=kind, text=text, seconds=time.monotonic() - self.started)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.started = time.monotonic()
        self.send(start=name_of(test))

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.send_end(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.send_end(test, "failed", self.errors[-1][1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.send_end(test, "failed", self.failures[-1][1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.send_end(test, "failed", (self.failures + self.errors)[-1][1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.send_end(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.send_end(test, "passed", "failed, as the file expects")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self.send_end(test, "failed", "passed, although the file expects it to fail")


def name_of(test: Any) -> str:
    """Class and method, without the module. The set-up of a class is not a test, but is reported too."""
    name = str(test.id())
    return name.partition(".")[2] if isinstance(test, unittest.TestCase) else name


def tests_in(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def serve(pipe: int, path: Path, request: dict[str, Any]) -> None:
    """Runs the tests of a file and reports to the pipe."""
    # Programs that a test starts must not hold the pipe open.
    os.set_inheritable(pipe, False)
    faulthandler.enable()
    reporter = Reporter(pipe)
    sys.path.insert(0, str(path.parent))
    try:
        if request["loader"] == "feedline":
            loader = importlib.import_module("feedline.torch").DataLoader
        module = importlib.import_module(path.stem)
    except (ImportError, AttributeError) as error:
        reporter.send(trouble=f"{type(error).__name__}: {error}")
        return
    if request["loader"] == "feedline" and vars(module)["DataLoader"] is not loader:
        reporter.send(trouble=f"{path.name} sees {vars(module)['DataLoader']!r}, not Feedline's class")
        return
    tests = {
        name_of(test): test
        for test in tests_in(unittest.defaultTestLoader.loadTestsFromModule(module))
        if is_chosen(name_of(test), request["patterns"])
    }
    reporter.send(plan=list(tests))
    done = {*request["done"], *request["left_out"]}
    unittest.TestSuite(test for name, test in tests.items() if name not in done).run(reporter)


def is_chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, f"*{pattern}*") for pattern in patterns)


# ---- in the parent process ----


class Watch:
    """One process of tests, from its start to its end."""

    def __init__(self, path: Path, request: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self.pipe, theirs = os.pipe()
        command = [sys.executable, __file__, str(path), "--serve", str(theirs), json.dumps(request)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        # The pipe alone is not enough: forked workers that outlive the process keep it open.
        self.end = os.pidfd_open(self.process.pid)
        self.rest = b""

    def next_events(self, seconds: float) -> list[dict[str, Any]] | None:
        """The next events; None if the process has ended. Raises TimeoutError if there are none in time."""
        ready, _, _ = select.select([self.pipe, self.end], [], [], max(seconds, 0.0))
        if not ready:
            raise TimeoutError
        if self.pipe not in ready:
            return None
        received = os.read(self.pipe, 1 << 20)
        if not received:
            self.process.wait()
            return None
        *lines, self.rest = (self.rest + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def stacks(self) -> str:
        """Makes the process print its stacks, which ends it, and returns its last output."""
        os.kill(self.process.pid, signal.SIGABRT)
        try:
            self.process.wait(STACK_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.last_output()

    def last_output(self) -> str:
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-60:])

    def close(self) -> int:
        """Ends the process and its descendants, and returns its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        os.close(self.pipe)
        os.close(self.end)
        return code


def watch_all(path: Path, request: dict[str, Any], environment: dict[str, str], seconds: float) -> Run:
    """Runs the tests, with as many processes as it takes."""
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        plan: list[str] | None = None
        while plan is None or not run.outcomes.keys() >= set(plan):
            known = len(run.outcomes)
            watch = Watch(path, request | {"done": list(run.outcomes)}, environment, Path(folder) / "log")
            try:
                plan, broken = watch_one(watch, run, request, seconds)
            finally:
                code = watch.close()
            if broken is not None:
                name, outcome = broken
                outcome.text = outcome.text or f"exit code {code}\n{watch.last_output()}"
                run.outcomes[name] = outcome
                show(name, outcome)
            elif plan is None:
                raise CannotRunError(f"exit code {code}\n{watch.last_output()}")
            elif not plan and not run.left_out:
                raise CannotRunError(f"no test has {' or '.join(request['patterns'])} in its name")
            elif len(run.outcomes) == known:
                # The process ran no test, so another process would not run the rest either.
                missing = [name for name in plan if name not in run.outcomes]
                run.outcomes.update((name, Outcome("failed", 0.0, "it was never run")) for name in missing)
    return run


def watch_one(
    watch: Watch, run: Run, request: dict[str, Any], seconds: float
) -> tuple[list[str] | None, tuple[str, Outcome] | None]:
    """The tests to run, and the test during which the process ended or hung."""
    plan: list[str] | None = None
    running: str | None = None
    started = time.monotonic()
    while True:
        try:
            events = watch.next_events(started + seconds - time.monotonic())
        except TimeoutError:
            if running is None:
                raise CannotRunError(f"no test started in {seconds:.0f} s\n{watch.stacks()}") from None
            hung = Outcome("hung", time.monotonic() - started, watch.stacks())
            return plan, (running, hung)
        if events is None:
            if running is None:
                return plan, None
            return plan, (running, Outcome("crashed", time.monotonic() - started))
        for event in events:
            if "trouble" in event:
                raise CannotRunError(event["trouble"])
            started = time.monotonic()
            if "plan" in event:
                run.left_out = [name for name in event["plan"] if name in request["left_out"]]
                plan = [name for name in event["plan"] if name not in request["left_out"]]
            elif "start" in event:
                running = event["start"]
            else:
                running = None
                outcome = Outcome(event["kind"], event["seconds"], event["text"])
                # A later subtest that passes does not change the failure of the test.
                if event["end"] not in run.of("failed"):
                    run.outcomes[event["end"]] = outcome
                show(event["end"], outcome)


def show(name: str, outcome: Outcome) -> None:
    print(f"{outcome.kind:8} {outcome.seconds:6.1f} s  {name}", file=sys.stderr, flush=True)


def print_summary(run: Run) -> None:
    for name, outcome in run.of("failed", "hung", "crashed").items():
        print(f"---- {outcome.kind}: {name} ({outcome.seconds:.1f} s)\n{outcome.text.rstrip()}\n")
    reasons: dict[str, list[str]] = {}
    for name, outcome in run.of("skipped").items():
        reasons.setdefault(f"skipped by the file: {outcome.text}", []).append(name)
    for name in run.left_out:
        reasons.setdefault(f"left out: {LEFT_OUT[name]}", []).append(name)
    for reason, names in reasons.items():
        print(reason)
        print("".join(f"    {name}\n" for name in names), end="")
    counts = {kind: len(run.of(kind)) for kind in ("passed", "failed", "hung", "crashed", "skipped")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()) + f", {len(run.left_out)} left out")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="test_dataloader.py of PyTorch's sources")
    parser.add_argument(
        "-k", dest="patterns", action="append", default=[], metavar="TEXT", help="part of a test's name"
    )
    parser.add_argument("--loader", choices=["feedline", "torch"], default="feedline")
    parser.add_argument("--all", action="store_true", help="also the tests that are left out")
    parser.add_argument(
        "--slow", action="store_true", help="also what torch calls slow; give it --seconds 900"
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="how long one test may take (%(default)s)"
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    path: Path = options.path.resolve()
    if options.serve:
        serve(int(options.serve[0]), path, json.loads(options.serve[1]))
        return 0
    # Exit normally on SIGTERM, so that the child process, which has its own session, is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if not path.is_file():
        parser.error(f"there is no file {options.path}")
    # Without this, torch's tests refuse to run from another script.
    environment = os.environ | {"PYTORCH_DISABLE_RUNNING_SCRIPT_CHK": "1"}
    if options.slow:
        environment["PYTORCH_TEST_WITH_SLOW"] = "1"
    request = {
        "loader": options.loader,
        "patterns": options.patterns,
        "left_out": [] if options.all else list(LEFT_OUT),
    }
    with tempfile.TemporaryDirectory() as folder:
        if options.loader == "feedline":
            (Path(folder) / "sitecustomize.py").write_text(STAND_IN)
            others = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join([folder, *([others] if others else [])])
        try:
            run = watch_all(path, request, environment, options.seconds)
        except CannotRunError as trouble:
            print(f"the tests could not be run: {trouble}", file=sys.stderr)
            return 2
    print_summary(run)
    return 1 if run.of("failed", "hung", "crashed") or not run.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
