"""Python functions in a native pipeline: arguments, results and faults."""

from __future__ import annotations

import functools
import json
import os
import random as python_random
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import feedline as fl
import numpy as np
import pytest
import torch
from feedline.errors import (
    ClosedError,
    InvalidArgumentError,
    NoReplacementError,
    NotPicklableError,
    ShapeMismatchError,
    StateMismatchError,
    TooManyFaultsError,
)
from filled import filled_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, write

PLACES = [pytest.param(False, id="workers"), pytest.param(True, id="threads")]
SKIP = fl.FaultPolicy("skip", limit=None)
FEW = 23
NONSENSE: Any = 5


def numbers(count: int = FEW) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(count)})


def xs(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def chunks(values: Iterable[int], size: int) -> list[list[int]]:
    values = list(values)
    return [values[start : start + size] for start in range(0, len(values), size)]


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "y": sample["x"] * 2}


def raises_at(*bad: int, error: type[Exception] = ValueError) -> Callable[[Any], Any]:
    def check(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["x"]) in bad:
            raise error(f"{int(sample['x'])} is bad")
        return sample

    return check


def raises_in_batch(*bad: int) -> Callable[[Any], Any]:
    def check(batch: dict[str, Any]) -> dict[str, Any]:
        found = [x for x in batch["x"].tolist() if x in bad]
        if found:
            raise ValueError(f"{found} in a batch")
        return batch

    return check


# ---- arguments and results ----


@pytest.mark.parametrize("threads", PLACES)
def test_functions_before_and_after_batch_are_called_in_order(threads: bool) -> None:
    pipeline = (
        numbers()
        .shuffle(5)
        .map(doubled, threads=threads)
        .map(lambda sample: {**sample, "z": sample["y"] + 1}, threads=threads)
        .batch(4)
        .map_batch(lambda batch: {**batch, "sum": batch["z"].sum()}, threads=threads)
        .map_batch(lambda batch: {**batch, "more": batch["sum"] + 1}, threads=threads)
    )
    with pipeline.loader(workers=2) as loader:
        batches = list(loader)

    plain = list(numbers().shuffle(5).batch(4).loader())
    assert xs(batches) == xs(plain)
    assert len(loader) == len(batches)
    for batch in batches:
        np.testing.assert_array_equal(batch["z"], 2 * batch["x"] + 1)
        assert batch["more"] == batch["z"].sum() + 1


def test_functions_run_in_worker_processes_and_with_threads_in_this_one() -> None:
    def where(sample: dict[str, Any]) -> dict[str, Any]:
        return {"pid": os.getpid(), "thread": threading.current_thread().name}

    with numbers().map(where).batch(FEW).loader(workers=1) as loader:
        (batch,) = loader
        assert set(batch["pid"]) == {loader.workers[0].pid}
    with numbers().map(where, threads=True).batch(FEW).loader(workers=1) as loader:
        (batch,) = loader
        assert set(batch["pid"]) == {os.getpid()}
        assert set(batch["thread"]) == {"feedline-map-0"}


@pytest.mark.parametrize("threads", PLACES)
def test_a_function_gets_one_decoded_image_in_its_own_size(threads: bool, photos: list[Path]) -> None:
    def look(sample: dict[str, Any]) -> dict[str, Any]:
        image = sample["image"]
        return {"shape": np.array(image.shape), "corner": image[:8, :8], "keys": sorted(sample)}

    pipeline = fl.files(photos, labels=list(range(24))).decode().map(look, threads=threads).batch(5)
    with pipeline.loader(workers=2) as loader:
        batches = list(loader)

    plain = [sample for batch in fl.files(photos).decode().batch(1).loader() for sample in batch["image"]]
    shapes = [tuple(shape) for batch in batches for shape in batch["shape"]]
    assert shapes == [image.shape for image in plain]
    assert len(set(shapes)) == 24
    corners = [corner for batch in batches for corner in batch["corner"]]
    np.testing.assert_array_equal(corners, [image[:8, :8] for image in plain])
    assert batches[0]["keys"][0] == ["image", "label"]


