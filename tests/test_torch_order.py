"""The order and every random number are those of torch's loader."""

from __future__ import annotations

import gc
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import feedline.torch
import numpy as np
import pytest
import torch
import torch.utils.data
from alike import described, generator_state
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

# A loader class: torch's or ours.
Kind = type[torch.utils.data.DataLoader[Any]]
Arguments = dict[str, Any]
THEIRS: Kind = torch.utils.data.DataLoader
OURS: Kind = feedline.torch.DataLoader
TAKES_IN_ORDER = "in_order" in inspect.signature(THEIRS.__init__).parameters

# A test may have more workers than this machine has CPUs.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Squares(Dataset[Tensor]):
    """Takes one index, or a list of them."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Tensor:
        number = torch.as_tensor(index)
        return torch.stack([number, number**2])


class WholeBatches(Squares):
    def __getitem__(self, index: Any) -> Tensor:
        raise AssertionError("the data set has __getitems__")

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [torch.tensor([index, len(indices)]) for index in indices]


class NoWholeBatches(Squares):
    __getitems__ = None


class Backwards(Sampler[int]):
    """A sampler that draws random numbers at the start of each epoch, and records its calls."""

    def __init__(self, length: int = 23) -> None:
        self.length = length
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        skipped = int(torch.randint(3, ()))
        for index in reversed(range(skipped, self.length)):
            self.drawn.append(index)
            yield index


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(kind: Kind, arguments: Arguments, epochs: int = 2, *, ahead: bool = True) -> Any:
    """Batches, and the states of the generators after each epoch. `ahead`: also the states before the first
    batch, which show how much work is ordered ahead."""
    torch.manual_seed(11)
    loader = kind(**arguments)
    generator = arguments.get("generator")
    seen = []
    for _ in range(epochs):
        running = iter(loader)
        begun = (generator_state(), generator_state(generator)) if ahead else None
        batches = described(list(running))
        seen.append((begun, batches, generator_state(), generator_state(generator)))
    return seen


# ---- map-style data sets ----

CASES: dict[str, Callable[[], Arguments]] = {
    "one by one": lambda: {},
    "in order": lambda: {"batch_size": 4},
    "in order, whole batches only": lambda: {"batch_size": 4, "drop_last": True},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "shuffled, whole batches only": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffled, with a generator": lambda: {"batch_size": 4, "shuffle": True, "generator": seeded(3)},
    "in order, with a generator": lambda: {"batch_size": 4, "generator": seeded(3)},
    "a batch larger than the data set": lambda: {"batch_size": 99, "shuffle": True},
    "a sampler": lambda: {"batch_size": 4, "sampler": Backwards()},
    "a sampler that is a list": lambda: {"batch_size": 2, "sampler": [3, 1, 2, 2, 22]},
    "a sampler that is a tensor": lambda: {"batch_size": 4, "sampler": torch.arange(22, 0, -1)},
    "a sampler of numbers of NumPy": lambda: {"batch_size": 4, "sampler": np.arange(7)},
    "a sampler and a generator": lambda: {"batch_size": 4, "sampler": Backwards(), "generator": seeded(3)},
    "a batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(23)), 5, True)},
    "a batch sampler that is a list": lambda: {"batch_sampler": [[0], [1, 2, 3], (4, 4), torch.arange(3)]},
    "with replacement": lambda: {"sampler": RandomSampler(range(23), True, 70), "batch_size": 16},
    "more samples than there are": lambda: {"sampler": RandomSampler(range(23), False, 60), "batch_size": 16},
    "fewer samples than there are": lambda: {"sampler": RandomSampler(range(23), False, 9), "batch_size": 4},
    "a sampler with a generator": lambda: {"sampler": RandomSampler(range(23), generator=seeded(4))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.1, 0.2, 0.3, 0.4], 13), "batch_size": 4},
    "a subset": lambda: {"sampler": SubsetRandomSampler([2, 3, 5, 7, 11]), "batch_size": 2},
    "a rank": lambda: {"sampler": DistributedSampler(Squares(), 3, 1, seed=2), "batch_size": 4},
    "without batches": lambda: {"batch_size": None},
    "without batches, shuffled": lambda: {"batch_size": None, "shuffle": True},
    "without batches, a sampler of lists": lambda: {
        "batch_size": None,
        "sampler": BatchSampler(SequentialSampler(range(23)), 6, False),
    },
    "__getitems__": lambda: {"dataset": WholeBatches(), "batch_size": 4, "shuffle": True},
    "__getitems__ that is None": lambda: {"dataset": NoWholeBatches(), "batch_size": 4},
    "nothing at all": lambda: {"dataset": Squares(0), "batch_size": 4},
    "everything thrown away": lambda: {"dataset": Squares(3), "batch_size": 4, "drop_last": True},
}


def arguments_of(case: str, **more: Any) -> Arguments:
    return {"dataset": Squares(), **CASES[case](), **more}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_and_the_states_of_all_generators_are_torchs(case: str, workers: int) -> None:
    epochs = 1 if workers > 0 else 2

    ours = run(OURS, arguments_of(case, num_workers=workers), epochs, ahead=workers == 0)

    # Samples that draw nothing are the same without workers, and torch's workers take most of the time.
    assert ours == run(THEIRS, arguments_of(case), epochs, ahead=workers == 0)


@cache
def torchs_own(case: str) -> Any:
    return run(THEIRS, arguments_of(case, num_workers=1, prefetch_factor=4))


@pytest.mark.parametrize(
    ("case", "workers", "prefetch"),
    [
        ("shuffled", 1, 4),
        ("shuffled", 2, 2),
        ("shuffled", 3, 1),
        ("shuffled, with a generator", 2, None),
        ("with replacement", 2, 1),
        ("a sampler", 1, 1),
        ("a sampler", 2, 4),
        ("a batch sampler", 2, None),
        ("a batch sampler that is a list", 5, 2),
        ("without batches, shuffled", 2, 4),
    ],
)
def test_neither_the_number_of_workers_nor_the_prefetch_changes_the_order(
    case: str, workers: int, prefetch: int | None
) -> None:
    ours = run(OURS, arguments_of(case, num_workers=workers, prefetch_factor=prefetch))

    assert ours == torchs_own(case)


@pytest.mark.parametrize("case", CASES)
def test_the_length_is_torchs(case: str) -> None:
    ours, theirs = OURS(**arguments_of(case)), THEIRS(**arguments_of(case))

    assert len(ours) == len(theirs)
    assert len(iter(ours)) == len(iter(theirs))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_follows_a_sampler_that_grows(workers: int) -> None:
    sampler = Backwards(8)
    loader = OURS(Squares(), batch_size=4, sampler=sampler, num_workers=workers)

    sampler.length = 12

    assert len(loader) == 3


def test_two_epochs_of_one_loader_can_run_side_by_side() -> None:
    def both(kind: Kind) -> Any:
        torch.manual_seed(1)
        loader = kind(Squares(), batch_size=4, shuffle=True, num_workers=1)
        return described(list(zip(loader, loader, strict=True)))

    assert both(OURS) == both(THEIRS)


def test_an_abandoned_epoch_draws_as_many_random_numbers_as_torchs() -> None:
    def left(kind: Kind) -> Any:
        torch.manual_seed(1)
        loader = kind(Squares(), batch_size=2, shuffle=True, num_workers=2)
        first = described([batch for batch, _ in zip(loader, range(3), strict=False)])
        return first, generator_state(), described(list(loader)), generator_state()

    assert left(OURS) == left(THEIRS)


def test_workers_exist_as_soon_as_the_iterator_does() -> None:
    running: Any = iter(OURS(Squares(), num_workers=2))

    assert all(worker.is_alive() and worker.exitcode is None for worker in running._workers)
    assert all(Path(f"/proc/{worker.pid}").exists() for worker in running._workers)


def test_abandoning_a_loop_ends_its_workers_without_the_garbage_collector() -> None:
    running: Any = iter(OURS(Squares(), batch_size=2, num_workers=2))
    next(running)
    workers = running._workers
    pids = [worker.pid for worker in workers]
    gc.collect()
    gc.disable()
    try:
        del running

        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        gc.enable()


# ---- sampling ahead ----


@pytest.mark.parametrize(
    ("workers", "prefetch", "in_order"),
    [(0, None, True), (1, 1, True), (2, None, True), (2, 1, True), (2, 4, True), (2, 2, False)],
)
def test_the_sampler_is_read_at_the_same_moments(workers: int, prefetch: int | None, in_order: bool) -> None:
    if not in_order and not TAKES_IN_ORDER:
        pytest.skip("torch before 2.6 has no in_order to compare with")

    def asked(kind: Kind) -> list[int]:
        torch.manual_seed(3)
        sampler = Backwards()
        more: Arguments = {"num_workers": workers, "prefetch_factor": prefetch}
        if not in_order:
            more["in_order"] = False
        running = iter(kind(Squares(), batch_size=2, sampler=sampler, **more))
        counts = [len(sampler.drawn)]
        for _ in running:
            counts.append(len(sampler.drawn))
        return counts

    assert asked(OURS) == asked(THEIRS)


# ---- random numbers in workers ----


class Rolls(Dataset[Any]):
    """Draws from each generator of a worker, a different number of times."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        rolls = [random.random() for _ in range(index % 3)]
        return index, sum(rolls), random.gauss(0, 1), torch.rand(2), np.random.normal(), np.random.rand(2)


