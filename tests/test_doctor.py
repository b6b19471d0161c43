"""What the machine allows, and the doctor: with real limits, on a running torch loader, on real errors."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
from feedline import errors
from pictures import encoded, photo, write
from programs import answer, start

QUOTA = Path("/sys/fs/cgroup/cpu")
TASKS = Path("/sys/fs/cgroup/pids")


def doctor(*arguments: str, limits: str = "") -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command line, in a shell that sets limits first."""
    command = f'{limits} exec "$0" -m feedline doctor --json "$@"'
    ran = subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def names(diagnosis: dict[str, Any]) -> dict[str, str]:
    return {finding["name"]: finding["severity"] for finding in diagnosis["findings"]}


@contextlib.contextmanager
def group(root: Path, settings: dict[str, str]) -> Iterator[Path]:
    """A real control group; skips the test if this machine does not allow one."""
    folder = root / f"feedline-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as refused:
        pytest.skip(f"no control group can be made here: {refused}")
    try:
        for name, value in settings.items():
            (folder / name).write_text(value)
        yield folder
    except OSError as refused:
        pytest.skip(f"the control group cannot be set up here: {refused}")
    finally:
        folder.rmdir()


def test_the_limits_of_this_process_are_read() -> None:
    allowed = fl.limits()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (allowed.open_files, allowed.open_files_hard) == (soft, hard)
    assert 1 <= allowed.processors <= len(os.sched_getaffinity(0))
    assert allowed.memory is None or allowed.memory > 0
    assert "processors" in str(allowed)
    assert "details" not in repr(allowed)
    assert json.loads(allowed.to_json())["details"]["processors"]["affinity"] == len(os.sched_getaffinity(0))
    assert "<table>" in allowed._repr_html_()


def test_the_affinity_of_a_process_counts() -> None:
    program = """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        say(fl.limits().processors)
    """

    assert answer(program) == 1


def test_a_cpu_quota_counts_on_every_front() -> None:
    with group(QUOTA, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "30000"}) as folder:
        program = """
            Path(arguments[0], "cgroup.procs").write_text(str(os.getpid()))
            import numpy as np
            native = fl.arrays({"x": np.arange(8)}).batch(2)
            with fl.Executor() as executor:
                executor.submit(abs, -1).result()
                workers = executor._pool.running
            mapped = native.map_batch(lambda batch: batch, threads=True).loader()
            said = [fl.limits().processors, native.loader().decided["threads"], workers, mapped.count]
            # Ended workers may still be in the group.
            Path(arguments[0]).parent.joinpath("cgroup.procs").write_text(str(os.getpid()))
            say(said)
        """
        try:
            assert answer(program, folder) == [1, 1, 1, 1]
        finally:
            wait_until_empty(folder)


def wait_until_empty(folder: Path) -> None:
    until = time.monotonic() + 60
    while (folder / "cgroup.procs").read_text().strip() and time.monotonic() < until:
        time.sleep(0.05)


