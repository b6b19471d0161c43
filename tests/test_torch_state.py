"""`state_dict` and `load_state_dict` of the torch loader: a run that is continued delivers what the run that
was not interrupted would have delivered."""

from __future__ import annotations

import json
import multiprocessing
import random
import zlib
from collections.abc import Callable
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline._torch.sampling import behind
from feedline._torch.state import sealed, text_of
from feedline.errors import InvalidArgumentError, StateMismatchError
from feedline.torch import DataLoader
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

# torch warns of more workers than the machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset[int]):
    """Samples that are their index; some are bad."""

    def __init__(self, count: int, bad: frozenset[int] = frozenset()) -> None:
        self.count, self.bad = count, bad
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return index


class Stream(IterableDataset[int]):
    """Each worker has its own part, of another length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(worker * 1000, worker * 1000 + (self.count >> worker) // workers + worker))


class StatefulStream(Stream):
    """The same, with a place of its own; counts what is drawn again."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.at = 0
        self.resumed: int | None = None

    def __iter__(self) -> Any:
        self.at, self.resumed = self.resumed or 0, None
        for number in list(super().__iter__())[self.at :]:
            self.at += 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[Any, Any]:
        return {"at": self.at, "as a tensor": torch.tensor(self.at), ("a", 1): b"key"}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert int(state["as a tensor"]) == state["at"]
        assert state[("a", 1)] == b"key"
        self.resumed = state["at"]


class ShuffledByPython(Sampler[int]):
    """A user's sampler, which draws from the global generators of Python and NumPy."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        order = list(range(self.count))
        random.shuffle(order)
        order = [order[at] for at in np.random.permutation(self.count)]
        yield from order

    def __len__(self) -> int:
        return self.count


class StatefulSampler(Sampler[int]):
    """A sampler with a place of its own."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.resumed = count, 0, None

    def __iter__(self) -> Any:
        self.at, self.resumed = self.resumed or 0, None
        while self.at < self.count:
            self.at += 1
            yield (self.at - 1) * 7 % self.count
        self.at = 0

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed = state["at"]


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def run(loader: DataLoader[Any], epochs: int) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(epochs)]


def continued(make: Any, stops: list[tuple[int, int]], epochs: int, workers: list[int]) -> list[list[Any]]:
    """The batches of a run stopped after a number of batches of an epoch, each time in another loader,
    with these numbers of workers one after another. The state goes through JSON, and the global generators
    are disturbed."""
    delivered: list[list[Any]] = [[] for _ in range(epochs)]
    loader = make(workers[0])
    epoch, state = 0, None
    for number, (stop_epoch, stop_batches) in enumerate([*stops, (epochs, 0)]):
        while epoch < stop_epoch:
            delivered[epoch] += [plain(batch) for batch in loader]
            epoch += 1
        if epoch == epochs:
            break
        batches = iter(loader)
        while len(delivered[epoch]) < stop_batches:
            delivered[epoch].append(plain(next(batches)))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        torch.manual_seed(number), random.seed(number), np.random.seed(number)
        loader = make(workers[(number + 1) % len(workers)])
        loader.load_state_dict(state)
    return delivered


def expect_the_same(
    make: Any, stops: list[tuple[int, int]], workers: list[int], epochs: int = 3, seed: int = 5
) -> None:
    def seeded() -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)

    seeded()
    whole = run(make(workers[0]), epochs)
    seeded()
    assert continued(make, stops, epochs, workers) == whole


STOPS = {
    "before the first batch": [(0, 0)],
    "in the middle": [(0, 3)],
    "at the end of an epoch": [(0, 7)],
    "between epochs": [(1, 0)],
    "three times in one epoch": [(0, 1), (0, 2), (0, 5)],
    "in every epoch": [(0, 4), (1, 2), (2, 6)],
}


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("workers", [[0], [2], [2, 8, 0]], ids=str)
def test_a_shuffled_run_continues_with_any_number_of_workers(
    stops: list[tuple[int, int]], workers: list[int]
) -> None:
    expect_the_same(
        lambda count: DataLoader(Numbers(27), batch_size=4, shuffle=True, num_workers=count), stops, workers
    )


