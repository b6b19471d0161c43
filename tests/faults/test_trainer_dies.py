"""However the trainer ends, no process is left; loaders that share a trainer do not disturb one another."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from feedline.torch import DataLoader

from faults.remains import children, eventually, has_ended, zygote_of
from faults.sets import Drawn, expected, is_same, iterate, pid_of, seeded
from faults.trainers import Trainer, Trainers

pytestmark = pytest.mark.timeout(300)

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}

# Four workers in mid-epoch: one sleeps, one computes, one is stopped, one is idle.
TRAINER = """
import warnings
warnings.simplefilter("ignore")
import torch
from feedline.torch import DataLoader

class Busy(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index == 4:
            time.sleep(1000)
        while index == 5:
            pass
        return torch.full((3000,), index)

loader = DataLoader(Busy(), batch_size=1, num_workers=4, prefetch_factor=2, persistent_workers=True)
running = iter(loader)
batch = [next(running) for _ in range(4)]
workers = running._workers
def stage(worker):
    activity = running._worker_pool.activity(worker)
    return activity and activity.stage
while [stage(worker) for worker in range(4)] != ["fetching", "fetching", "waiting", "waiting"]:
    time.sleep(0.001)
while None in (pids := [worker.pid for worker in workers]):
    time.sleep(0.001)
os.kill(pids[2], signal.SIGSTOP)
zygote = int(Path(f"/proc/{pids[0]}/status").read_text().split("PPid:")[1].split()[0])
say([zygote, *pids])
"""


def names() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "feedline" in path.name}


def all_end_with(trainer: Trainer, end: signal.Signals | None) -> tuple[int, str]:
    """Waits until a trainer has ended, by a signal or an exit; all of its processes must end soon after."""
    before = names()
    pids = trainer.first_answer()
    assert len(pids) == 5
    if end is not None:
        os.kill(trainer.pid, end)
    code = trainer.wait()
    gone = eventually(lambda: all(has_ended(pid) for pid in pids))
    assert gone, [pid for pid in pids if not has_ended(pid)]
    assert names() <= before
    return code, trainer.errors


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise ZeroDivisionError", 1, "ZeroDivisionError"),
        ("sys.exit(3)", 3, ""),
        ("os._exit(4)", 4, ""),
        ("os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_workers_end_when_the_trainer_exits_in_mid_epoch(
    trainers: Trainers, ending: str, code: int, said: str
) -> None:
    ended, errors = all_end_with(trainers.start(TRAINER + ending), None)

    assert ended == code
    assert said in errors
    assert said or not errors


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_the_trainer_is_killed_in_mid_epoch(trainers: Trainers, end: signal.Signals) -> None:
    # The trainer waits for a batch that never comes.
    code, errors = all_end_with(trainers.start(TRAINER + "next(running)"), end)

    assert code == -end
    assert ("KeyboardInterrupt" in errors) == (end == signal.SIGINT)


def test_workers_of_a_fresh_interpreter_end_when_the_trainer_is_killed(
    trainers: Trainers,
) -> None:
    program = TRAINER.replace("persistent_workers=True", "multiprocessing_context='spawn'")

    code, _ = all_end_with(trainers.start(program + "next(running)"), signal.SIGKILL)

    assert code == -signal.SIGKILL


def test_a_zygote_prints_nothing_if_the_trainer_is_gone_before_its_report(trainers: Trainers) -> None:
    program = """
    import socket
    from types import SimpleNamespace
    from feedline._workers.zygote import _run_and_exit, _ZygoteProcess
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    _run_and_exit(lambda: _ZygoteProcess(theirs, SimpleNamespace(worker_count=1), os.getppid()).run())
    """
    trainer = trainers.start(program)

    assert (trainer.wait(), trainer.errors) == (0, "")


def test_trainers_that_end_while_their_workers_start_leave_no_traceback(trainers: Trainers) -> None:
    program = """
    import torch, warnings
    from feedline.torch import DataLoader
    warnings.simplefilter("ignore")
    # Every descendant holds the write end of the pipe until it ends.
    alive, held = os.pipe()
    for number in range(30):
        child = os.fork()
        if child == 0:
            running = iter(DataLoader(torch.arange(40), num_workers=3))
            for _ in range(number % 3):
                next(running)
            if number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        os.waitpid(child, 0)
    os.close(held)
    say(len(os.read(alive, 1)))
    """
    trainer = trainers.start(program)

    assert (trainer.wait(), trainer.errors) == (0, "")
    assert trainer.first_answer() == 0


# ---- several loaders in one trainer ----


def test_two_loaders_are_iterated_at_the_same_time(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    loaders = [DataLoader(torch.arange(100), batch_size=10, num_workers=2) for _ in range(2)]
    say([[one.tolist(), other.tolist()] for one, other in zip(*loaders)])
    """

    tens = [list(range(first, first + 10)) for first in range(0, 100, 10)]
    assert trainers.answer(program, seconds=200) == [[ten, ten] for ten in tens]


@pytest.mark.parametrize("first", [0, 1])
def test_either_of_two_running_loaders_can_be_closed_first(trainers: Trainers, first: int) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    first = int(arguments[0])
    loaders = [DataLoader(torch.arange(100), num_workers=2) for _ in range(2)]
    running = [iter(loader) for loader in loaders]
    taken = [next(iterator) for iterator in running]
    running[first]._shutdown_workers()
    say(1 + len(list(running[1 - first])))
    """

    assert trainers.answer(program, first, seconds=200) == 100


def test_a_loader_is_closed_while_a_forked_child_of_the_trainer_lives(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    running = iter(DataLoader(torch.arange(100), num_workers=2))
    next(running)
    # The child ends when this process does.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.close(1)
        os.close(2)
        os.read(read, 1)
        os._exit(0)
    running._shutdown_workers()
    say("closed")
    """

    assert trainers.answer(program, seconds=200) == "closed"


def test_a_loader_made_in_a_thread_is_used_after_the_thread_has_ended() -> None:
    right = expected(Drawn, **TWO)[0]
    made: list[Any] = []

    def make() -> None:
        iterator = iterate(DataLoader(Drawn(), generator=seeded(1), **TWO))
        made.extend([iterator, next(iterator)])

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    iterator, first = made
    pids = [pid_of(iterator, worker) for worker in range(2)]

    assert is_same([first, *iterator], right)
    assert eventually(lambda: all(has_ended(pid) for pid in pids))


def test_two_threads_can_each_iterate_a_loader(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    taken = [[], []]
    def take(mine):
        for _ in range(3):
            mine.extend(int(batch) for batch in DataLoader(torch.arange(50), num_workers=2))
    threads = [threading.Thread(target=take, args=(mine,), daemon=True) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(taken)
    """

    assert trainers.answer(program, seconds=200) == [list(range(50)) * 3] * 2


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_that_drops_its_inherited_loader_does_no_harm(trainers: Trainers, leave: str) -> None:
    program = f"""
    import gc, torch
    from feedline.torch import DataLoader
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 60
        def __getitem__(self, index):
            return torch.full((5000,), index)
    loader = DataLoader(Large(), num_workers=2)
    running = iter(loader)
    batch = next(running)
    while None in (pids := [worker.pid for worker in running._workers]):
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        right = bool((batch == 0).all())
        batch.fill_(0)
        del batch, running, loader
        gc.collect()
        own = [int(item[0, 0]) for item in DataLoader(Large(), num_workers=1)]
        if not right or own != list(range(60)):
            os._exit(9)
        {leave}
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kept = [batch, *running]
    say([code, pids == [worker.pid for worker in running._workers],
         all(bool((item == number).all()) for number, item in enumerate(kept)), len(kept)])
    """

    assert trainers.answer(program, seconds=200) == [0, True, True, 60]


def test_workers_see_neither_the_trainers_signal_handlers_nor_its_ctrl_c(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return index, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    signal.signal(signal.SIGTERM, lambda *_: None)
    running = iter(DataLoader(Slow(), num_workers=2))
    taken = [next(running)]
    while None in (pids := [worker.pid for worker in running._workers]):
        time.sleep(0.001)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    taken += running
    say([[int(index), bool(default)] for index, default in taken])
    """

    assert trainers.answer(program, seconds=200) == [[index, True] for index in range(8)]


def test_the_zygote_is_the_only_child_of_the_trainer() -> None:
    loader = DataLoader(Drawn(), **TWO)
    before = children(os.getpid())
    iterator = iterate(loader)
    pids = [pid_of(iterator, worker) for worker in range(2)]

    (zygote,) = children(os.getpid()) - before
    assert {zygote_of(pid) for pid in pids} == {zygote}
    assert children(zygote) == set(pids)
