"""Misspelt or invalid arguments are refused with a suggestion."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import FaultPolicy
from feedline.errors import InvalidArgumentError
from feedline.testing import chaos
from feedline.torch import DataLoader


def pipeline() -> Any:
    return fl.arrays({"x": np.zeros((8, 2), np.float32)})


def test_a_misspelt_argument_is_refused_with_a_suggestion() -> None:
    made: Any = DataLoader
    refused: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: made([1], retries=3), "DataLoader() ", "did you mean faults=FaultPolicy(retry=...)?"),
        (lambda: made([1], workers=3), "DataLoader() ", "did you mean num_workers=?"),
        (lambda: made([1], batchsize=3), "DataLoader() ", "did you mean batch_size=?"),
        (lambda: FaultPolicy("skip", retries=3), "FaultPolicy() ", "did you mean retry=?"),  # type: ignore[call-arg]
        (lambda: fl.Backoff(max=3), "Backoff() ", "it takes factor, first, jitter, longest"),  # type: ignore[call-arg]
        (lambda: fl.Executor(num_workers=3), "Executor() ", "did you mean workers=?"),  # type: ignore[call-arg]
        (lambda: fl.Executor(timeout=3), "Executor() ", "did you mean deadline=?"),  # type: ignore[call-arg]
        (lambda: pipeline().batch(2).loader(thread=3), "Pipeline.loader() ", "did you mean threads=?"),
        (lambda: pipeline().batch(2).loader(retry=3), "Pipeline.loader() ", "faults=FaultPolicy(retry=...)?"),
        (lambda: pipeline().batch(2, droplast=True), "Pipeline.batch() ", "did you mean drop_last=?"),
        (lambda: pipeline().shuffle(seeds=3), "Pipeline.shuffle() ", "did you mean seed=?"),
        (lambda: pipeline().map(len, thread=True), "Functions.map() ", "did you mean threads=?"),
        (lambda: fl.images(path="x"), "images() ", "it takes folder"),  # type: ignore[call-arg]
        (lambda: fl.tar("x", fields={}), "tar() ", "'fields'"),  # type: ignore[call-arg]
        (lambda: fl.int64(shapes=[]), "int64() ", "did you mean shape=?"),  # type: ignore[call-arg]
    ]
    for call, name, said in refused:
        with pytest.raises(TypeError, match="unexpected keyword argument") as raised:
            call()
        assert str(raised.value).startswith(name), raised.value
        assert said in str(raised.value), raised.value


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float32("-inf")], ids=str)
def test_a_number_that_is_not_finite_is_refused_and_only_its_setting_is_named(number: Any) -> None:
    shown = str(float(number))
    made: Any = DataLoader
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: made([1], num_workers=1, deadline=number), "DataLoader: deadline"),
        (lambda: made([1], num_workers=1, stall=number), "DataLoader: stall"),
        (lambda: made([1], num_workers=1, timeout=number), "DataLoader: timeout"),
        (lambda: made([1], num_workers=0, memory=number), "DataLoader: memory"),
        (lambda: fl.Executor(1, death_window=number), "Executor: death_window"),
        (lambda: fl.Executor(number), "Executor: workers"),
        (lambda: fl.map(abs, [1], workers=1, deadline=number), "Executor: deadline"),
        (lambda: fl.Executor(1).map(abs, [1], timeout=number), "Executor.map: timeout"),
        (lambda: FaultPolicy(limit=number), "FaultPolicy: limit"),
        (lambda: FaultPolicy("skip", backoff=number), "FaultPolicy: backoff"),
        (lambda: FaultPolicy(backoff=fl.Backoff(first=number)), "FaultPolicy: backoff['first']"),
        (
            lambda: FaultPolicy(by_type={"OSError": {"retry": number}}),
            "FaultPolicy: by_type['OSError']['retry']",
        ),
        (lambda: chaos([1], slow_seconds=number), "chaos: slow_seconds"),
        (lambda: pipeline().to_float(mean=number), "to_float: mean"),
        (lambda: pipeline().to_float(mean=(0.5, number)), "to_float: mean[1]"),
        (lambda: pipeline().flip(p=number), "flip: p"),
        (lambda: pipeline().bucket("x", [1, number]), "bucket: boundaries[1]"),
        (lambda: pipeline().batch(number), "batch: size"),
        (lambda: pipeline().batch(2).loader(stall=number), "loader: stall"),
        (lambda: pipeline().map(len).batch(2).loader(workers=1, deadline=number), "loader: deadline"),
    ]
    for call, name in refused:
        with pytest.raises(InvalidArgumentError) as raised:
            call()
        first = str(raised.value).splitlines()[0]
        assert first == f"{name} must be a finite number, got {shown}", first


def test_values_that_are_neither_numbers_nor_text_are_refused_with_their_place() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"^to_float: mean\['a'\]\[1\] must be a number, text, or .* got <obj"
    ):
        pipeline().to_float(mean={"a": [1, object()]})


def test_help_still_shows_the_arguments() -> None:
    assert list(inspect.signature(FaultPolicy).parameters)[:2] == ["action", "retry"]
    assert "num_workers" in inspect.signature(DataLoader).parameters
    assert "threads" in inspect.signature(fl.Pipeline.loader).parameters
    assert (fl.Pipeline.batch.__doc__ or "").strip()


def test_iterating_over_a_pipeline_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"pipeline\.loader\(\)"):
        for _ in pipeline():
            pass


def test_an_invalid_number_of_workers_is_refused_with_its_value() -> None:
    for value in ("many", None, 2.0, [1]):
        with pytest.raises(InvalidArgumentError, match="num_workers must be a whole number") as raised:
            DataLoader([1], num_workers=value)  # type: ignore[arg-type]
        assert f"got {value!r}" in str(raised.value)


def test_sizes_are_parsed_alike_in_every_argument() -> None:
    for size in ("4G", "4GB", "4GiB", "4 GB", "4g", 4 << 30):
        DataLoader([1], num_workers=1, max_worker_memory=size, memory=size)  # type: ignore[arg-type]
        fl.Executor(1, max_worker_memory=size, memory=size).shutdown()
        pipeline().batch(2).loader(memory=size).close()
    refused: list[Callable[[], Any]] = [
        lambda: DataLoader([1], num_workers=1, max_worker_memory="4 apples"),  # type: ignore[arg-type]
        lambda: DataLoader([1], num_workers=1, memory="4 apples"),  # type: ignore[arg-type]
        lambda: fl.Executor(1, max_worker_memory="4 apples"),
    ]
    for call in refused:
        with pytest.raises(InvalidArgumentError, match="4 apples"):
            call()


def test_arguments_that_need_workers_are_refused_without_workers() -> None:
    for name, value in (
        ("deadline", 5.0),
        ("stall", 5.0),
        ("max_worker_memory", "4GiB"),
        ("max_samples_per_worker", 100),
    ):
        arguments: dict[str, Any] = {name: value}
        with pytest.raises(InvalidArgumentError, match=f"{name}={value!r} is for workers") as raised:
            DataLoader([1], **arguments)  # type: ignore[arg-type]
        assert "num_workers=1" in raised.value.hint
        DataLoader([1], num_workers=1, **arguments)  # type: ignore[arg-type]
    DataLoader([1], stall=None)  # type: ignore[arg-type]
    DataLoader([1], stall=30)  # type: ignore[arg-type]


HALF = "\ud800"
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: arrays().batch(2).loader().load_state_dict(HALF), "not a state"),  # type: ignore[arg-type]
    (lambda: arrays().take(HALF), "take"),  # type: ignore[arg-type]
    (lambda: arrays().cast(HALF), "cast"),
    (lambda: arrays().repeat(10**5000), "times must fit into 64 bits"),
    (lambda: arrays().shard(np.arange(3), 2), "shard"),  # type: ignore[arg-type]
    (lambda: fl.arrays({HALF: np.arange(3)}), "a name must be text"),
    (lambda: fl.mix(3), "mix: parts must be"),  # type: ignore[arg-type]
    (lambda: fl.files(["a"], labels=3), "labels must be"),  # type: ignore[arg-type]
    (lambda: fl.jsonl("a", manifest=HALF), "no file can have this name"),
    (lambda: fl.csv("a", delimiter=HALF), "delimiter must be"),
    (lambda: fl.csv("a", index=np.arange(3)), "index must be"),  # type: ignore[arg-type]
    (lambda: fl.tokens("a", "uint16", 10**30), "length must be"),
    (lambda: fl.tokens("a", HALF, 3), "dtype must be"),
    (lambda: fl.npy(HALF), "dtype must be"),
    (lambda: fl.FaultPolicy(np.arange(3)), "action must be"),  # type: ignore[arg-type]
    (lambda: fl.FaultPolicy(backoff=np.arange(3)), "backoff"),  # type: ignore[arg-type]
    (lambda: fl.FaultPolicy.parse(HALF), "cannot be read"),
    (lambda: fl.Executor(1, "none"), "mp_context must be"),
    (lambda: fl.Executor(1, 3), "mp_context must be"),
    (lambda: fl.Executor(1, stall=10**400), "stall must fit"),
]


def arrays() -> fl.Pipeline:
    return fl.arrays({"x": np.arange(3)})


def test_text_and_numbers_that_only_python_can_represent_are_refused_by_name() -> None:
    for mistake, said in MISTAKES:
        with pytest.raises(fl.FeedlineError, match=said):
            mistake()


@pytest.mark.parametrize("header", [b"{'shape': (96", b"}", b"{'descr': '<u2', 'shape': (-1,)}", b"\0"])
def test_an_npy_file_with_a_corrupt_header_is_an_invalid_source(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(fl.errors.InvalidSourceError, match=r"a\.npy"):
        fl.tokens(path, length=8)