@pytest.mark.parametrize("threads", PLACES)
def test_functions_get_files_that_are_not_decoded_as_bytes(threads: bool, photos: list[Path]) -> None:
    pipeline = fl.files(photos).map(lambda sample: len(sample["bytes"]), threads=threads).batch(24)
    with pipeline.loader(workers=1) as loader:
        lengths: Any = next(iter(loader))
    assert lengths.tolist() == [path.stat().st_size for path in photos]


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("threads", PLACES)
def test_arrays_numbers_and_tensors_are_stacked_and_everything_else_is_a_list(threads: bool) -> None:
    def make(sample: dict[str, Any]) -> Any:
        x = int(sample["x"])
        return Pair(
            {"array": np.full((2, 3), x, np.float32), "int": x, "float": x / 2, "bool": x > 1},
            (torch.full((2,), x), f"text {x}", [x], None, np.str_("no number"), 1 << 80),
        )

    with numbers(3).map(make, threads=threads).batch(3).loader(workers=1) as loader:
        (pair,) = loader
    assert isinstance(pair, Pair)
    assert pair.left["array"].shape == (3, 2, 3)
    assert pair.left["array"].dtype == np.float32
    assert [pair.left[name].tolist() for name in ("int", "float", "bool")] == [
        [0, 1, 2],
        [0.0, 0.5, 1.0],
        [False, False, True],
    ]
    tensor, text, lists, nothing, words, large = pair.right
    np.testing.assert_array_equal(tensor, [[0, 0], [1, 1], [2, 2]])
    assert (text, lists, nothing) == (["text 0", "text 1", "text 2"], [[0], [1], [2]], [None] * 3)
    assert (list(words), large) == (["no number"] * 3, [1 << 80] * 3)


@pytest.mark.parametrize("threads", PLACES)
def test_the_view_for_torch_has_tensors_on_the_same_memory(threads: bool) -> None:
    pipeline = numbers().map(lambda sample: {**sample, "name": "a"}, threads=threads).batch(4)
    with pipeline.loader(workers=1) as loader:
        batches = list(loader.torch())
    assert all(isinstance(batch["x"], torch.Tensor) for batch in batches)
    assert torch.cat([batch["x"] for batch in batches]).tolist() == list(range(FEW))
    assert batches[0]["name"] == ["a"] * 4


@pytest.mark.parametrize("threads", PLACES)
def test_changes_in_place_affect_only_the_functions_own_sample(threads: bool) -> None:
    source = np.arange(FEW * 5000, dtype=np.float64).reshape(FEW, 5000)

    def change(sample: dict[str, Any]) -> dict[str, Any]:
        sample["a"] *= 2
        return sample

    with fl.arrays({"a": source.copy()}).map(change, threads=threads).batch(4).loader(workers=2) as loader:
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate([batch["a"] for batch in loader]), source * 2)


@pytest.mark.parametrize("threads", PLACES)
def test_kept_batches_do_not_change(threads: bool) -> None:
    def fill(sample: dict[str, Any]) -> dict[str, Any]:
        return {"a": np.full(20_000, sample["x"])}

    with numbers(60).map(fill, threads=threads).batch(4).loader(workers=2) as loader:
        kept = [batch["a"] for _ in range(3) for batch in loader]
    for batch, wanted in zip(kept, chunks(range(60), 4) * 3, strict=True):
        np.testing.assert_array_equal(batch, np.repeat(np.array(wanted)[:, None], 20_000, 1))


