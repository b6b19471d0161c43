"""States of native loaders: they resume exactly at every batch, on any number of ranks, and stay readable."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import killed
import numpy as np
import pytest
import shards
from feedline.errors import StateMismatchError, WorkerDiedWarning
from feedline.testing import assert_elastic, assert_resumes_exactly
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parent / "golden" / "states"
WORLDS = [1, 2, 3, 4, 8]

Make = Callable[[int, int], fl.Loader]


def index_of(batch: dict[str, Any]) -> list[int]:
    return [int(index) for index in batch["index"]]


def numbers(count: int) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(count), "n": np.arange(count) % 5})


def is_even(sample: dict[str, Any]) -> bool:
    return int(sample["x"]) % 2 == 0


def draws(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    if int(sample["x"]) % 7 == 3:
        raise ValueError("a bad sample")
    return {**sample, "drawn": random.integers(1 << 60)}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three shards, with 37 records."""
    folder = tmp_path_factory.mktemp("records")
    counts = [11, 7, 19]
    return [
        str(shards.tfrecord(folder / f"{name}", [b"%d/%d" % (name, at) for at in range(count)]))
        for name, count in enumerate(counts)
    ]


@st.composite
def pipelines(
    draw: st.DrawFn, *, elastic: bool
) -> tuple[str, Callable[[fl.Pipeline, int, int], fl.Pipeline]]:
    """Calls about order, and how they are divided among ranks; and which source they are for."""
    source = draw(st.sampled_from(["arrays", "records", "mix", "concat"]))
    calls: list[Callable[[fl.Pipeline], fl.Pipeline]] = []
    if source == "records" and draw(st.booleans()):
        cycle, block, seed = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.none() | st.just(5))
        calls.append(lambda it: it.interleave(cycle, block, seed=seed))
    if draw(st.booleans()):
        seed, buffer = draw(st.integers(0, 9)), draw(st.none() | st.integers(1, 20))
        calls.append(lambda it: it.shuffle(seed, buffer=buffer))
    if draw(st.booleans()):
        skipped = draw(st.integers(0, 5))
        calls.append(lambda it: it.skip(skipped))
    if draw(st.booleans()):
        calls.append(lambda it: it.repeat(2))
    remainder: Any = draw(st.sampled_from(["pad"] if elastic else ["pad", "drop", "uneven"]))

    def apply(pipeline: fl.Pipeline, rank: int, world: int) -> fl.Pipeline:
        for call in calls:
            pipeline = call(pipeline)
        return pipeline.shard(rank, world, remainder)

    return source, apply


def made(
    source: str,
    apply: Callable[[fl.Pipeline, int, int], fl.Pipeline],
    kind: str,
    size: int,
    policy: str,
    records: list[str],
    rank: int,
    world: int,
) -> fl.Loader:
    pipelines: dict[str, Callable[[], fl.Pipeline]] = {
        "arrays": lambda: numbers(37),
        "records": lambda: fl.tfrecord(records, index=None),
        "mix": lambda: fl.mix([(numbers(20), 2), (numbers(17), 1)], seed=3),
        "concat": lambda: numbers(20).shuffle(1).concat(numbers(17)),
    }
    pipeline = apply(pipelines[source](), rank, world)
    has_numbers = source != "records"
    if kind == "filter" and has_numbers:
        pipeline = pipeline.filter(fl.col("n") < 3)
    if kind == "map" and has_numbers:
        pipeline = pipeline.map(draws, threads=True)
    if kind == "map_filter" and has_numbers:
        pipeline = pipeline.filter(is_even, threads=True)
    if kind == "bucket" and has_numbers:
        pipeline = pipeline.bucket("n", [2, 4])
    faults = fl.FaultPolicy(policy, limit=None)  # type: ignore[arg-type]
    return pipeline.batch(size, index=True).loader(threads=1, faults=faults)


KINDS = st.sampled_from(["plain", "map", "filter", "map_filter", "bucket"])
POLICIES = st.sampled_from(["skip", "replace"])


@settings(max_examples=15, deadline=None)
@given(
    pipelines(elastic=False), KINDS, st.integers(3, 9), POLICIES, st.sampled_from([(0, 1), (1, 2), (2, 3)])
)
def test_every_pipeline_resumes_exactly_after_every_batch(
    records: list[str],
    drawn: tuple[str, Callable[[fl.Pipeline, int, int], fl.Pipeline]],
    kind: str,
    size: int,
    policy: str,
    place: tuple[int, int],
) -> None:
    source, apply = drawn
    make = functools.partial(made, source, apply, kind, size, policy, records, *place)
    assert_resumes_exactly(make)


