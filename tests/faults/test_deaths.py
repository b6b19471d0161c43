"""Workers die of any cause at any time: every sample still comes once, in order, bit for bit."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feedline._torch.supervised import WithWorkers
from feedline.errors import TooManyDeathsError, WorkerDiedError, WorkerDiedWarning
from feedline.torch import DataLoader
from torch.utils.data import default_collate

from faults.remains import eventually, has_ended, zygote_of
from faults.sets import (
    SIGNALS,
    WAYS,
    Drawn,
    Listed,
    Once,
    Streamed,
    die,
    expected,
    is_idle,
    is_same,
    iterate,
    pid_of,
    seeded,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}


def warned(run: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return run(), caught


def how(way: str) -> str:
    return f"exited with code {way.split()[1]}" if way.startswith("exit") else way


class DiesCollating:
    """Collates as torch does, but dies at the batch with one index."""

    def __init__(self, once: Once) -> None:
        self.once = once

    def __call__(self, samples: list[Any]) -> Any:
        for sample in samples:
            self.once(sample["index"])
        return default_collate(samples)


# ---- from inside ----


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_while_fetching_is_replaced_and_the_warning_names_the_sample(
    tmp_path: Path, way: str
) -> None:
    loader = DataLoader(
        Drawn(hook=Once(tmp_path / "died", way, 22)), generator=seeded(1), shuffle=False, **TWO
    )
    batches, caught = warned(lambda: list(loader))

    assert is_same(batches, expected(Drawn, shuffle=False, **TWO)[0])
    (death,) = loader.deaths
    # Sample 22 is the third of batch 5, which is worker 1's.
    assert (death.worker, death.stage, death.index, death.batch_offset, death.batch) == (
        1,
        "fetching",
        22,
        2,
        5,
    )
    assert (death.signal, death.exit_code) == (
        (None, int(way[-1])) if way.startswith("exit") else (way, None)
    )
    (warning,) = caught
    assert warning.category is WorkerDiedWarning
    assert warning.filename == __file__
    for part in ("worker 1", f"pid {death.pid}", how(way), "sample 22", "batch 5"):
        assert part in str(warning.message)


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_while_collating_is_replaced(tmp_path: Path, way: str) -> None:
    collate = DiesCollating(Once(tmp_path / "died", way, 13))
    loader = DataLoader(Drawn(), generator=seeded(1), shuffle=True, collate_fn=collate, **TWO)
    batches, caught = warned(lambda: list(loader))

    assert is_same(batches, expected(Drawn, shuffle=True, **TWO)[0])
    (death,) = loader.deaths
    assert death.stage == "collating"
    assert death.batch is not None
    assert 13 in batches[death.batch]["index"]
    for part in (f"worker {death.worker}", f"pid {death.pid}", how(way), f"batch {death.batch}"):
        assert part in str(caught[0].message)


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_while_starting_is_replaced(tmp_path: Path, way: str) -> None:
    once = Once(tmp_path / "died", way, 1)
    loader = DataLoader(Drawn(), generator=seeded(1), shuffle=False, worker_init_fn=once, **TWO)
    batches, caught = warned(lambda: list(loader))

    assert is_same(batches, expected(Drawn, shuffle=False, **TWO)[0])
    (death,) = loader.deaths
    assert (death.worker, death.stage) == (1, "starting")
    for part in ("worker 1", f"pid {death.pid}", how(way), "starting"):
        assert part in str(caught[0].message)


# ---- from outside ----


@pytest.mark.parametrize("way", SIGNALS)
def test_a_worker_that_is_killed_while_it_is_idle_is_replaced(way: str) -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), shuffle=False, **TWO)
    iterator = iterate(loader)
    assert eventually(lambda: is_idle(iterator, 0))
    pid = pid_of(iterator, 0)
    os.kill(pid, signal.Signals[way])

    batches = list(iterator)

    assert is_same(batches, expected(Drawn, shuffle=False, **TWO)[0])
    (death,) = loader.deaths
    assert (death.worker, death.pid, death.signal, death.stage) == (0, pid, way, "waiting")


class Killer:
    """Kills workers of an iterator repeatedly, at random moments."""

    def __init__(self, iterator: Any, draws: random.Random, kills: int) -> None:
        self.iterator = iterator
        self.draws = draws
        self.kills = kills
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_error: object) -> None:
        self.is_over.set()
        self.thread.join()

    def _run(self) -> None:
        for kill in range(self.kills):
            if self.is_over.wait(self.draws.uniform(0, 0.1)):
                return
            worker = self.draws.choice(self.iterator._workers)
            # The first kill may hit a worker that starts. Three such kills in a row would end the run.
            while kill > 0 and not worker.is_ready():
                if self.is_over.wait(0.001):
                    return
            pid = worker.pid
            try:
                if pid is not None:
                    os.kill(pid, signal.Signals[self.draws.choice(SIGNALS)])
            except ProcessLookupError:
                continue


def take_while_killing(loader: DataLoader[Any], draws: random.Random, kills: int) -> list[Any]:
    iterator = iterate(loader)
    with Killer(iterator, draws, kills):
        return list(iterator)


# The seed of each is printed as its parameter.
@pytest.mark.parametrize(("workers", "epochs", "seed"), [(1, 8, 4711), (2, 8, 4712), (8, 4, 4713)])
def test_epochs_are_the_same_with_workers_killed_at_random_moments(
    workers: int, epochs: int, seed: int
) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    right = expected(Drawn, seed=seed, epochs=epochs, **settings)
    draws = random.Random(seed)
    loader = DataLoader(Drawn(), generator=seeded(seed), max_deaths=10_000, **settings)
    for epoch in range(epochs):
        # Three deaths at the same batch would make that batch the cause.
        batches = take_while_killing(loader, draws, kills=2)
        assert is_same(batches, right[epoch]), f"epoch {epoch} of seed {seed}"
    assert loader.deaths


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Drawn, {"batch_size": None}),
        (Listed, {"batch_size": 4}),
        (Streamed, {"batch_size": 4}),
        (Streamed, {"batch_size": 5, "drop_last": True}),
        (Streamed, {"batch_size": None}),
        (Drawn, {"batch_size": 4, "shuffle": True, "persistent_workers": True}),
        (Streamed, {"batch_size": 4, "persistent_workers": True}),
        (Drawn, {"batch_size": 4, "drop_last": True, "prefetch_factor": 1}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else ",".join(value),
)
def test_every_kind_of_loader_gives_the_same_batches_with_and_without_deaths(
    kind: type[Any], settings: dict[str, Any]
) -> None:
    settings = {**settings, "num_workers": 2}
    right = expected(kind, seed=9, epochs=4, **settings)
    draws = random.Random(99)
    loader = DataLoader(kind(), generator=seeded(9), max_deaths=10_000, **settings)
    for epoch in range(4):
        iterator = iterate(loader)
        batches = []
        # One death is certain, the others are random.
        os.kill(pid_of(iterator, epoch % 2), signal.SIGKILL)
        with Killer(iterator, draws, 2):
            batches = list(iterator)
        assert is_same(batches, right[epoch]), f"epoch {epoch}"
    assert len(loader.deaths) >= 4


class OtherBits:
    """Gives NumPy's global generator another bit generator, once in each worker."""

    def __init__(self, kind: type[np.random.BitGenerator]) -> None:
        self.kind = kind

    def __call__(self, number: int) -> None:
        if type(np.random.mtrand.get_bit_generator()) is not self.kind:
            np.random.mtrand.set_bit_generator(self.kind(number % 2))