@pytest.mark.parametrize("threads", PLACES)
def test_images_of_different_shapes_are_padded_on_request(threads: bool, photos: list[Path]) -> None:
    pipeline = fl.files(photos).decode().map(same, threads=threads)
    with pipeline.batch(5, pad=True).loader(workers=2) as loader:
        ours = list(loader)
    with fl.files(photos).decode().batch(5, pad=True).map_batch(same).loader(workers=1) as loader:
        others = list(loader)
    theirs = list(fl.files(photos).decode().batch(5, pad=True).loader())
    for batches in (ours, others):
        assert len(batches) == len(theirs)
        for one, other in zip(batches, theirs, strict=True):
            assert list(one) == list(other)
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("threads", PLACES)
def test_map_batch_alone_gets_the_batches_of_the_native_pipeline(threads: bool, photos: list[Path]) -> None:
    native = fl.files(photos, labels=list(range(24))).shuffle(2).decode().center_crop(40).batch(5, index=True)
    with native.map_batch(same, threads=threads).loader(workers=2) as loader:
        ours = list(loader)
    for one, other in zip(ours, native.loader(), strict=True):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


# ---- randomness ----


def draw(sample: dict[str, Any], random: np.random.Generator, context: Any) -> dict[str, Any]:
    return {
        "x": sample["x"],
        "random": random.integers(1 << 60),
        "epoch": context.epoch,
        "index": context.index,
        "position": context.position,
    }


def draw_batch(batch: dict[str, Any], random: np.random.Generator, context: Any) -> dict[str, Any]:
    return {**batch, "drawn": random.integers(1 << 60), "indices": context.index, "first": context.position}


def drawn(workers: int, threads: bool, size: int = 4) -> list[Any]:
    pipeline = (
        numbers().shuffle(9).map(draw, threads=threads).batch(size).map_batch(draw_batch, threads=threads)
    )
    with pipeline.loader(workers=workers) as loader:
        return [batch for _ in range(2) for batch in loader]


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    one = drawn(1, False)
    for others in (drawn(3, False), drawn(2, True)):
        for ours, theirs in zip(one, others, strict=True):
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])
    of_samples = np.concatenate([batch["random"] for batch in one])
    assert len(np.unique(of_samples)) == 2 * FEW
    np.testing.assert_array_equal(of_samples, np.concatenate([b["random"] for b in drawn(2, False, size=7)]))
    assert len({int(batch["drawn"]) for batch in one}) == len(one)


def test_the_context_has_the_epoch_and_index_of_the_sample() -> None:
    batches = drawn(2, False)
    assert np.concatenate([batch["position"] for batch in batches]).tolist() == list(range(2 * FEW))
    assert np.concatenate([batch["epoch"] for batch in batches]).tolist() == [0] * FEW + [1] * FEW
    for batch in batches:
        np.testing.assert_array_equal(batch["index"], batch["x"])
        np.testing.assert_array_equal(batch["indices"], batch["x"])
        assert batch["first"] == batch["position"][0]


def test_global_generators_are_seeded_for_each_sample_in_workers() -> None:
    def draws(sample: dict[str, Any]) -> dict[str, Any]:
        return {"r": python_random.random(), "n": np.random.random(), "t": torch.rand(())}

    def made(workers: int, size: int) -> dict[str, Any]:
        with numbers().map(draws).batch(size).loader(workers=workers, seed=3) as loader:
            batches = list(loader)
        return {name: np.concatenate([batch[name] for batch in batches]) for name in "rnt"}

    one, two = made(1, 4), made(3, 5)
    for name in "rnt":
        np.testing.assert_array_equal(one[name], two[name])
        assert len(np.unique(one[name])) == FEW


def test_normal_numbers_of_another_bit_generator_depend_on_the_position_alone() -> None:
    def made(workers: int, size: int) -> Any:
        draws = numbers().map(lambda sample: {"n": np.random.randn()})
        with draws.batch(size).loader(workers=workers, seed=3) as loader:
            return np.concatenate([batch["n"] for batch in loader])

    before = np.random.mtrand.get_bit_generator()
    np.random.mtrand.set_bit_generator(np.random.PCG64(0))
    try:
        right = made(1, 4)
        # Normal numbers are drawn in pairs: workers are forked while the second number of a pair is pending.
        np.random.randn()
        np.testing.assert_array_equal(made(3, 5), right)
    finally:
        np.random.mtrand.set_bit_generator(before)


# ---- faults ----