def run(
    make: Make, world: int, states: Any, stop: int | None
) -> tuple[list[int], list[dict[str, Any]] | None]:
    """The samples of some batches of each rank, and the states after them; None if the epoch is over. A rank
    that has nothing left of the epoch, while others have, waits for them: it would begin the next one."""
    found: list[int] = []
    loaders = [make(rank, world) for rank in range(world)]
    try:
        running = list(range(world))
        if states is not None:
            for loader in loaders:
                loader.load_state_dict(states)
            running = [rank for rank in running if not is_over(make(rank, world), states)]
        epochs = {rank: iter(loaders[rank]) for rank in running}
        for _ in range(10_000 if stop is None else stop):
            batches = [batch for epoch in epochs.values() if (batch := next(epoch, None)) is not None]
            found += [index for batch in batches for index in index_of(batch)]
            if not batches:
                return found, None
        saved = [loader.state_dict() for loader in loaders]
        return found, saved if any(next(epoch, None) is not None for epoch in epochs.values()) else None
    finally:
        for loader in loaders:
            loader.close()


def is_over(loader: fl.Loader, states: Any) -> bool:
    """Whether the next batch of a loader is one of the next epoch."""
    with loader:
        loader.load_state_dict(states)
        batch = next(iter(loader), None)
        return batch is None or loader.state_dict()["epoch"] > 0


@settings(max_examples=25, deadline=None)
@given(
    pipelines(elastic=True),
    KINDS,
    st.integers(1, 5),
    POLICIES,
    st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(0, 3)), min_size=2, max_size=4),
)
def test_every_sample_comes_once_whatever_the_ranks(
    records: list[str],
    drawn: tuple[str, Callable[[fl.Pipeline, int, int], fl.Pipeline]],
    kind: str,
    size: int,
    policy: str,
    worlds: list[tuple[int, int]],
) -> None:
    source, apply = drawn
    if policy == "replace" and kind == "map":
        # Replacements are other samples, drawn for each rank.
        kind = "plain"
    make = functools.partial(made, source, apply, kind, size, policy, records)
    expected, _ = run(make, 1, None, None)
    found: list[int] = []
    states: Any = None
    for number, (world, stop) in enumerate(worlds):
        more, states = run(make, world, states, None if number == len(worlds) - 1 else stop)
        found += more
        if states is None:
            break
    assert set(found) == set(expected)
    # Padding repeats some, as do ranks that fill up the places of skipped samples.
    extra = Counter(found) - Counter(expected)
    assert not Counter(expected) - Counter(found)
    assert extra.total() <= sum(world * (size + 1) for world, _ in worlds)


@pytest.mark.parametrize("remainder", ["pad", "drop", "uneven"])
def test_two_ranks_become_one_and_then_four(remainder: Any) -> None:
    def make(rank: int, world: int) -> fl.Loader:
        return numbers(96).shuffle(3).shard(rank, world, remainder).batch(4, index=True).loader()

    found: list[int] = []
    states: Any = None
    for world, stop in ((2, 5), (1, 3), (4, None)):
        more, states = run(make, world, states, stop)
        found += more
    assert sorted(found) == list(range(96))


def test_the_batches_of_the_rest_are_known_in_advance_and_the_same_for_all_ranks() -> None:
    def make(rank: int, world: int) -> fl.Loader:
        return numbers(100).shuffle(3).shard(rank, world).batch(4, index=True).loader()

    _, states = run(make, 3, None, 2)
    assert states is not None
    for rank in range(5):
        with make(rank, 5) as loader:
            loader.load_state_dict(states[2])
            # 76 samples are left, 16 for each rank with padding.
            assert (loader.batches_left, len(loader)) == (4, 5)
            assert [len(batch["index"]) for batch in loader] == [4, 4, 4, 4]
            assert loader.batches_left == 5
            assert len(list(loader)) == 5


def test_random_transforms_do_not_depend_on_the_ranks(photos: list[Path]) -> None:
    def make(rank: int, world: int) -> fl.Loader:
        pipeline = fl.files(photos).shuffle(3).shard(rank, world).decode().random_resized_crop(8).flip()
        return pipeline.batch(3).loader(threads=1)

    assert_elastic(make, [1, 2, 4])


def test_users_can_check_their_own_functions() -> None:
    def make(rank: int, world: int) -> fl.Loader:
        pipeline = numbers(40).shuffle(1).shard(rank, world).map(draws, threads=True)
        return pipeline.batch(4, index=True).loader(faults=fl.FaultPolicy("skip"))

    assert_elastic(make, [1, 2, 3], samples=index_of, may_repeat=True)
    assert_resumes_exactly(lambda: make(1, 2))