class DrawnFromOtherBits(Drawn):
    """Like `Drawn`, but the data set chooses the bit generator at its first sample."""

    def __getitem__(self, index: int) -> Any:
        OtherBits(np.random.PCG64DXSM)(7)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937])
def test_numpys_other_bit_generators_continue_where_a_dead_worker_stopped(
    tmp_path: Path, kind: type[np.random.BitGenerator]
) -> None:
    settings = {**TWO, "worker_init_fn": OtherBits(kind)}
    loader = DataLoader(Drawn(hook=Once(tmp_path / "died", "SIGKILL", 22)), generator=seeded(1), **settings)

    assert is_same(list(loader), expected(Drawn, **settings)[0])
    assert len(loader.deaths) == 1


def test_a_replacement_uses_the_bit_generator_that_the_data_set_chose(tmp_path: Path) -> None:
    dataset = DrawnFromOtherBits(hook=Once(tmp_path / "died", "SIGKILL", 22))
    loader = DataLoader(dataset, generator=seeded(1), **TWO)

    assert is_same(list(loader), expected(DrawnFromOtherBits, **TWO)[0])
    assert len(loader.deaths) == 1


def use_the_system(_worker: int) -> None:
    """Makes `random` draw from the system, which has no state."""
    system = random.SystemRandom()
    random._inst = system
    for name in ("random", "getstate", "setstate", "seed"):
        setattr(random, name, getattr(system, name))


