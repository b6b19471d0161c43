"""Functions that kill their worker, hang, or are killed: no other sample is lost and nothing leaks."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random as python_random
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline.errors import DeadlineExceededError, TooManyDeathsError, WorkerDiedError, WorkerDiedWarning
from filled import filled_batches

from faults.remains import eventually, has_ended, zygote_of
from faults.sets import WAYS, Once, die
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

SKIP = fl.FaultPolicy("skip")
COUNT = 30
# Long enough that a healthy sample on a busy machine is never late by chance.
DEADLINE = 2.5
KINDS = ["map", "map_batch", "both"]


def samples(count: int = COUNT) -> fl.Pipeline:
    """Samples that are too large for a frame."""
    noise = np.random.default_rng(0).random((count, 3000))
    return fl.arrays({"x": np.arange(count), "noise": noise}).shuffle(7)


def drawn(thing: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """Changes its sample in place, and draws random numbers."""
    thing["noise"] += 1
    thing["drawn"] = thing["noise"] * random.random()
    return thing


def with_hook(hook: Callable[[int], None]) -> Callable[..., Any]:
    def call(thing: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
        thing["noise"] *= 2
        for x in np.atleast_1d(thing["x"]).tolist():
            hook(x)
        return drawn(thing, random)

    return call


def nothing(_x: int) -> None:
    """Does nothing."""


def pipeline(kind: str, hook: Callable[[int], None] = nothing, count: int = COUNT) -> fl.Pipeline:
    if kind == "map":
        return samples(count).map(with_hook(hook)).batch(4)
    if kind == "map_batch":
        return samples(count).batch(4).map_batch(with_hook(hook))
    return samples(count).map(drawn).batch(4).map_batch(with_hook(hook))


def is_same(ours: Iterable[Any], theirs: Iterable[Any]) -> bool:
    ours, theirs = list(ours), list(theirs)
    return len(ours) == len(theirs) and all(
        list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


def expected(kind: str, count: int = COUNT) -> list[Any]:
    with pipeline(kind, count=count).loader(workers=1) as loader:
        return list(loader)


def slots(loader: Any) -> int:
    """The number of inbox slots in use."""
    taken: int = loader._backend._worker_pool.inbox_used[1]
    return taken


def bytes_of_inbox(loader: Any) -> int:
    used: int = loader._backend._worker_pool.inbox_used[0]
    return used


def all_come_back(loader: Any) -> bool:
    gc.collect()
    return eventually(lambda: slots(loader) == 0, 5)


# ---- deaths that do not repeat ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_is_replaced_and_its_samples_are_recomputed_identically(
    tmp_path: Path, way: str, kind: str
) -> None:
    once = Once(tmp_path / "died", way, 11)
    with pipeline(kind, once).loader(workers=2) as loader:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert is_same(loader, expected(kind))
        (death,) = loader.deaths
        assert (death.signal, death.exit_code) == (
            (None, int(way[-1])) if way.startswith("exit") else (way, None)
        )
        if kind == "map":
            assert death.index == 11
        else:
            assert isinstance(death.index, list)
            assert 11 in death.index
        (warning,) = caught
        assert (warning.category, warning.filename) == (WorkerDiedWarning, __file__)
        assert loader.report().workers_lost
        assert all_come_back(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_the_same_with_workers_killed_at_random_moments(kind: str) -> None:
    chance = python_random.Random(5)
    wanted = expected(kind, 60)
    with pipeline(kind, count=60).loader(workers=3, max_deaths=10_000) as loader:
        start = loader.state_dict()
        is_over = threading.Event()
        # Three deaths before a worker has started end the run, and on a busy machine starting takes long.
        kills: Counter[int] = Counter()

        def kill() -> None:
            while not is_over.wait(chance.random() * 0.2):
                workers = loader.workers
                if not workers:
                    continue
                worker_id = chance.randrange(len(workers))
                pid = workers[worker_id].pid
                # Pid 0 would mean this process and all of its group.
                if pid and kills[worker_id] < 2:
                    kills[worker_id] += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            # An epoch may be over before a worker is killed.
            passes = itertools.count(1)

            def is_enough() -> bool:
                loader.load_state_dict(start)
                assert is_same(loader, wanted)
                return next(passes) >= 8 and bool(loader.deaths)

            assert eventually(is_enough)
        finally:
            is_over.set()
            killer.join()
        assert all_come_back(loader)


def test_workers_that_are_killed_in_a_loop_leave_no_slot_no_descriptor_and_no_memory(
    tmp_path: Path,
) -> None:
    def kill_at_first(sample: dict[str, Any], context: Any) -> dict[str, Any]:
        mark = tmp_path / str(context.position)
        if context.position % 12 == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    with samples(120).map(kill_at_first).batch(4).loader(workers=2, max_deaths=10_000) as loader:
        seen = []
        for _ in range(3):
            x = [x for batch in loader for x in batch["x"].tolist()]
            assert sorted(x) == list(range(120))
            assert all_come_back(loader)
            seen.append(len(list(Path("/proc/self/fd").iterdir())))
            assert bytes_of_inbox(loader) < 16 << 20
        assert len(loader.deaths) == 30
        assert seen[1:] == seen[:-1]


def test_the_run_continues_when_the_zygote_is_killed() -> None:
    with pipeline("both").loader(workers=2) as loader:
        epoch = iter(loader)
        batches = [next(epoch)]
        os.kill(zygote_of(loader.workers[0].pid), signal.SIGKILL)
        batches += list(epoch)
        assert is_same(batches, expected("both"))


def test_max_deaths_are_allowed_one_more_ends_the_run_and_the_next_epoch_starts_fresh(
    tmp_path: Path,
) -> None:
    def kill(sample: dict[str, Any], context: Any) -> dict[str, Any]:
        if not (tmp_path / "enough").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    with samples().map(kill).batch(4).loader(workers=2, max_deaths=1) as loader:
        with pytest.raises(TooManyDeathsError):
            list(loader)
        (tmp_path / "enough").touch()
        assert len(list(loader)) == 8


# ---- samples that always kill ----


class Kills:
    """Kills the worker at each of these samples, every time."""

    def __init__(self, *xs: int) -> None:
        self.xs = frozenset(xs)

    def __call__(self, x: int) -> None:
        if x in self.xs:
            die("SIGKILL")


@pytest.mark.parametrize("with_batches", [False, True])
def test_a_sample_that_kills_is_identified_and_skipped_and_all_others_are_delivered(
    with_batches: bool,
) -> None:
    made = samples().map(with_hook(Kills(3, 17))).batch(4)
    made = made.map_batch(drawn) if with_batches else made
    with made.loader(workers=2, faults=SKIP, max_deaths=100) as loader:
        delivered = [batch["x"].tolist() for batch in loader]
        report = loader.report()
    order = [x for batch in samples().batch(1).loader() for x in batch["x"].tolist()]
    assert delivered == filled_batches(order, {3, 17}, 4)
    assert sorted(fault.index for fault in report.faults) == [3, 17]
    assert {fault.kind for fault in report.faults} == {"WorkerDiedError"}
    assert (report.delivered, report.skipped) == (28, 2)


@pytest.mark.parametrize("kind", ["map_batch", "both"])
def test_the_samples_of_a_batch_that_kills_are_skipped_and_named_and_others_fill_it(kind: str) -> None:
    with pipeline(kind, Kills(17)).loader(workers=2, faults=SKIP, max_deaths=100) as loader:
        delivered = [batch["x"].tolist() for batch in loader]
        report = loader.report()
    order = [x for batch in samples().batch(1).loader() for x in batch["x"].tolist()]
    *parts, bad, rest = [order[at : at + 4] for at in range(0, COUNT, 4)]
    assert 17 in bad
    assert delivered == [*parts, rest[::-1]]
    assert sorted(fault.index for fault in report.faults) == sorted(bad)


def test_a_sample_that_kills_ends_the_run_with_action_raise() -> None:
    with (
        samples().map(with_hook(Kills(17))).batch(4).loader(workers=2, max_deaths=100) as loader,
        pytest.raises(WorkerDiedError) as raised,
    ):
        list(loader)
    assert raised.value.index == 17
    assert len(raised.value.deaths) > 1


# ---- functions that hang ----


def hangs_at(x: int) -> Callable[[int], None]:
    def hang(given: int) -> None:
        while given == x:
            time.sleep(100)

    return hang


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_exceeds_its_deadline_is_ended_and_reported_with_its_stack(kind: str) -> None:
    with pipeline(kind, hangs_at(17)).loader(workers=2, faults=SKIP, deadline=DEADLINE) as loader:
        delivered = {x for batch in loader for x in batch["x"].tolist()}
        report = loader.report()
        assert any("hang" in frame for frame in loader.deaths[0].stack)
    assert delivered == set(range(COUNT)) - {fault.index for fault in report.faults}
    assert {fault.kind for fault in report.faults} == {"DeadlineExceededError"}
    assert report.skipped == (1 if kind == "map" else 4)


def test_an_exceeded_deadline_is_raised_with_action_raise() -> None:
    with (
        pipeline("map", hangs_at(17)).loader(workers=2, deadline=DEADLINE) as loader,
        pytest.raises(DeadlineExceededError) as raised,
    ):
        list(loader)
    assert raised.value.index == 17


# ---- memory ----


def test_buffers_that_do_not_fit_into_the_inbox_travel_in_the_frame() -> None:
    large = np.arange(12 * 500_000, dtype=np.float64).reshape(12, 500_000)
    source = fl.arrays({"large": large})
    with (
        source.batch(2)
        .map_batch(lambda batch: batch)
        .loader(workers=2, memory="4MiB", prefetch="1MiB") as loader
    ):
        for _ in range(2):
            batches = list(loader)
            np.testing.assert_array_equal(np.concatenate([batch["large"] for batch in batches]), large)
        assert all_come_back(loader)


def test_arrays_that_a_function_keeps_do_not_change() -> None:
    kept: list[tuple[Any, float]] = []

    def keep(batch: dict[str, Any]) -> dict[str, Any]:
        assert all(float(array[0, 0]) == value for array, value in kept)
        kept.append((batch["noise"], float(batch["noise"][0, 0])))
        del kept[:-4]
        return {"x": batch["x"]}

    with samples(200).batch(4).map_batch(keep).loader(workers=1) as loader:
        for _ in range(3):
            assert len(list(loader)) == 50


# ---- closing ----


def test_leaving_or_dropping_a_loader_leaves_nothing_behind() -> None:
    for threads in (False, True):
        for end in ("close", "break", "drop", "left"):
            loader: Any = samples().map(drawn, threads=threads).batch(4).loader(workers=2)
            epoch: Any = iter(loader)
            next(epoch)
            if end == "close":
                loader.close()
            elif end == "left":
                iter(loader)
            elif end == "break":
                del epoch
                next(iter(loader))
            del loader
            epoch = None


def test_ctrl_c_ends_the_wait_and_the_epoch() -> None:
    with pipeline("map", hangs_at(17)).loader(workers=2) as loader:
        got: list[Any] = []
        due = next(at for at, batch in enumerate(expected("map")) if 17 in batch["x"])

        def interrupt() -> None:
            assert eventually(lambda: len(got) == due, 100)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            got.extend(loader)
        thread.join()


TRAINER = """
import numpy as np
import feedline as fl

def busy(sample):
    while sample["x"] == 5:
        pass
    return sample

loader = fl.arrays({"x": np.arange(400)}).map(busy).batch(1).loader(workers=3)
epoch = iter(loader)
batch = [next(epoch) for _ in range(4)]
pids = [worker.pid for worker in loader.workers]
zygote = int(Path(f"/proc/{pids[0]}/status").read_text().split("PPid:")[1].split()[0])
say([zygote, *pids])
"""


@pytest.mark.parametrize("ending", ["SIGKILL", "by itself"])
def test_workers_end_with_the_trainer(trainers: Trainers, ending: str) -> None:
    trainer = trainers.start(TRAINER + ("time.sleep(1000)" if ending == "SIGKILL" else ""))
    pids = trainer.first_answer()
    if ending == "SIGKILL":
        os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    assert eventually(lambda: all(has_ended(pid) for pid in pids), 5)