@pytest.mark.parametrize(
    "more",
    [
        {"num_workers": 0},
        {"num_workers": 1},
        {"num_workers": 3},
        {"num_workers": 2, "generator": None},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=str,
)
def test_random_numbers_drawn_by_the_data_set_are_torchs(more: Arguments) -> None:
    def rolled(kind: Kind) -> Any:
        random.seed(1)
        np.random.seed(2)
        generator = seeded(3) if "generator" in more else None
        arguments = {"dataset": Rolls(), "batch_size": 3, "shuffle": True, **more, "generator": generator}
        epochs = run(kind, arguments)
        return epochs, random.getstate(), described(np.random.get_state())

    assert rolled(OURS) == rolled(THEIRS)


def reported(_worker: int) -> None:
    """Records the worker info in the data set."""
    info = get_worker_info()
    assert info is not None
    names = ("id", "num_workers", "seed", "rng", "worker_method")
    facts = {name: repr(getattr(info, name, None)) for name in names}
    facts["numbers"] = repr((random.random(), torch.rand(()), np.random.rand()))
    assert isinstance(info.dataset, WithWorkerInfo)
    info.dataset.facts = facts


class WithWorkerInfo(Dataset[Any]):
    def __init__(self) -> None:
        self.facts: Any = None

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return {"id": None if info is None else info.id, "facts": self.facts}


def as_it_is(samples: Any) -> Any:
    return samples


def test_worker_info_and_changes_of_the_data_set_in_a_worker_are_as_with_torch() -> None:
    arguments = {
        "dataset": WithWorkerInfo(),
        "collate_fn": as_it_is,
        "worker_init_fn": reported,
        "num_workers": 2,
    }

    ours = run(OURS, arguments, epochs=1)

    assert ours == run(THEIRS, arguments, epochs=1)
    assert "worker_method" in str(ours)
    # torch's own loader would need an interpreter for each worker.
    assert ours == run(OURS, {**arguments, "multiprocessing_context": "spawn"}, epochs=1)


def test_the_trainer_has_no_worker_info() -> None:
    dataset = WithWorkerInfo()
    loader = OURS(dataset, collate_fn=as_it_is, worker_init_fn=reported, num_workers=2)

    alone = list(OURS(dataset, collate_fn=as_it_is, worker_init_fn=reported))
    for _ in loader:
        assert get_worker_info() is None

    assert alone == [[{"id": None, "facts": None}]] * 6
    assert dataset.facts is None


# ---- persistent workers ----


class Counted(Dataset[Any]):
    """Its copy in a worker counts the samples made."""

    def __init__(self) -> None:
        self.made = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        return index, self.made, random.random()


@pytest.mark.parametrize("workers", [1, 2])
def test_persistent_workers_keep_their_data_set_and_their_generators(workers: int) -> None:
    def counted(kind: Kind) -> Any:
        more: Arguments = {"num_workers": workers, "persistent_workers": True}
        return run(kind, {"dataset": Counted(), "batch_size": 2, "shuffle": True, **more}, epochs=3)

    assert counted(OURS) == counted(THEIRS)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_iterating_again_restarts_persistent_workers(taken: int) -> None:
    def twice(kind: Kind) -> Any:
        torch.manual_seed(5)
        more: Arguments = {"num_workers": 2, "persistent_workers": True}
        loader = kind(Counted(), batch_size=2, shuffle=True, **more)
        first = iter(loader)
        begun = described([next(first) for _ in range(taken)])
        second = iter(loader)
        assert second is first
        # Samples ordered ahead are still made, so they count.
        return begun, described(list(second)), generator_state(), described(list(loader))

    assert twice(OURS) == twice(THEIRS)


def test_persistent_workers_are_the_same_processes() -> None:
    loader: Any = OURS(Counted(), num_workers=2, persistent_workers=True)
    list(loader)
    before = [worker.pid for worker in loader._iterator._workers]

    list(loader)

    assert [worker.pid for worker in loader._iterator._workers] == before
    assert all(worker.is_alive() for worker in loader._iterator._workers)


# ---- out of order ----


class Waits(Dataset[int]):
    """Its first sample is ready only after its last one has started."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.begun = torch.multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == 0:
            assert self.begun.wait(30)
        if index == self.length - 1:
            self.begun.set()
        return index


def test_out_of_order_a_slow_worker_is_overtaken() -> None:
    loader = OURS(Waits(20), batch_size=None, num_workers=2, in_order=False)

    seen = list(loader)

    assert sorted(seen) == list(range(20))
    assert seen[:18] == [*range(1, 4, 2), *seen[2:18]]
    assert 0 in seen[-4:]


@pytest.mark.parametrize("persistent", [False, True])
def test_out_of_order_every_sample_comes_once(persistent: bool) -> None:
    more: Arguments = {"num_workers": 3, "in_order": False, "persistent_workers": persistent}
    loader = OURS(Squares(50), batch_size=4, shuffle=True, **more)

    for _ in range(2):
        assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(50))


# ---- iterable data sets ----


class Shards(IterableDataset[Any]):
    """Each worker has the number of samples of its length; without workers, all samples."""

    def __init__(self, lengths: Iterable[int], claims: int | None = None) -> None:
        self.lengths = list(lengths)
        self.epochs = 0
        self.claims = claims

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        self.epochs += 1
        workers = range(len(self.lengths)) if info is None else [info.id]
        for worker in workers:
            for number in range(self.lengths[worker]):
                yield torch.tensor([worker, number, self.epochs]), random.random()


class Sized(Shards):
    def __len__(self) -> int:
        return sum(self.lengths) if self.claims is None else self.claims

    def __repr__(self) -> str:
        return "Sized"


@pytest.mark.parametrize(
    ("lengths", "more"),
    [
        ([9], {"batch_size": 4}),
        ([7, 7], {"batch_size": 3, "drop_last": True}),
        ([2, 11], {"batch_size": 3}),
        ([11, 2], {"batch_size": 3, "drop_last": True}),
        ([11, 2], {"batch_size": 1, "prefetch_factor": 1}),
        ([0, 5], {"batch_size": None}),
        ([5, 3], {"batch_size": None, "persistent_workers": True}),
        ([2, 11], {"batch_size": 3, "persistent_workers": True}),
        ([11, 2], {"batch_size": 3, "drop_last": True, "persistent_workers": True}),
        ([0, 0], {"batch_size": 2}),
        ([1, 13, 6], {"batch_size": 3, "prefetch_factor": 4}),
        ([4, 4], {"batch_size": 2, "shuffle": False, "generator": None}),
    ],
    ids=str,
)
def test_shards_that_end_at_different_times_are_delivered_as_by_torch(
    lengths: list[int], more: Arguments
) -> None:
    def sharded(kind: Kind) -> Any:
        random.seed(4)
        generator = seeded(3) if "generator" in more else None
        arguments = {"dataset": Shards(lengths), "num_workers": len(lengths), **more}
        return run(kind, {**arguments, "generator": generator})

    assert sharded(OURS) == sharded(THEIRS)


@pytest.mark.parametrize(
    "more", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}], ids=str
)
def test_an_iterable_without_workers_is_delivered_as_by_torch(more: Arguments) -> None:
    def alone(kind: Kind) -> Any:
        random.seed(4)
        return run(kind, {"dataset": Shards([4, 0, 7]), **more}), random.getstate()

    assert alone(OURS) == alone(THEIRS)


@pytest.mark.parametrize("persistent", [False, True])
def test_shards_out_of_order_lose_nothing(persistent: bool) -> None:
    more: Arguments = {"num_workers": 3, "in_order": False, "persistent_workers": persistent}
    loader = OURS(Shards([1, 13, 6]), batch_size=2, **more)

    for _ in range(2):
        rows = Counter((int(row[0]), int(row[1])) for rows, _ in loader for row in rows)
        assert rows == Counter((worker, n) for worker, length in enumerate([1, 13, 6]) for n in range(length))


def test_a_persistent_iterable_can_be_abandoned_and_restarted() -> None:
    def twice(kind: Kind) -> Any:
        torch.manual_seed(5)
        loader = kind(Shards([9, 4]), batch_size=2, num_workers=2, persistent_workers=True)
        begun = described([batch for batch, _ in zip(loader, range(2), strict=False)])
        return begun, described(list(loader)), described(list(loader))

    assert twice(OURS) == twice(THEIRS)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_the_length_of_an_iterable_is_torchs(batch_size: int | None, drop_last: bool) -> None:
    more: Arguments = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}

    assert len(OURS(Sized([9, 9, 4]), **more)) == len(THEIRS(Sized([9, 9, 4]), **more))


@pytest.mark.parametrize("kind", [OURS, THEIRS])
def test_an_iterable_without_a_length_has_none(kind: Kind) -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(kind(Shards([3])))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_beyond_the_length_gives_torchs_warning(workers: int) -> None:
    def warnings(kind: Kind) -> list[tuple[str, str]]:
        loader = kind(Sized([2, 3], claims=3), batch_size=None, num_workers=workers)
        assert len(loader) == 3
        with pytest.warns(UserWarning, match="was reported to be 3") as caught:
            list(loader)
        return [(str(warning.message), warning.filename) for warning in caught]

    ours = warnings(OURS)

    assert len(ours) == 2
    assert ours == warnings(THEIRS)


@pytest.mark.parametrize(
    "more", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"shuffle": 0.5}], ids=str
)
def test_an_order_for_an_iterable_is_refused_with_torchs_message(more: Arguments) -> None:
    def refusal(kind: Kind) -> str:
        with pytest.raises(ValueError, match="IterableDataset") as caught:
            kind(Shards([3]), **more)
        return str(caught.value)

    assert refusal(OURS) == refusal(THEIRS)


# ---- data pipes ----


class Stream(IterDataPipe[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


class Table(MapDataPipe[int]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> int:
        return index * 10


def doubled(number: int) -> int:
    return number * 2


PIPES: dict[str, Callable[[], Any]] = {
    "a stream": lambda: Stream(13),
    "a shuffled stream": lambda: Stream(13).shuffle(buffer_size=8),
    "a stream in shards": lambda: Stream(13).shuffle().sharding_filter().map(doubled),
    "a table": lambda: Table(),
    "a mapped table": lambda: Table().map(doubled),
}


@pytest.mark.filterwarnings("ignore:`shuffle=True` was set")
@pytest.mark.parametrize("shuffle", [None, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pipe", PIPES)
def test_data_pipes_are_delivered_as_by_torch(pipe: str, workers: int, shuffle: bool | None) -> None:
    def piped(kind: Kind) -> Any:
        random.seed(6)
        arguments = {"batch_size": 3, "shuffle": shuffle, "num_workers": workers}
        return run(kind, {"dataset": PIPES[pipe](), **arguments}, epochs=1 + (workers == 0))

    assert piped(OURS) == piped(THEIRS)


def test_data_pipes_in_persistent_workers_are_delivered_as_by_torch() -> None:
    def piped(kind: Kind) -> Any:
        more: Arguments = {"num_workers": 2, "persistent_workers": True}
        return run(kind, {"dataset": PIPES["a stream in shards"](), "batch_size": 3, **more}, epochs=3)

    assert piped(OURS) == piped(THEIRS)


# ---- fresh interpreters ----


def test_workers_of_a_fresh_interpreter_give_the_same_batches_as_forks() -> None:
    def drawn(context: str) -> Any:
        more: Arguments = {"num_workers": 2, "multiprocessing_context": context}
        return run(OURS, {"dataset": Shards([5, 2]), "batch_size": 2, **more})

    assert drawn("spawn") == drawn("fork")