def test_a_generator_without_a_state_is_accepted(tmp_path: Path) -> None:
    dataset = Drawn(hook=Once(tmp_path / "died", "SIGKILL", 22))
    loader = DataLoader(dataset, generator=seeded(1), worker_init_fn=use_the_system, **TWO)
    right = expected(Drawn, **TWO)[0]

    for batch, other in zip(loader, right, strict=True):
        assert is_same(batch["array"], other["array"])
    assert len(loader.deaths) == 1


def test_without_order_every_batch_comes_once_despite_deaths() -> None:
    right = {int(batch["index"][0]): batch for batch in expected(Drawn, shuffle=False, **TWO)[0]}
    loader = DataLoader(Drawn(), generator=seeded(1), in_order=False, max_deaths=100, **TWO)
    batches = take_while_killing(loader, random.Random(5), kills=4)
    indices = [batch["index"].tolist() for batch in batches]
    assert sorted(indices) == [right[first]["index"].tolist() for first in sorted(right)]


def test_workers_of_a_fresh_interpreter_are_replaced_too() -> None:
    right = expected(Drawn, seed=3, epochs=3, **TWO)
    loader = DataLoader(Drawn(), generator=seeded(3), multiprocessing_context="spawn", **TWO)
    for epoch in range(3):
        iterator = iterate(loader)
        os.kill(pid_of(iterator, 1), signal.SIGSEGV)
        assert is_same(list(iterator), right[epoch]), f"epoch {epoch}"

    assert len(loader.deaths) == 3


def test_a_batch_of_a_dead_worker_keeps_its_content_in_the_trainer() -> None:
    right = expected(Drawn, shuffle=False, **TWO)[0]
    loader = DataLoader(Drawn(), generator=seeded(1), **TWO)
    iterator = iterate(loader)
    first = next(iterator)

    os.kill(pid_of(iterator, 0), signal.SIGKILL)
    rest = list(iterator)
    del iterator, loader

    assert is_same([first, *rest], right)


def test_all_workers_are_replaced_if_they_die_at_once() -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), batch_size=4, num_workers=8)
    iterator = iterate(loader)
    for worker in range(8):
        os.kill(pid_of(iterator, worker), signal.SIGKILL)
    batches = list(iterator)
    assert is_same(batches, expected(Drawn, batch_size=4, num_workers=8)[0])
    assert {death.worker for death in loader.deaths} == set(range(8))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_run_continues_when_the_zygote_is_killed(context: str) -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), multiprocessing_context=context, **TWO)
    iterator = iterate(loader)
    batches = [next(iterator)]
    workers = [pid_of(iterator, worker) for worker in range(2)]
    zygote = zygote_of(workers[0])
    assert zygote != os.getpid()

    os.kill(zygote, signal.SIGKILL)
    # Otherwise the workers could finish this epoch before the zygote's death ends them.
    assert eventually(lambda: all(has_ended(worker) for worker in workers))
    batches += list(iterator)

    assert is_same(batches, expected(Drawn, **TWO)[0])
    assert {death.worker for death in loader.deaths} == {0, 1}
    assert all("zygote" in str(death) for death in loader.deaths)


def test_a_zygote_of_persistent_workers_may_be_killed_in_every_epoch() -> None:
    settings: dict[str, Any] = {**TWO, "persistent_workers": True}
    right = expected(Drawn, epochs=4, **settings)
    loader = DataLoader(Drawn(), generator=seeded(1), **settings)
    for epoch in range(4):
        iterator = iterate(loader)
        # Workers of the last zygote are replaced when batches are requested, so this one is alive.
        first = next(iterator)
        zygote = zygote_of(pid_of(iterator, 0))
        os.kill(zygote, signal.SIGKILL)
        assert is_same([first, *iterator], right[epoch]), f"epoch {epoch}"
        # The zygote may take longer to die than the epoch lasts.
        assert eventually(functools.partial(has_ended, zygote))


# ---- how much is allowed ----


class AlwaysDies:
    """Dies at one index, each time."""

    def __init__(self, index: int, way: str = "SIGSEGV") -> None:
        self.index = index
        self.way = way

    def __call__(self, index: int) -> None:
        if index == self.index:
            die(self.way)