def with_generator(count: int, **settings: Any) -> DataLoader[Any]:
    generator = torch.Generator()
    generator.manual_seed(3)
    return DataLoader(
        Numbers(27), batch_size=4, shuffle=True, num_workers=count, generator=generator, **settings
    )


class ShuffledBatches(Sampler[list[int]]):
    """A user's batch sampler, which draws from Python's global generator."""

    def __iter__(self) -> Any:
        batches = [list(range(first, min(first + 4, 27))) for first in range(0, 27, 4)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return 7


def with_own_batches(count: int) -> DataLoader[Any]:
    batches = BatchSampler(RandomSampler(range(27), replacement=True), 4, drop_last=False)
    return DataLoader(Numbers(27), batch_sampler=batches, num_workers=count)


KINDS = {
    "a generator": with_generator,
    "the order of the data set": lambda count: DataLoader(Numbers(27), batch_size=4, num_workers=count),
    "drop_last": lambda count: DataLoader(
        Numbers(30), batch_size=4, shuffle=True, num_workers=count, drop_last=True
    ),
    "a batch sampler with replacement": with_own_batches,
    "a user's sampler": lambda count: DataLoader(
        Numbers(27), batch_size=4, sampler=ShuffledByPython(27), num_workers=count
    ),
    "a user's batch sampler": lambda count: DataLoader(
        Numbers(27), batch_sampler=ShuffledBatches(), num_workers=count
    ),
    "a stateful sampler": lambda count: DataLoader(
        Numbers(27), batch_size=4, sampler=StatefulSampler(27), num_workers=count
    ),
    "samples without batches": lambda count: DataLoader(
        Numbers(7), batch_size=None, shuffle=True, num_workers=count
    ),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
def test_every_kind_of_sampler_continues(make: Any, stops: list[tuple[int, int]]) -> None:
    expect_the_same(make, stops, [0])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_kind_of_sampler_continues_with_workers(make: Any) -> None:
    # Without workers torch begins a sampler once in an epoch, with workers twice: then a batch sampler that
    # draws when it is begun has another order, with torch's own loader too.
    draws_at_once = make is KINDS["a user's batch sampler"]
    expect_the_same(make, [(0, 3), (1, 0), (1, 5)], [1, 2 if draws_at_once else 0])


def test_an_order_that_was_drawn_with_workers_is_continued_without() -> None:
    """Of a batch sampler that draws when it is begun."""
    random.seed(5)
    made = DataLoader(Numbers(27), batch_sampler=ShuffledBatches(), num_workers=1)
    batches = iter(made)
    first = [next(batches) for _ in range(3)]
    state = made.state_dict()
    rest = [batch.tolist() for batch in batches]
    assert len(first) + len(rest) == 7
    for workers in (0, 2):
        random.seed(99)
        again = DataLoader(Numbers(27), batch_sampler=ShuffledBatches(), num_workers=workers)
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == rest


def test_persistent_workers_draw_their_seed_once_in_a_continued_run_too() -> None:
    expect_the_same(
        lambda count: with_generator(count, persistent_workers=True),
        [(0, 3), (1, 0), (2, 5)],
        [2],
    )


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("kind", [Stream, StatefulStream])
@pytest.mark.parametrize("workers", [0, 3])
def test_an_iterable_data_set_continues(kind: Any, workers: int, stops: list[tuple[int, int]]) -> None:
    count = 27 if workers == 0 else 40
    expect_the_same(
        lambda number: DataLoader(kind(count), batch_size=4, num_workers=number), stops, [workers]
    )


@pytest.mark.filterwarnings("ignore::feedline.errors.FeedlineWarning")
@pytest.mark.parametrize("workers", [[0], [2], [1, 0]], ids=str)
@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize("fill", [True, False])
def test_skipping_and_replacing_continue(workers: list[int], action: str, fill: bool) -> None:
    bad = frozenset({2, 5, 11, 12, 20})

    def make(count: int) -> DataLoader[Any]:
        policy = fl.FaultPolicy(action=action, fill=fill, limit=None)  # type: ignore[arg-type]
        return DataLoader(Numbers(29, bad), batch_size=4, shuffle=True, num_workers=count, faults=policy)

    whole = len(run(make(0), 1)[0])
    for stops in ([(0, 0)], [(0, 2), (0, 5)], [(0, whole)], [(1, 0), (1, 3)]):
        expect_the_same(make, stops, workers)


def test_the_limit_of_faults_counts_those_before_the_state() -> None:
    def make() -> DataLoader[Any]:
        policy = fl.FaultPolicy(action="skip", limit=3)
        return DataLoader(Numbers(40, frozenset({1, 2, 13, 30})), batch_size=4, faults=policy)

    loader = make()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    again = make()
    again.load_state_dict(loader.state_dict())
    with pytest.raises(fl.errors.TooManyFaultsError, match="4 faults"):
        list(again)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: SequentialSampler(range(100)),
    "shuffled": lambda: RandomSampler(range(100)),
    "more than an epoch": lambda: RandomSampler(range(100), num_samples=270),
    "less than an epoch": lambda: RandomSampler(range(100), num_samples=30),
    "with replacement": lambda: RandomSampler(range(100), replacement=True, num_samples=100),
    "distributed": lambda: DistributedSampler(Numbers(100), 3, 1),
    "of a user": lambda: SubsetRandomSampler(range(100)),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_behind_some_indices_gives_the_others(make: Callable[[], Any]) -> None:
    torch.manual_seed(3)
    whole = list(make())
    for count in range(len(whole) + 2):
        torch.manual_seed(3)
        assert list(behind(iter(make()), count)) == whole[count:], count


def test_nothing_is_read_up_to_a_place_in_a_long_order() -> None:
    """Reading would take years."""
    left = behind(iter(SequentialSampler(range(2**62))), 2**61)
    assert next(left) == 2**61


def test_a_text_like_the_mark_of_a_generator_does_not_change_the_checksum() -> None:
    for name in ("plain", "feedline:generator"):
        state = {"random": {"begin": ["b", "c"], "global": "d", "was_read": True}, "settings": {"x": name}}
        made = sealed(state)
        assert made.pop("checksum") == zlib.crc32(text_of(made).encode())


def test_no_sample_is_made_again() -> None:
    loader = DataLoader(Numbers(1000), batch_size=10, shuffle=True)
    batches = iter(loader)
    for _ in range(60):
        next(batches)
    data = Numbers(1000)
    again = DataLoader(data, batch_size=10, shuffle=True)
    again.load_state_dict(loader.state_dict())
    rest = [index for batch in again for index in batch.tolist()]
    assert data.loaded == rest
    assert len(rest) == 400


def test_what_is_in_flight_does_not_count() -> None:
    loader = DataLoader(Numbers(100), batch_size=4, num_workers=2, prefetch_factor=4)
    batches = iter(loader)
    received = [next(batches).tolist() for _ in range(3)]
    state = loader.state_dict()
    assert state["batches"] == 3
    again = DataLoader(Numbers(100), batch_size=4)
    again.load_state_dict(state)
    assert received + [plain(batch) for batch in again] == run(DataLoader(Numbers(100), batch_size=4), 1)[0]


def test_batches_in_any_order_are_delivered_once() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(80), batch_size=4, num_workers=2, in_order=False)

    loader = make()
    batches = iter(loader)
    received = [plain(next(batches)) for _ in range(7)]
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    received += run(again, 1)[0]
    assert sorted(index for batch in received for index in batch) == list(range(80))


def test_an_iterator_of_before_does_not_count_in_a_continued_epoch() -> None:
    loader = DataLoader(Numbers(40), batch_size=4, num_workers=1)
    old = iter(loader)
    received = [plain(next(old)) for _ in range(3)]
    loader.load_state_dict(loader.state_dict())
    new = iter(loader)
    received.append(plain(next(new)))
    del old
    received += [plain(batch) for batch in new]
    assert received == run(DataLoader(Numbers(40), batch_size=4), 1)[0]
    # The epoch was begun twice: by the old iterator, and from the state.
    report = loader.report()
    assert (report.delivered, report.epochs) == (40, 2)


def test_the_state_after_an_error_is_that_before_its_batch() -> None:
    data = Numbers(40, frozenset({21}))
    loader = DataLoader(data, batch_size=4)
    batches = iter(loader)
    received = [next(batches).tolist() for _ in range(5)]
    with pytest.raises(ValueError, match="sample 21 is bad"):
        next(batches)
    again = DataLoader(Numbers(40), batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert received + run(again, 1)[0] == run(DataLoader(Numbers(40), batch_size=4), 1)[0]


def test_a_state_that_was_loaded_is_the_state() -> None:
    loader = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    again.load_state_dict(state)
    assert again.state_dict() == state
    state["batches"] = 7
    assert again.state_dict() != state


@pytest.mark.parametrize("draws", [0, 100])
def test_draws_between_iter_and_the_first_batch_do_not_change_the_order(draws: int) -> None:
    torch.manual_seed(1)
    loader = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    batches = iter(loader)
    torch.rand(draws)
    received = [plain(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    received += [plain(batch) for batch in batches]
    torch.manual_seed(2)
    again = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    again.load_state_dict(state)
    rest = iter(again)
    torch.rand(7)
    assert received[3:] == [plain(batch) for batch in rest]


def test_other_data_and_settings_are_refused_by_name() -> None:
    loader = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    others = {
        "Numbers of 40 samples' and is 'Numbers of 41 samples": DataLoader(
            Numbers(41), batch_size=4, shuffle=True
        ),
        "batch_size was 4 and is 5": DataLoader(Numbers(40), batch_size=5, shuffle=True),
        "drop_last was False and is True": DataLoader(
            Numbers(40), batch_size=4, shuffle=True, drop_last=True
        ),
        "sampler was 'RandomSampler' and is 'SequentialSampler'": DataLoader(Numbers(40), batch_size=4),
        "faults was None": DataLoader(
            Numbers(40), batch_size=4, shuffle=True, faults=fl.FaultPolicy(action="skip")
        ),
    }
    for text, other in others.items():
        with pytest.raises(StateMismatchError, match=text):
            other.load_state_dict(state)
    other.load_state_dict(state, strict=False)
    assert len(run(other, 1)[0]) == 9


def test_a_distributed_sampler_must_be_in_the_same_epoch() -> None:
    def make(rank: int = 1) -> tuple[DataLoader[Any], DistributedSampler[Any]]:
        sampler: DistributedSampler[Any] = DistributedSampler(Numbers(40), num_replicas=2, rank=rank)
        return DataLoader(Numbers(40), batch_size=4, sampler=sampler), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    batches = iter(loader)
    received = [plain(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    whole = received + [plain(batch) for batch in batches]
    again, sampler = make()
    again.load_state_dict(state)
    # The state knows the epoch, so that a program that does not set it goes on in the right one.
    assert received + run(again, 1)[0] == whole
    again, sampler = make()
    again.load_state_dict(state)
    sampler.set_epoch(4)
    with pytest.raises(StateMismatchError, match=r"call set_epoch\(3\)"):
        iter(again)


def test_places_of_workers_need_as_many_workers() -> None:
    loader = DataLoader(Stream(40), batch_size=4, num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"2 workers.*num_workers=3"):
        DataLoader(Stream(40), batch_size=4, num_workers=3).load_state_dict(state)


def test_corrupt_states_are_refused() -> None:
    loader = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    cases: list[tuple[Any, str]] = [
        (None, "not a state"),
        ({}, "not a state"),
        ({**state, "version": 99}, "version 99"),
        ({**state, "batches": 2}, "checksum mismatch"),
        ({**state, "checksum": 0}, "checksum mismatch"),
        ({**state, "more": 1}, "checksum mismatch"),
        ({name: value for name, value in state.items() if name != "position"}, "checksum mismatch"),
        ({**state, "epoch": object()}, "corrupt"),
    ]
    for case, text in cases:
        with pytest.raises(StateMismatchError, match=text):
            loader.load_state_dict(case)
    # Frameworks add what they need.
    loader.load_state_dict({**state, "_iterator_finished": False})


def test_what_cannot_be_saved_is_refused_when_the_state_is_made() -> None:
    class Odd(StatefulStream):
        def state_dict(self) -> dict[str, Any]:
            return {"deep": [{"inside": object()}]}

    loader = DataLoader(Odd(40), batch_size=4)
    batches = iter(loader)
    next(batches)
    with pytest.raises(InvalidArgumentError, match=r"\['deep'\]\[0\]\['inside'\] cannot be saved"):
        loader.state_dict()
    chosen = DataLoader(
        Numbers(40), batch_size=4, sampler=StatefulSampler(40), faults=fl.FaultPolicy(action="replace")
    )
    next(iter(chosen))
    with pytest.raises(InvalidArgumentError, match="stateful sampler is not read again"):
        chosen.state_dict()


def test_the_state_is_small_and_plain_for_any_data_set() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(1_000_000), batch_size=1000, shuffle=True, num_workers=1)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    text = json.dumps(loader.state_dict())
    assert len(text) < 10_000


class OwnIterator(IterableDataset[int]):
    """A data set that is its own iterator, and has a state."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> OwnIterator:
        return self

    def __next__(self) -> int:
        if self.number >= 20:
            raise StopIteration
        self.number += 1
        return self.number - 1

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def test_a_state_before_the_first_batch_brings_a_data_set_back_that_is_its_own_iterator() -> None:
    loader = DataLoader(OwnIterator(), batch_size=5)
    batches = iter(loader)
    state = loader.state_dict()
    whole = [batch.tolist() for batch in batches]
    assert whole == [list(range(first, first + 5)) for first in range(0, 20, 5)]
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole


class CountsIterations(StatefulStream):
    """Counts how often all processes together have begun to iterate."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.begun = multiprocessing.Value("i", 0)

    def __iter__(self) -> Any:
        with self.begun.get_lock():
            self.begun.value += 1
        return super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_continued_epoch_iterates_once_over_the_data_set_in_each_process(workers: int, epochs: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(data, batch_size=2, num_workers=workers, persistent_workers=workers > 0)

    data = CountsIterations(16)
    loader = make()
    run(loader, epochs)
    if epochs == 0:
        batches = iter(loader)
        # A batch of each worker, so that each of them has a state.
        for _ in range(2):
            next(batches)
    state = loader.state_dict()
    again = make()
    data.begun.value = 0
    again.load_state_dict(state)
    assert run(again, 1) != [[]]
    assert data.begun.value == max(1, workers)


class Unsaveable(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))

    def state_dict(self) -> dict[str, object]:
        return {"file": object()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        raise AssertionError("there is no such state")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_whose_state_cannot_be_saved_is_refused_only_if_a_state_is_asked_for(workers: int) -> None:
    loader = DataLoader(Unsaveable(), batch_size=5, num_workers=workers)
    assert sum(len(batch) for batch in loader) == 10 * max(workers, 1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(InvalidArgumentError, match=r"state of the data set.*'file'.*cannot be saved"):
        loader.state_dict()


def test_the_weights_of_a_module_are_no_state_of_a_data_set() -> None:
    class Weighed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(100, 100)

        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return index

    loader: DataLoader[Any] = DataLoader(Weighed(), batch_size=5)  # type: ignore[arg-type]
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 10_000