@pytest.mark.parametrize("threads", PLACES)
@pytest.mark.parametrize("with_batches", [False, True])
def test_the_slots_of_skipped_samples_are_filled_from_the_end_of_the_epoch(
    threads: bool, with_batches: bool
) -> None:
    pipeline = numbers(40).map(raises_at(0, 5, 6, 17, 39), threads=threads).batch(6)
    if with_batches:
        pipeline = pipeline.map_batch(lambda b: {**b, "sum": b["x"].sum()}, threads=threads)
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        batches = list(loader)
        report = loader.report()

    expected = filled_batches(range(40), {0, 5, 6, 17, 39}, 6)
    assert xs(batches) == expected
    assert (report.delivered, report.skipped, report.expected) == (35, 5, 40)
    assert [fault.index for fault in report.faults] == [0, 5, 6, 17, 39]
    assert {(fault.stage, fault.kind) for fault in report.faults} == {("worker", "ValueError")}
    assert "raise error(" in str(report.faults[0].traceback)
    if with_batches:
        assert [batch["sum"] for batch in batches] == [sum(part) for part in expected]


@pytest.mark.parametrize("threads", PLACES)
def test_an_exception_comes_after_the_batches_before_it_and_names_the_sample(
    threads: bool, photos: list[Path]
) -> None:
    def check(sample: dict[str, Any]) -> Any:
        if sample["label"] == 11:
            raise KeyError("of the user")
        return sample["label"]

    pipeline = fl.files(photos, labels=list(range(24))).map(check, threads=threads).batch(4)
    with pipeline.loader(workers=3) as loader:
        epoch: Any = iter(loader)
        assert [next(epoch).tolist(), next(epoch).tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(KeyError, match="of the user") as raised:
            next(epoch)
        assert f"at sample 11 ({photos[11]})" in str(raised.value)
        assert (raised.value.index, raised.value.path) == (11, str(photos[11]))  # type: ignore[attr-defined]
        with pytest.raises(StopIteration):
            next(epoch)


@pytest.mark.parametrize("threads", PLACES)
def test_native_faults_and_faults_of_functions_are_judged_together_in_order(
    threads: bool, tmp_path: Path
) -> None:
    content = encoded(photo(1, 20, 20))
    files = {f"{number:02}.jpg": content[:100] if number % 5 == 0 else content for number in range(30)}
    paths = write(tmp_path, files)

    def check(sample: dict[str, Any]) -> Any:
        if sample["label"] % 7 == 0:
            raise ValueError("seven")
        return sample

    pipeline = fl.files(paths, labels=list(range(30))).decode().map(check, threads=threads).batch(4)
    quarantine = tmp_path / "bad.jsonl"
    policy = fl.FaultPolicy("skip", quarantine=quarantine)
    with pipeline.loader(workers=3, faults=policy) as loader:
        batches = [batch["label"].tolist() for batch in loader]
        report = loader.report()
    bad = [number for number in range(30) if number % 5 == 0 or number % 7 == 0]
    assert batches == filled_batches(range(30), bad, 4)
    assert (report.skipped, report.delivered, report.quarantined) == (len(bad), 30 - len(bad), len(bad))
    lines = [json.loads(line) for line in quarantine.read_text().splitlines()]
    judged = [line["index"] for line in lines]
    assert sorted(judged) == bad
    assert [line["path"] for line in lines] == [str(paths[number]) for number in judged]

    for count in (1, 3):
        policy = fl.FaultPolicy("skip", limit=4)
        with pipeline.loader(workers=count, threads=count, faults=policy) as loader:
            seen: list[int] = []
            with pytest.raises(TooManyFaultsError) as raised:
                seen.extend(int(label) for batch in loader for label in batch["label"])
            # The fifth bad sample, in the order of judging.
            assert (raised.value.index, seen) == (judged[4], [*batches[0], *batches[1]])

    with pipeline.loader(workers=2, exclude=quarantine) as loader:
        good = [number for number in range(30) if number not in bad]
        assert [batch["label"].tolist() for batch in loader] == chunks(good, 4)


@pytest.mark.parametrize("threads", PLACES)
def test_a_native_fault_is_raised_after_the_batches_before_it(threads: bool, tmp_path: Path) -> None:
    content = encoded(photo(1, 20, 20))
    paths = write(tmp_path, {f"{number}.jpg": b"no" if number == 7 else content for number in range(9)})
    pipeline = fl.files(paths, labels=list(range(9))).decode().map(same, threads=threads).batch(3)
    with pipeline.loader(workers=2) as loader:
        epoch = iter(loader)
        assert [next(epoch)["label"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(fl.errors.UnknownFormatError) as raised:
            next(epoch)
    assert raised.value.index == 7
    assert loader.report().delivered == 6


class Flaky:
    """Fails at some samples the first few times."""

    def __init__(self, folder: Path, times: int, *bad: int) -> None:
        self.folder = folder
        self.times = times
        self.bad = bad

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        x = int(sample["x"].reshape(-1)[0])
        sample["x"] += 100
        marks = len(list(self.folder.glob(f"{x}.*")))
        if x in self.bad and marks < self.times:
            (self.folder / f"{x}.{marks}").touch()
            raise ConnectionError(f"{x} is unavailable")
        return sample


@pytest.mark.parametrize("threads", PLACES)
@pytest.mark.parametrize("call", ["map", "map_batch", "both"])
def test_a_retry_gets_the_sample_unchanged(threads: bool, call: str, tmp_path: Path) -> None:
    flaky = Flaky(tmp_path, 2, 0, 8)
    source = fl.arrays({"x": np.repeat(np.arange(16)[:, None], 1000, 1)})
    if call == "both":
        pipeline = source.map(same, threads=threads).batch(4).map_batch(flaky, threads=threads)
    elif call == "map":
        pipeline = source.map(flaky, threads=threads).batch(4)
    else:
        pipeline = source.batch(4).map_batch(flaky, threads=threads)
    policy = fl.FaultPolicy("skip", retry=2, backoff=0.001)
    with pipeline.loader(workers=2, faults=policy) as loader:
        batches = list(loader)
        report = loader.report()
    assert [batch["x"][:, 0].tolist() for batch in batches] == chunks(range(100, 116), 4)
    assert (report.delivered, report.skipped, report.retried) == (16, 0, 2)


@pytest.mark.parametrize("threads", PLACES)
@pytest.mark.parametrize("maps", [False, True])
def test_the_samples_of_a_bad_batch_are_skipped_and_others_fill_it(threads: bool, maps: bool) -> None:
    pipeline = numbers().map(same, threads=threads) if maps else numbers()
    pipeline = pipeline.batch(4).map_batch(raises_in_batch(9, 22), threads=threads)
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        assert xs(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [18, 17, 16, 15], [12, 13, 14]]
        report = loader.report()
    assert [fault.index for fault in report.faults] == [8, 9, 10, 11, 19, 20, 21, 22]
    assert (report.delivered, report.skipped) == (15, 8)
    with (
        pipeline.loader(workers=2) as loader,
        pytest.raises(ValueError, match=r"\[9\] in a batch") as raised,
    ):
        list(loader)
    assert raised.value.index == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("threads", PLACES)
def test_another_good_sample_takes_the_slot_of_a_replaced_one(threads: bool) -> None:
    policy, bad = fl.FaultPolicy("replace", limit=None), (0, 3, 4, 11)
    pipeline = numbers(12).map(raises_at(*bad), threads=threads).batch(4)
    with pipeline.loader(workers=2, faults=policy) as loader:
        came = [x for batch in xs(loader) for x in batch]
        report = loader.report()
    assert [x for at, x in enumerate(came) if at not in bad] == [1, 2, 5, 6, 7, 8, 9, 10]
    assert not set(came) & set(bad)
    assert (report.delivered, report.replaced, report.skipped) == (12, 4, 0)
    with pipeline.loader(workers=1, faults=policy) as loader:
        assert [x for batch in xs(loader) for x in batch] == came
    with (
        numbers(4)
        .map(raises_at(*range(4)), threads=threads)
        .batch(4)
        .loader(faults=policy, workers=1) as loader,
        pytest.raises(NoReplacementError),
    ):
        list(loader)


@pytest.mark.parametrize("threads", PLACES)
def test_a_sample_of_another_shape_is_a_fault_that_names_both(threads: bool) -> None:
    def shaped(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": sample["x"], "a": np.zeros(3 if sample["x"] in (2, 10) else 5)}

    pipeline = numbers(12).map(shaped, threads=threads).batch(4)
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        assert xs(loader) == filled_batches(range(12), {2, 10}, 4)
        (fault, _) = loader.report().faults
        assert (fault.kind, fault.index, fault.stage) == ("ShapeMismatchError", 2, "collate")
    with (
        pipeline.loader(workers=2) as loader,
        pytest.raises(ShapeMismatchError, match=r"sample 2 .*\[3\], not.*\[5\]"),
    ):
        list(loader)


@pytest.mark.parametrize("threads", PLACES)
def test_fields_that_are_missing_or_of_another_type_are_faults(threads: bool) -> None:
    def fields(sample: dict[str, Any]) -> dict[str, Any]:
        x = int(sample["x"])
        return {"x": np.float32(x) if x == 2 else x, **({} if x == 5 else {"y": 1})}

    with numbers(8).map(fields, threads=threads).batch(8).loader(workers=1, faults=SKIP) as loader:
        assert xs(loader) == filled_batches(range(8), {2, 5}, 8)
        reasons = [fault.reason for fault in loader.report().faults]
    assert reasons[0].endswith("of its batch: x is a number of float32, not a number of int64 or float64")
    assert reasons[1].endswith("of its batch: it lacks 'y'")


@pytest.mark.parametrize("threads", PLACES)
def test_a_function_that_returns_nothing_is_a_clear_error(threads: bool) -> None:
    def forgets(sample: dict[str, Any]) -> None:
        sample["x"] += 1

    with (
        numbers().map(forgets, threads=threads).batch(4).loader(workers=1) as loader,
        pytest.raises(TypeError, match=r"forgets returned None for a sample"),
    ):
        list(loader)


@pytest.mark.parametrize("threads", PLACES)
def test_without_fill_samples_stay_in_their_batches(threads: bool) -> None:
    policy = fl.FaultPolicy("skip", fill=False)
    bad = (1, 8, 9, 10, 11, 20)
    for with_batches in (False, True):
        pipeline = numbers().map(raises_at(*bad), threads=threads).batch(4)
        if with_batches:
            pipeline = pipeline.map_batch(same, threads=threads)
        with pipeline.loader(workers=2, faults=policy) as loader:
            wanted = [[x for x in part if x not in bad] for part in chunks(range(FEW), 4)]
            assert xs(loader) == [part for part in wanted if part]


@pytest.mark.parametrize("threads", PLACES)
def test_a_last_short_batch_is_dropped_on_request_whatever_was_skipped(threads: bool) -> None:
    pipeline = numbers(12).map(raises_at(3), threads=threads).batch(4, drop_last=True)
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        assert xs(loader) == [[0, 1, 2, 11], [4, 5, 6, 7]]
        report = loader.report()
    assert (report.delivered, report.skipped, report.dropped, report.pending) == (8, 1, 3, 0)


# ---- filters ----


@pytest.mark.parametrize("threads", PLACES)
def test_a_filter_leaves_out_samples_and_the_others_move_up(threads: bool) -> None:
    pipeline = (
        numbers()
        .filter(lambda sample: sample["x"] % 3 > 0, threads=threads)
        .map(raises_at(4), threads=threads)
        .filter(lambda sample: sample["x"] != 10, threads=threads)
        .batch(4)
        .map_batch(same, threads=threads)
    )
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        assert xs(loader) == chunks([x for x in range(FEW) if x % 3 > 0 and x not in (4, 10)], 4)
        report = loader.report()
    assert (report.delivered, report.skipped, report.filtered, report.expected) == (13, 1, 9, 14)


# ---- resuming ----


def run_of(faults: Iterable[int], size: int, with_batches: bool, filters: bool, threads: bool = False) -> Any:
    pipeline = numbers(31).shuffle(4)
    if filters:
        pipeline = pipeline.filter(lambda sample: sample["x"] % 4 != 1, threads=threads)
    pipeline = pipeline.map(draw, threads=threads).map(raises_at(*faults), threads=threads).batch(size)
    return pipeline.map_batch(draw_batch, threads=threads) if with_batches else pipeline


def same_batches(ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(
        list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("policy", ["skip", "replace"])
@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(
    st.sets(st.integers(0, 30), max_size=9),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 100),
)
def test_a_run_resumed_after_any_batch_continues_identically(
    policy: str, faults: set[int], size: int, with_batches: bool, filters: bool, stop: int
) -> None:
    pipeline = run_of(faults, size, with_batches, filters, threads=True)
    made = functools.partial(pipeline.loader, faults=fl.FaultPolicy(policy, limit=None))  # type: ignore[arg-type]
    with made(workers=2) as loader:
        whole, states = [], [loader.state_dict()]
        for _ in range(2):
            for batch in loader:
                whole.append(batch)
                states.append(loader.state_dict())
    at = stop % len(whole)
    with made(workers=1) as loader:
        loader.load_state_dict(states[at])
        rest = list(loader)
        rest += list(loader) if len(rest) + at < len(whole) else []
    assert same_batches(rest, whole[at:])


def test_samples_made_ahead_do_not_count_as_delivered() -> None:
    with run_of([3, 4], 3, True, False).loader(workers=3, faults=SKIP) as loader:
        whole = list(loader)
        assert len(whole) == 10
        before = loader.state_dict()
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        rest = list(epoch)
        places = [(state["epoch"], state["position"]["slot"]) for state in (before, state)]
        assert places == [(1, 0), (1, 3)]
        assert loader.report().delivered == 2 * 29
        loader.load_state_dict(state)
        assert same_batches(list(loader), rest)


def test_a_state_of_other_functions_is_refused() -> None:
    with numbers().map(doubled).batch(4).loader() as loader:
        state = loader.state_dict()
    for other in (numbers().map(same), numbers().map(doubled).map(doubled), numbers()):
        with other.batch(4).loader() as loader, pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
    with numbers().map(doubled, threads=True).batch(4).loader() as loader:
        loader.load_state_dict(state)


@pytest.mark.parametrize("threads", PLACES)
def test_ranks_have_equal_batches_whatever_they_skip(threads: bool) -> None:
    def rank(number: int, bad: tuple[int, ...], with_batches: bool) -> tuple[list[list[int]], Any]:
        pipeline = numbers(26).shuffle(1).shard(number, 2).map(raises_at(*bad), threads=threads).batch(4)
        if with_batches:
            pipeline = pipeline.map_batch(raises_in_batch(99), threads=threads)
        with pipeline.loader(workers=2, faults=SKIP) as loader:
            return xs(loader), loader.report()

    for with_batches in (False, True):
        for bad in ((), (1, 2, 3), tuple(range(9)), tuple(range(20))):
            made = [rank(number, bad, with_batches) for number in range(2)]
            assert [[len(batch) for batch in batches] for batches, _ in made] == [[4, 4, 4, 1]] * 2
            good = {x for batches, _ in made for batch in batches for x in batch}
            assert good == set(range(26)) - set(bad)
            assert sum(report.skipped for _, report in made) == len(bad)
            assert [report.repeated for _, report in made] == [report.skipped for _, report in made]


# ---- refusals ----


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: numbers().map(NONSENSE), "map: give a function of a sample, got 5"),
        (lambda: numbers().map(lambda: 1), "cannot be called with a sample: it takes ()"),
        (lambda: numbers().map(lambda a, b: 1), "cannot be called with a sample: it takes (a, b)"),
        (lambda: numbers().map(same, threads=NONSENSE), "map: threads must be True or False, got 5"),
        (lambda: numbers().batch(2).map(same), "map cannot follow batch"),
        (lambda: numbers().batch(2).map(same), "map_batch(fn)"),
        (lambda: numbers().batch(2).filter(same), "filter cannot follow batch"),
        (lambda: numbers().map_batch(same), "map_batch needs batches"),
        (lambda: numbers().map(same).shuffle(1), "shuffle cannot follow map"),
        (lambda: fl.files(["a"]).map(same).decode(), "call decode before map(fn)"),
        (lambda: numbers().map(same).map(doubled, threads=True), "threads=true for"),
        (lambda: numbers().batch(2).loader(workers=2), "workers is for functions of Python"),
        (lambda: numbers().map(same).batch(2).loader(workers=0), "got 0"),
        (lambda: numbers().map(same).batch(2).loader(deadline=-1), "got -1"),
        (lambda: numbers().map(same).batch(2).loader(mp_context="thread"), "got 'thread'"),
        (lambda: numbers().map(same, threads=True).batch(2).loader(deadline=1), "deadline is for worker"),
        (lambda: numbers().map(same).loader(), "there is no batch size"),
    ],
)
def test_a_wrong_call_is_refused_at_once_with_a_hint(build: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        build()
    assert said in str(raised.value)


def test_settings_and_functions_are_shown() -> None:
    pipeline = numbers().map(doubled).filter(functools.partial(same)).batch(4).map_batch(Flaky(Path(), 1))
    with pipeline.loader(workers=2, deadline=5.0) as loader:
        for text in (repr(loader), repr(pipeline)):
            assert ".map(function='test_map.doubled')" in text
            assert "filter(function='functools.partial(test_map.same)')" in text
            assert "map_batch(function='test_map.Flaky')" in text
        assert "workers=2, deadline=5.0" in repr(loader)


def test_a_result_that_cannot_be_pickled_is_named() -> None:
    with (
        numbers().map(lambda sample: {"lock": threading.Lock()}).batch(2).loader(workers=1) as loader,
        pytest.raises(NotPicklableError, match=r"\['lock'\]"),
    ):
        list(loader)


@pytest.mark.parametrize("threads", PLACES)
def test_a_closed_loader_raises_closed_error(threads: bool) -> None:
    loader = numbers().map(same, threads=threads).batch(2).loader(workers=1)
    epoch = iter(loader)
    next(epoch)
    loader.close()
    assert list(epoch) == []
    with pytest.raises(ClosedError):
        iter(loader)


def test_starting_another_epoch_ends_the_one_before() -> None:
    with numbers().map(same).batch(2).loader(workers=2) as loader:
        first = iter(loader)
        next(first)
        assert xs(loader) == chunks(range(FEW), 2)
        assert list(first) == []
        report = loader.report()
    assert (report.epochs, report.completed) == (2, 1)


def test_a_context_that_spawns_sends_the_functions_by_value() -> None:
    factor = 3
    pipeline = numbers().map(lambda sample: {"x": sample["x"] * factor}).batch(FEW)
    with pipeline.loader(workers=1, mp_context="spawn") as loader:
        assert xs(loader) == [[factor * x for x in range(FEW)]]


def test_faults_and_epochs_are_events() -> None:
    reported: list[str] = []
    with (
        numbers()
        .map(raises_at(3))
        .batch(4)
        .loader(workers=1, faults=SKIP, on_event=lambda event: reported.append(event.name)) as loader
    ):
        list(loader)
    assert reported == ["epoch_started", "sample_skipped", "epoch_ended"]


def test_threads_run_functions_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def meet(sample: dict[str, Any]) -> dict[str, Any]:
        barrier.wait()
        return sample

    with numbers(6).map(meet, threads=True).batch(2).loader(workers=3) as loader:
        assert xs(loader) == chunks(range(6), 2)


def test_the_report_has_the_slowest_samples() -> None:
    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.2 if sample["x"] == 13 else 0)
        return sample

    with numbers().map(slow).batch(4).loader(workers=1) as loader:
        list(loader)
        slowest = {one.index: one.seconds for one in loader.report().slowest}
    # On a busy machine, other samples may be slow, too.
    assert slowest[13] >= 0.2
