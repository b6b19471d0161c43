"""Runs torch's own tests of its DataLoader with Feedline's class in its place, and says what did not pass.

    python tools/torch_suite.py PATH/TO/test_dataloader.py [-k TEXT] [--loader torch|feedline]

The file is `test/test_dataloader.py` of PyTorch's sources. It is no part of torch's wheel and must never be
copied into this repository. It needs `expecttest`: put it in a folder of its own and name that in PYTHONPATH.

The tests run one after the other in a process beside this one. A test that takes too long, or that takes its
process down, is reported as such, and a new process goes on with the next.

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

# What is not asked of Feedline, and why. Only tests of torch's insides, and tests that torch's own class does
# not pass either: whatever else fails is a fault of Feedline's. The file that was read for this is that of
# torch 2.6, and the torch that it judged is 2.15.
DEAD_WORKER = "It asks for torch's words for a dead worker, and counts it as a fault when they are found."
FROZEN = "torch's own class fails it: WorkerInfo is a frozen dataclass by now, with an error of another kind."
LEFT_OUT: dict[str, str] = {
    "TestDataLoader.test_segfault": DEAD_WORKER,
    "TestDataLoaderPersistentWorkers.test_segfault": DEAD_WORKER,
    "TestDataLoader.test_get_worker_info": FROZEN,
    "TestDataLoaderPersistentWorkers.test_get_worker_info": FROZEN,
    "TestOutOfOrderDataLoader.test_out_of_order_index_ds": (
        "torch's own class fails it: which worker makes which batch was changed after the file was written."
    ),
    **dict.fromkeys(
        [
            "TestDataLoader.test_default_collate_shared_tensor",
            "TestDataLoaderPersistentWorkers.test_default_collate_shared_tensor",
        ],
        "It makes no loader, and replaces torch's private _utils.worker._worker_info.",
    ),
    **dict.fromkeys(
        [
            "TestDataLoader.test_numpy_gen_state",
            "TestDataLoaderPersistentWorkers.test_numpy_gen_state",
        ],
        "It makes no loader, and calls torch's private _utils.worker._generate_state.",
    ),
}

# Put in the place of torch's class in every Python process that a test starts, also by spawn and as
# `python -c`: as sitecustomize it runs before anything is imported. Only the end of an import is waited for,
# because Feedline's class needs the whole of torch, and torch's class must still be there to be its base.
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
                # A part of Feedline that has asked for torch is not done itself: nothing can import it yet.
                # If that is feedline.torch it comes by below; if it is a worker, it makes no loaders.
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

# How long a process that was told to print its stacks may take for it.
LAST_WORDS_SECONDS = 5.0


@dataclass
class Outcome:
    kind: str
    seconds: float
    text: str = ""


@dataclass
class Run:
    """What became of each test, by its name."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> dict[str, Outcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome.kind in kinds}


class CannotRunError(Exception):
    pass


# ---- in the process of the tests ----


class Reporter(unittest.TestResult):
    """Tells the other process what happens, a line of JSON for each event."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe
        self.begun = time.monotonic()

    def tell(self, **event: Any) -> None:
        os.write(self.pipe, json.dumps(event).encode() + b"\n")

    def tell_end(self, test: Any, kind: str, text: str = "") -> None:
        self.tell(end=name_of(test), kind=kind, text=text, seconds=time.monotonic() - self.begun)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.begun = time.monotonic()
        self.tell(start=name_of(test))

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.tell_end(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.tell_end(test, "failed", self.errors[-1][1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.tell_end(test, "failed", self.failures[-1][1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.tell_end(test, "failed", (self.failures + self.errors)[-1][1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.tell_end(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.tell_end(test, "passed", "failed, as the file expects")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self.tell_end(test, "failed", "passed, although the file expects it to fail")


def name_of(test: Any) -> str:
    """Class and method, without the module. The set-up of a class is no test, but reports too."""
    name = str(test.id())
    return name.partition(".")[2] if isinstance(test, unittest.TestCase) else name


def tests_in(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def serve(pipe: int, path: Path, order: dict[str, Any]) -> None:
    """Runs the tests of a file and reports to the pipe."""
    # Programs that a test starts must not hold the pipe open.
    os.set_inheritable(pipe, False)
    faulthandler.enable()
    reporter = Reporter(pipe)
    sys.path.insert(0, str(path.parent))
    try:
        if order["loader"] == "feedline":
            loader = importlib.import_module("feedline.torch").DataLoader
        module = importlib.import_module(path.stem)
    except (ImportError, AttributeError) as error:
        reporter.tell(trouble=f"{type(error).__name__}: {error}")
        return
    if order["loader"] == "feedline" and vars(module)["DataLoader"] is not loader:
        reporter.tell(trouble=f"{path.name} sees {vars(module)['DataLoader']!r}, not Feedline's class")
        return
    tests = {
        name_of(test): test
        for test in tests_in(unittest.defaultTestLoader.loadTestsFromModule(module))
        if is_chosen(name_of(test), order["patterns"])
    }
    reporter.tell(plan=list(tests))
    done = {*order["done"], *order["left_out"]}
    unittest.TestSuite(test for name, test in tests.items() if name not in done).run(reporter)


def is_chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, f"*{pattern}*") for pattern in patterns)


# ---- in the process that watches ----


class Watch:
    """One process of tests, from its start to its end."""

    def __init__(self, path: Path, order: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self.pipe, theirs = os.pipe()
        command = [sys.executable, __file__, str(path), "--serve", str(theirs), json.dumps(order)]
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
        # The pipe alone would not do: forked workers that outlive the process hold it open.
        self.end = os.pidfd_open(self.process.pid)
        self.rest = b""

    def next_events(self, seconds: float) -> list[dict[str, Any]] | None:
        """What was reported; nothing if the process is gone. Raises TimeoutError when there was nothing."""
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
        """Has the process print its stacks, which ends it, and gives what it printed last."""
        os.kill(self.process.pid, signal.SIGABRT)
        try:
            self.process.wait(LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.last_words()

    def last_words(self) -> str:
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-60:])

    def close(self) -> int:
        """Ends the process with all that it started, and gives its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        os.close(self.pipe)
        os.close(self.end)
        return code