def test_a_sample_that_always_kills_ends_the_run_and_is_named() -> None:
    loader = DataLoader(Drawn(hook=AlwaysDies(17)), generator=seeded(1), **TWO)
    iterator = iterate(loader)
    batches: list[Any] = []
    # Errors are raised only by next(), after all earlier batches.
    with pytest.raises(WorkerDiedError) as caught:
        batches.extend(iter(iterator.__next__, None))

    assert is_same(batches, expected(Drawn, **TWO)[0][: len(batches)])
    # Two deaths, and one in a trial.
    assert len(loader.deaths) == 3
    assert caught.value.deaths == tuple(loader.deaths)
    assert [death.index for death in loader.deaths] == [17, 17, 17]
    assert str(caught.value).count("sample 17") == 1
    assert "SIGSEGV" in str(caught.value)
    assert "die() at" in str(caught.value)
    assert "hint" in str(caught.value)


def test_batches_before_the_one_that_always_kills_are_all_delivered() -> None:
    loader = DataLoader(Drawn(hook=AlwaysDies(17)), generator=seeded(1), **TWO)
    indices: list[int] = []

    def take() -> None:
        for batch in loader:
            indices.extend(batch["index"].tolist())

    with pytest.raises(WorkerDiedError):
        take()

    assert indices == list(range(16))


@pytest.mark.parametrize("most", [0, 1])
def test_max_deaths_are_allowed_and_one_more_ends_the_run(most: int) -> None:
    loader = DataLoader(Drawn(hook=AlwaysDies(5)), max_deaths=most, **TWO)
    with pytest.raises(TooManyDeathsError):
        list(loader)
    assert len(loader.deaths) == most + 1


def is_another(iterator: WithWorkers, pid: int) -> bool:
    return iterator._workers[0].is_ready() and pid_of(iterator, 0) != pid


def is_past(moment: float) -> bool:
    return time.monotonic() > moment


def test_deaths_before_the_window_do_not_count() -> None:
    one: dict[str, Any] = {"batch_size": 1, "num_workers": 1}
    loader = DataLoader(Drawn(), generator=seeded(1), max_deaths=1, death_window=0.05, **one)
    iterator = iterate(loader)
    batches = []
    for _ in range(4):
        batches.append(next(iterator))
        pid = pid_of(iterator, 0)
        os.kill(pid, signal.SIGKILL)
        # A death counts from the moment at which it is noticed.
        assert eventually(functools.partial(is_another, iterator, pid))
        assert eventually(functools.partial(is_past, time.monotonic() + 0.06))
    batches += iterator

    assert is_same(batches, expected(Drawn, **one)[0])
    assert len(loader.deaths) == 4


def test_with_on_death_raise_the_first_death_ends_the_run(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=Once(tmp_path / "died", "SIGBUS", 9)), on_death="raise", **TWO)
    iterator = iterate(loader)
    with pytest.raises(WorkerDiedError, match=r"worker 0 .*SIGBUS.* sample 9, offset 1 of batch 2") as caught:
        list(iterator)
    assert f"pid {loader.deaths[0].pid}" in str(caught.value)
    assert len(loader.deaths) == 1
    with pytest.raises((StopIteration, RuntimeError)):
        next(iterator)


def test_a_loader_can_start_a_new_run_after_a_failed_one(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=Once(tmp_path / "died", "SIGKILL", 9)), on_death="raise", **TWO)
    with pytest.raises(WorkerDiedError):
        list(loader)

    assert len(list(loader)) == 12


def test_if_warnings_are_errors_next_raises_the_warning_and_no_sample_is_lost(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=Once(tmp_path / "died", "SIGKILL", 22)), generator=seeded(1), **TWO)
    iterator = iterate(loader)
    batches: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(WorkerDiedWarning, match="sample 22"):
            batches.extend(iter(iterator.__next__, None))
    batches.extend(iterator)

    assert is_same(batches, expected(Drawn, **TWO)[0])


def test_a_death_between_two_batches_raises_only_in_next() -> None:
    loader = DataLoader(Drawn(), on_death="raise", **TWO)
    iterator = iterate(loader)
    next(iterator)
    for worker in range(2):
        os.kill(pid_of(iterator, worker), signal.SIGKILL)

    with pytest.raises(WorkerDiedError):
        list(iterator)
