"""The attributes of a data set that forked workers would copy, estimated without calling the user's code."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import _copied, _native
from feedline._copied import copied_attributes
from feedline.errors import CopiedMemoryWarning
from feedline.torch import DataLoader
from torch.utils.data import ConcatDataset, Dataset, Subset


class Holding(Dataset[int]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def real_bytes(part: Any, seen: set[int]) -> int:
    """The bytes of all objects in a container, without the container itself."""
    total = 0
    for element in [*part.keys(), *part.values()] if isinstance(part, dict) else part:
        if id(element) in seen or (type(element) is int and element < 257):
            continue
        seen.add(id(element))
        total += sys.getsizeof(element)
        if isinstance(element, (list, tuple, dict)):
            total += real_bytes(element, seen)
    return total


SAMPLES: dict[str, tuple[Any, str]] = {
    "strings": ([f"train/{number:040}" for number in range(50_000)], "strings"),
    "tuples": ([(f"train/{number:040}", number % 10) for number in range(50_000)], "tuples"),
    "floats": ([float(number) for number in range(100_000)], "floats"),
    "dicts": (
        [{"path": f"{number:050}", "box": [number, 1000 + number]} for number in range(20_000)],
        "dicts",
    ),
    "by_name": ({f"name {number:020}": (number, number + 1000) for number in range(30_000)}, "tuples"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_estimate_is_near_the_real_size(name: str) -> None:
    held, kind = SAMPLES[name]
    (found,) = copied_attributes(Holding(**{name: held}))
    assert (found.path, found.count, found.kind) == (f"dataset.{name}", len(held), kind)
    real = real_bytes(held, set())
    assert 0.75 * real < found.bytes < 1.35 * real, (found.bytes, real)


def test_attributes_of_data_sets_inside_are_found() -> None:
    inner = Holding(samples=SAMPLES["tuples"][0])
    outer: Any = ConcatDataset([Subset(inner, [1, 2]), Holding(names={"all": SAMPLES["strings"][0]})])
    outer.own = SAMPLES["floats"][0]
    assert {found.path for found in copied_attributes(outer)} == {
        "dataset.datasets[0].dataset.samples",
        "dataset.datasets[1].names['all']",
        "dataset.own",
    }


def test_what_is_shared_is_not_named() -> None:
    strings = SAMPLES["strings"][0]
    held = {
        "packed": fl.pack(strings),
        "array": np.zeros(10**6),
        "same": ["the same string"] * 10**6,
        "small": [1, 2, 3] * 10**5,
        "few": strings[:100],
    }
    assert copied_attributes(Holding(**held)) == []
    objects = np.array(strings, dtype=object)
    (found,) = copied_attributes(Holding(objects=objects))
    assert found.path == "dataset.objects"
    assert found.kind == "strings"


class Hostile(Dataset[int]):
    """Raises whenever its code is called."""

    class Rows(list[Any]):
        def _raise(self, *arguments: Any) -> Any:
            raise AssertionError("the user's code was called")

        __len__ = __getitem__ = __iter__ = __sizeof__ = __contains__ = _raise

    def __init__(self) -> None:
        self.rows = self.Rows(Hostile.Row() for _ in range(50_000))

    class Row:
        def __init__(self) -> None:
            self.name = "x" * 100

        def __sizeof__(self) -> int:
            raise AssertionError("the user's code was called")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the user's code was called")

    @property
    def samples(self) -> Any:
        raise AssertionError("the user's code was called")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("the user's code was called")

    def __getitem__(self, index: int) -> int:
        raise AssertionError("the user's code was called")


def test_the_users_code_is_not_called() -> None:
    (found,) = copied_attributes(Hostile())
    assert (found.path, found.count, found.kind) == ("dataset.rows", 50_000, "Row objects")


def test_a_data_set_that_refers_to_itself_is_searched_once() -> None:
    dataset = Holding(samples=SAMPLES["strings"][0])
    dataset.__dict__.update(me=dataset, list=[dataset, dataset])
    assert [found.path for found in copied_attributes(dataset)] == ["dataset.samples"]


def test_a_loader_with_forked_workers_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_copied, "WARN_BYTES", 8 << 20)
    monkeypatch.setattr(_copied, "WARN_SHARE", 0)
    loader = DataLoader(Holding(samples=SAMPLES["tuples"][0]), num_workers=2)
    with pytest.warns(CopiedMemoryWarning) as caught:
        assert len(list(loader)) == 4
    (warning,) = caught
    text = str(warning.message)
    assert "dataset.samples: 50.0 k tuples, " in text
    assert "each of 2 workers" in text
    assert "hint: dataset.samples = fl.pack(dataset.samples)" in text
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        for other in (
            DataLoader(Holding(samples=fl.pack(SAMPLES["tuples"][0])), num_workers=2),
            DataLoader(Holding(samples=SAMPLES["tuples"][0]), num_workers=0),
            DataLoader(Holding(samples=SAMPLES["tuples"][0][:1000]), num_workers=2),
        ):
            list(other)


def test_little_memory_is_not_worth_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Holding(samples=SAMPLES["tuples"][0])
    (found,) = copied_attributes(dataset)
    monkeypatch.setattr(_copied, "WARN_BYTES", 3 * found.bytes)
    monkeypatch.setattr(_native, "available_memory", lambda: found.bytes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _copied.warn_of_copies(dataset, 2)
    with pytest.warns(CopiedMemoryWarning):
        _copied.warn_of_copies(dataset, 3)
    # A small share of what is available.
    monkeypatch.setattr(_native, "available_memory", lambda: 1000 * found.bytes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _copied.warn_of_copies(dataset, 3)