def watch_all(path: Path, order: dict[str, Any], environment: dict[str, str], seconds: float) -> Run:
    """Runs the tests, with as many processes as it takes."""
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        plan: list[str] | None = None
        while plan is None or not run.outcomes.keys() >= set(plan):
            known = len(run.outcomes)
            watch = Watch(path, order | {"done": list(run.outcomes)}, environment, Path(folder) / "log")
            try:
                plan, broken = watch_one(watch, run, order, seconds)
            finally:
                code = watch.close()
            if broken is not None:
                name, outcome = broken
                outcome.text = outcome.text or f"exit code {code}\n{watch.last_words()}"
                run.outcomes[name] = outcome
                show(name, outcome)
            elif plan is None:
                raise CannotRunError(f"exit code {code}\n{watch.last_words()}")
            elif not plan and not run.left_out:
                raise CannotRunError(f"no test has {' or '.join(order['patterns'])} in its name")
            elif len(run.outcomes) == known:
                # Neither run nor ended anything: for these, another process would do no better.
                missing = [name for name in plan if name not in run.outcomes]
                run.outcomes.update((name, Outcome("failed", 0.0, "it was never run")) for name in missing)
    return run


def watch_one(
    watch: Watch, run: Run, order: dict[str, Any], seconds: float
) -> tuple[list[str] | None, tuple[str, Outcome] | None]:
    """The tests to be run, and the test during which the process ended or hung."""
    plan: list[str] | None = None
    running: str | None = None
    begun = time.monotonic()
    while True:
        try:
            events = watch.next_events(begun + seconds - time.monotonic())
        except TimeoutError:
            if running is None:
                raise CannotRunError(f"no test was begun in {seconds:.0f} s\n{watch.stacks()}") from None
            hung = Outcome("hung", time.monotonic() - begun, watch.stacks())
            return plan, (running, hung)
        if events is None:
            if running is None:
                return plan, None
            return plan, (running, Outcome("crashed", time.monotonic() - begun))
        for event in events:
            if "trouble" in event:
                raise CannotRunError(event["trouble"])
            begun = time.monotonic()
            if "plan" in event:
                run.left_out = [name for name in event["plan"] if name in order["left_out"]]
                plan = [name for name in event["plan"] if name not in order["left_out"]]
            elif "start" in event:
                running = event["start"]
            else:
                running = None
                outcome = Outcome(event["kind"], event["seconds"], event["text"])
                # A failure of the test is not fixed by what its other parts say later.
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
    # So that the tests' process, which has a session of its own, is ended when this one is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if not path.is_file():
        parser.error(f"there is no file {options.path}")
    # torch's tests refuse to be loaded by any script but their own file.
    environment = os.environ | {"PYTORCH_DISABLE_RUNNING_SCRIPT_CHK": "1"}
    if options.slow:
        environment["PYTORCH_TEST_WITH_SLOW"] = "1"
    order = {
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
            run = watch_all(path, order, environment, options.seconds)
        except CannotRunError as trouble:
            print(f"the tests could not be run: {trouble}", file=sys.stderr)
            return 2
    print_summary(run)
    return 1 if run.of("failed", "hung", "crashed") or not run.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