def test_workers_have_the_hard_limit_of_open_files_and_an_event_says_so() -> None:
    program = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 1000))
        events = []
        with fl.Executor(1, on_event=lambda event: events.append((event.name, event.details))) as executor:
            limit = executor.submit(resource.getrlimit, resource.RLIMIT_NOFILE).result()
        say([limit, [details for name, details in events if name == "open_files_raised"]])
    """

    assert answer(program) == [[1000, 1000], [{"from": 200, "to": 1000}]]


def test_workers_of_torch_have_the_hard_limit_too() -> None:
    program = """
        import resource
        from feedline.torch import DataLoader
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 1000))
        events = []

        class Limits:
            def __len__(self):
                return 2
            def __getitem__(self, index):
                return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

        loader = DataLoader(Limits(), num_workers=1, on_event=lambda event: events.append(event.name))
        say([[int(batch) for batch in loader], events.count("open_files_raised")])
    """

    assert answer(program) == [[1000, 1000], 1]


def test_a_native_pipeline_tells_that_it_raised_the_limit() -> None:
    program = """
        import resource
        import numpy as np
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 1000))
        events = []
        loader = fl.arrays({"x": np.arange(4)}).batch(2).loader(on_event=events.append)
        list(loader)
        say([[event.details, event.level] for event in events if event.name == "open_files_raised"])
    """

    assert answer(program) == [[{"from": 200, "to": 1000}, "info"]]


def test_a_low_soft_limit_is_a_danger_with_the_command_that_fixes_it() -> None:
    code, found = doctor(limits="ulimit -S -n 256; ulimit -H -n 8192;")

    (low,) = (finding for finding in found["findings"] if finding["name"] == "soft_limit_of_open_files")
    assert (code, low["severity"], low["fix"]) == (1, "danger", "ulimit -n 8192")
    assert found["details"]["machine"]["open_files"]["limit"] == {"soft": 256, "hard": 8192}


def test_a_low_hard_limit_and_little_address_space_are_found() -> None:
    code, found = doctor(limits="ulimit -n 256; ulimit -v 8000000;")

    assert code == 1
    assert names(found)["few_open_files"] == "danger"
    assert names(found)["address_space"] == "warning"
    assert found["details"]["machine"]["memory"]["address_limit"] == 8000000 << 10


def test_a_pids_cgroup_with_few_processes_is_a_danger() -> None:
    with group(TASKS, {"pids.max": "20"}) as folder:
        code, found = doctor(limits=f"echo $$ > {folder}/cgroup.procs;")

        assert (code, names(found)["few_processes"]) == (1, "danger")
        assert found["details"]["machine"]["tasks"]["group"]["limit"] == 20
        wait_until_empty(folder)


def test_a_screen_is_enough() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "feedline", "doctor"], capture_output=True, text=True, timeout=100, check=False
    )

    assert ran.returncode in (0, 1), ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "this machine allows" in ran.stdout


def test_threads_and_the_start_method_of_this_process_are_known() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        found = fl.doctor()
    finally:
        release.set()
        thread.join()

    (forking,) = (finding for finding in found.findings if finding.name == "fork_with_threads")
    assert forking.severity == "warning"
    assert str(found) == repr(found) == found.text
    assert json.loads(found.to_json())["findings"][0] == found.findings[0].__dict__
    assert "fork stays locked" in found._repr_html_()


def test_the_sharing_strategy_of_torch_is_known() -> None:
    program = """
        import torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy("file_system")
        say([finding.name for finding in fl.doctor().findings])
    """

    assert "sharing_strategy" in answer(program)


def test_a_running_torch_loader_that_keeps_tensors_is_near_its_limit() -> None:
    program = """
        import resource
        import torch
        from torch.utils.data import DataLoader

        class Tensors:
            def __len__(self):
                return 100000
            def __getitem__(self, index):
                return torch.zeros(1000)

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (220, 220))
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
        kept = []
        batches = iter(DataLoader(Tensors(), batch_size=2, num_workers=2))
        while descriptors() < 200:
            kept.append(next(batches))
        say(len(kept))
        signal.sigwait([signal.SIGUSR1])
        # Tensors that are not received yet need descriptors too.
        kept.clear()
        del batches
    """
    with start(program) as trainer:
        try:
            assert trainer.stdout is not None
            assert json.loads(trainer.stdout.readline()) > 10
            code, found = doctor("--pid", str(trainer.pid))
            seen = fl.doctor(pid=trainer.pid)
        finally:
            trainer.send_signal(signal.SIGUSR1)
            trainer.communicate(timeout=100)

    assert code == 1
    near = found["findings"][0]
    assert (near["name"], near["severity"]) == ("near_a_limit", "danger")
    assert near["text"].startswith("fails first: open files, ")
    kinds = dict(found["details"]["process"]["descriptors"]["by_kind"])
    assert kinds["shared_memory"] > 100
    assert len(found["details"]["children"]) >= 2
    assert all(child["share_bytes"] > 0 for child in found["details"]["children"])
    assert seen.subject == "process"
    assert seen.is_dangerous


def test_a_process_that_does_not_exist_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="there is no process 4194999"):
        fl.doctor(pid=4194999)
    with pytest.raises(errors.InvalidArgumentError, match="both a subject"):
        fl.doctor("EMFILE", pid=1)


def test_a_data_set_is_measured(tmp_path: Path) -> None:
    write(tmp_path, {f"cat/{number}.jpg": encoded(photo(number, 64, 48)) for number in range(5)})

    found = fl.doctor(tmp_path)

    assert found.subject == "data"
    assert found.details["data"]["images"] == 5
    assert len(found.details["data"]["measured"]) == 5
    assert found.details["advice"]["batch_size"] >= 1
    assert "recommended" in found.text


def real_errors() -> Iterator[tuple[BaseException, str]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        os.read(read, 1)
    except OSError as error:
        yield error, "EAGAIN (11)"
    os.close(read)
    try:
        os.read(read, 1)
    except OSError as error:
        yield error, "EBADF (9)"
    os.close(write)
    for number, name in [
        (errno.EMFILE, "EMFILE (24)"),
        (errno.ENFILE, "ENFILE (23)"),
        (errno.ENOMEM, "ENOMEM (12)"),
        (errno.ENOSPC, "ENOSPC (28)"),
        (errno.ESTALE, "a network file system lost the file"),
        (errno.EPIPE, "the other process is gone"),
    ]:
        yield OSError(number, os.strerror(number)), name
    yield MemoryError(), "ENOMEM (12)"


def test_errors_of_the_system_are_explained_by_their_exceptions() -> None:
    for error, name in real_errors():
        found = fl.doctor(error)
        assert (found.subject, found.text.startswith(name)) == ("message", True), (error, found.text)
        assert not found.is_dangerous
        assert "<pre>" in found._repr_html_()
    assert "never means that open files are used up" in fl.doctor("EAGAIN").details["meaning"]


def test_a_real_shortage_of_descriptors_is_explained() -> None:
    program = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            held = [open("/dev/null") for _ in range(100)]
        except OSError as raised:
            error = raised
            held = []
        say(fl.doctor(error).details["name"])
    """

    assert answer(program) == "EMFILE (24): Too many open files"


def test_a_worker_of_torch_that_is_killed_is_explained() -> None:
    program = """
        from torch.utils.data import DataLoader

        class Killed:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                os.kill(os.getpid(), getattr(signal, arguments[0]))

        try:
            list(DataLoader(Killed(), num_workers=1))
        except RuntimeError as error:
            say(fl.doctor(error).details["name"])
    """

    assert answer(program, "SIGKILL") == "out of memory: killed by the kernel (SIGKILL, 137)"
    assert answer(program, "SIGBUS") == "a full /dev/shm (SIGBUS or ENOSPC)"
    assert answer(program, "SIGSEGV") == "a crash in C code (SIGSEGV, 139)"


def test_an_unknown_message_and_a_missing_path_are_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="is neither a path nor a message"):
        fl.doctor("no such thing")
    with pytest.raises(errors.InvalidSourceError, match="does not exist"):
        fl.doctor("data/nowhere")