def drawn_in_workers(workers: int, function: Any) -> fl.Loader:
    pipeline = numbers(40).shuffle(7).map(function)
    return pipeline.batch(4, index=True).loader(threads=1, workers=workers)


def rows(batch: dict[str, Any]) -> list[list[int]]:
    return [np.asarray(batch[name]).tolist() for name in ("index", "x", "drawn")]


def test_a_run_that_is_resumed_three_times_does_not_depend_on_the_workers() -> None:
    def draw(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
        return {**sample, "drawn": random.integers(1 << 60)}

    with drawn_in_workers(1, draw) as loader:
        whole = [rows(batch) for _ in range(2) for batch in loader]
    received: list[Any] = []
    state: Any = None
    # Before the first batch, in the middle, behind the last batch of an epoch, and in the next one.
    for workers, stop in ((2, 0), (8, 3), (1, 10), (2, 13), (3, 20)):
        with drawn_in_workers(workers, draw) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            while len(received) < stop:
                for batch in loader:
                    received.append(rows(batch))
                    if len(received) == stop:
                        break
            state = loader.state_dict()
    assert received == whole


def test_a_worker_that_is_killed_in_a_resumed_epoch_changes_nothing(tmp_path: Path) -> None:
    fatal, armed = 0, tmp_path / "armed"

    def draw(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
        if int(sample["x"]) == fatal and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return {**sample, "drawn": random.integers(1 << 60)}

    with drawn_in_workers(2, draw) as loader:
        whole = [rows(batch) for batch in loader]
    with drawn_in_workers(2, draw) as loader:
        next(iter(loader))
        state = loader.state_dict()
    fatal = whole[5][1][0]
    armed.touch()
    with drawn_in_workers(2, draw) as loader:
        loader.load_state_dict(state)
        with pytest.warns(WorkerDiedWarning):
            assert [rows(batch) for batch in loader] == whole[1:]
        assert len(loader.deaths) == 1


TRAINER = """
import time
import feedline as fl
import numpy as np

def draw(sample, random):
    time.sleep(0.001)
    return {**sample, "drawn": random.integers(1 << 60)}

def make_loader(workers):
    pipeline = fl.arrays({"x": np.arange(120)}).shuffle(4).map(draw)
    return pipeline.batch(3, index=True).loader(threads=1, workers=workers)

def plain(batch):
    return {name: np.asarray(batch[name]).tolist() for name in ("index", "x", "drawn")}
"""


@pytest.mark.timeout(killed.TIMEOUT)
def test_a_trainer_that_is_killed_again_and_again_receives_the_same(tmp_path: Path) -> None:
    chance = killed.printed_chance()
    whole = killed.received(TRAINER, tmp_path / "whole", 1, 0, chance)
    assert [index for _, batch in whole[:40] for index in batch["x"]] != list(range(120))
    assert sorted(index for _, batch in whole[:40] for index in batch["x"]) == list(range(120))
    assert killed.received(TRAINER, tmp_path / "killed", 2, killed.KILLS, chance) == whole


class Wrong:
    """A loader that breaks its promise."""

    def __init__(self, count: int, lag: int) -> None:
        self.count, self.lag, self.at = count, lag, 0

    def __iter__(self) -> Any:
        self.at %= self.count
        while self.at < self.count:
            self.at += 1
            yield {"x": np.array([self.at - 1])}

    def state_dict(self) -> dict[str, int]:
        return {"at": max(0, self.at + self.lag)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize(("lag", "message"), [(-1, "differs"), (1, "differs"), (0, None)])
def test_a_loader_that_resumes_elsewhere_is_found(lag: int, message: str | None) -> None:
    if message is None:
        assert_resumes_exactly(lambda: Wrong(6, lag))
        return
    with pytest.raises(AssertionError, match=message):
        assert_resumes_exactly(lambda: Wrong(6, lag))


def test_ranks_that_repeat_or_lose_samples_are_found() -> None:
    class AnyRank(Wrong):
        def load_state_dict(self, state: Any) -> None:
            first = state[0] if isinstance(state, list) else state
            super().load_state_dict(first)

    with pytest.raises(AssertionError, match="come twice"):
        assert_elastic(lambda rank, world: AnyRank(12, 0), [1, 2])

    class Lost(AnyRank):
        def load_state_dict(self, state: Any) -> None:
            self.at = 11

    with pytest.raises(AssertionError, match="samples are lost"):
        assert_elastic(lambda rank, world: Lost(12, 0), [1])


# ---- refusals ----


def state_of(pipeline: fl.Pipeline, batches: int = 1, **arguments: Any) -> dict[str, Any]:
    with pipeline.batch(4, index=True).loader(**arguments) as loader:
        epoch = iter(loader)
        for _ in range(batches):
            next(epoch)
        return loader.state_dict()


def test_what_differs_is_named() -> None:
    state = state_of(numbers(40).shuffle(7))
    with pytest.raises(StateMismatchError) as raised:
        numbers(41).shuffle(8).batch(5).loader().load_state_dict(state)
    message = str(raised.value)
    assert "number of samples: 40 in the state, 41 here" in message
    assert "order: shuffle(seed=7) in the state, shuffle(seed=8) here" in message
    assert "size=4, drop_last=false" in message
    assert "size=5, drop_last=false" in message


def test_a_loader_that_is_not_strict_takes_the_place_of_other_settings() -> None:
    state = state_of(numbers(40), 3)
    with numbers(40).batch(5, index=True).loader() as loader:
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
        loader.load_state_dict(state, strict=False)
        assert [index for batch in loader for index in index_of(batch)] == list(range(12, 40))
        assert [index for batch in loader for index in index_of(batch)] == list(range(40))
    with numbers(60).shuffle(1).batch(4, index=True).loader() as loader:
        loader.load_state_dict(state, strict=False)
        assert len(list(loader)) == 12
    for size in (4, 5):
        with numbers(8).batch(size, index=True).loader() as loader:
            loader.load_state_dict(state, strict=False)
            # There is nothing left of that epoch.
            assert [index for batch in loader for index in index_of(batch)] == list(range(8))


@pytest.mark.parametrize(
    ("pipeline", "faults", "ranks", "why"),
    [
        (lambda rank, world: numbers(40).shard(rank, world), "raise", "any", ""),
        (lambda rank, world: numbers(40).shard(rank, world), "replace", "any", ""),
        (lambda rank, world: numbers(40).shard(rank, world).shuffle(1), "raise", "any", ""),
        (lambda rank, world: numbers(40).shard(rank, world), "skip", "all", "faults may be skipped"),
        (
            lambda rank, world: numbers(40).shard(rank, world).filter(fl.col("n") < 3),
            "raise",
            "all",
            "samples are left out",
        ),
        (lambda rank, world: numbers(40).shard(rank, world).bucket("n", [2]), "raise", "all", "its buckets"),
        (
            lambda rank, world: numbers(20).concat(numbers(20)).shard(rank, world, "uneven").repeat(2),
            "raise",
            "same",
            "other calls follow",
        ),
    ],
)
def test_a_state_says_when_it_is_made_what_other_ranks_need(
    pipeline: Callable[[int, int], fl.Pipeline], faults: Any, ranks: str, why: str
) -> None:
    policy = fl.FaultPolicy(faults)
    states = [state_of(pipeline(rank, 2), faults=policy) for rank in range(2)]
    assert (states[0]["ranks"], why in states[0].get("why", "")) == (ranks, True)
    with pipeline(0, 3).batch(4, index=True).loader(faults=policy) as loader:
        if ranks == "any":
            loader.load_state_dict(states[1])
        else:
            with pytest.raises(StateMismatchError, match=re.escape(why)):
                loader.load_state_dict(states[1])
        if ranks == "same":
            with pytest.raises(StateMismatchError, match="can only be resumed with 2 ranks"):
                loader.load_state_dict(states)
        else:
            loader.load_state_dict(states)
    start = state_of(pipeline(1, 2), 0, faults=policy)
    assert start["ranks"] == "any"
    with pipeline(0, 3).batch(4, index=True).loader(faults=policy) as loader:
        loader.load_state_dict(start)


def test_whole_shards_are_divided_again_only_between_epochs(records: list[str]) -> None:
    def pipeline(rank: int, world: int) -> fl.Pipeline:
        return fl.tfrecord(records, index=None).shard(rank, world, by="shard")

    with pipeline(0, 3).batch(4, index=True).loader() as loader:
        with pytest.raises(StateMismatchError, match="whole shards are divided"):
            loader.load_state_dict([state_of(pipeline(rank, 2)) for rank in range(2)])
        loader.load_state_dict([state_of(pipeline(rank, 2), 0) for rank in range(2)])


def test_lists_that_are_not_of_all_ranks_are_refused() -> None:
    def pipeline(rank: int, world: int) -> fl.Pipeline:
        return numbers(40).shard(rank, world)

    states = [state_of(pipeline(rank, 3)) for rank in range(3)]
    wrong = {
        "not those of all ranks": [states[:2], [states[0], states[0], states[2]], states + states],
        "rank 0 is in epoch 0, but rank 2 in epoch 2": [[*states[:2], later_epoch(pipeline(2, 3))]],
    }
    with pipeline(0, 2).batch(4, index=True).loader() as loader:
        for message, lists in wrong.items():
            for one in lists:
                with pytest.raises(StateMismatchError, match=message):
                    loader.load_state_dict(one)
        loader.load_state_dict(states[::-1])


def later_epoch(pipeline: fl.Pipeline) -> dict[str, Any]:
    with pipeline.batch(4, index=True).loader() as loader:
        list(loader), list(loader)
        return loader.state_dict()


def test_the_state_of_another_rank_is_refused_if_it_has_samples_of_its_own() -> None:
    def pipeline(rank: int) -> fl.Pipeline:
        return numbers(40).shard(rank, 2).filter(fl.col("n") < 3)

    with pipeline(0).batch(4, index=True).loader() as loader:
        with pytest.raises(StateMismatchError, match="the state is of rank 1 of 2, this is rank 0"):
            loader.load_state_dict(state_of(pipeline(1)))
        loader.load_state_dict([state_of(pipeline(1)), state_of(pipeline(0))])


def test_faults_still_count_on_other_ranks() -> None:
    def pipeline(rank: int, world: int) -> fl.Pipeline:
        return numbers(70).shard(rank, world).map(draws, threads=True)

    any_number = fl.FaultPolicy("skip", limit=None)
    states = [state_of(pipeline(rank, 2), 4, faults=any_number) for rank in range(2)]
    before = sum(state["position"]["faults"] for state in states)
    assert 2 <= before < 10
    for limit, is_raised in ((9, True), (10, False)):
        with pipeline(0, 1).batch(4, index=True).loader(faults=fl.FaultPolicy("skip", limit=limit)) as loader:
            loader.load_state_dict(states)
            if is_raised:
                with pytest.raises(fl.errors.TooManyFaultsError):
                    list(loader)
            else:
                list(loader)


# ---- size and versions ----


def test_states_of_many_samples_are_small() -> None:
    pipeline = fl.arrays({"x": np.zeros(10_000_000, np.uint8)}).shuffle(7).shard(3, 64)
    with pipeline.batch(256).loader(threads=1) as loader:
        epoch = iter(loader)
        next(epoch)
        assert len(json.dumps(loader.state_dict())) < 2000


def arrays_of_golden() -> fl.Pipeline:
    x = np.arange(50, dtype=np.int64)
    return fl.arrays({"x": x, "n": (x % 5).astype(np.int32)})


GOLDENS: dict[str, Callable[[], fl.Loader]] = {
    "arrays": lambda: arrays_of_golden().shuffle(7).batch(6, index=True).loader(seed=5),
    "rank": lambda: arrays_of_golden().shuffle(7).shard(1, 3).batch(4, index=True).loader(),
    "bucket": lambda: arrays_of_golden().bucket("n", [2, 4]).batch(6, index=True).loader(),
    "filter": lambda: arrays_of_golden().filter(fl.col("n") < 3).batch(6, index=True).loader(),
    "map": lambda: (
        arrays_of_golden()
        .map(draws, threads=True)
        .batch(6, index=True)
        .loader(faults=fl.FaultPolicy("skip", limit=None))
    ),
}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_states_of_every_version_still_lead_to_their_batches(path: Path) -> None:
    document = json.loads(path.read_text())
    with GOLDENS[path.stem.split("-")[0]]() as loader:
        loader.load_state_dict(document["state"])
        assert [index_of(batch) for batch in loader] == document["batches"]


def test_a_rank_that_has_finished_its_epoch_waits_for_the_others() -> None:
    """Ranks with buckets have different numbers of batches, so one may be at its end before the others."""

    def make(rank: int, world: int) -> fl.Loader:
        pipeline = numbers(37).shuffle(0).skip(3).repeat(2).shard(rank, world, "pad").bucket("n", [2, 4])
        return pipeline.batch(3, index=True).loader(threads=1, faults=fl.FaultPolicy("skip", limit=None))

    expected, _ = run(make, 1, None, None)
    found: list[int] = []
    states: Any = None
    for world, stop in ((1, 2), (8, 2), (4, 2), (4, None)):
        more, states = run(make, world, states, stop)
        found += more
    assert set(found) == set(expected)
    assert not Counter(expected) - Counter(found)
