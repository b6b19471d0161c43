"""Construction of a loader: arguments, attributes, subclasses and pickles, as with torch's own."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline.torch
import numpy as np
import pytest
import torch
import torch.utils.data
from alike import described
from feedline.errors import InvalidArgumentError
from samples_of_torch import Noise
from torch.utils.data import IterableDataset

# A loader class: torch's or ours.
Kind = type[torch.utils.data.DataLoader[Any]]
Arguments = dict[str, Any]
THEIRS: Kind = torch.utils.data.DataLoader
OURS: Kind = feedline.torch.DataLoader


# ---- construction ----


class Streamed(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __repr__(self) -> str:
        return "Streamed()"


REFUSED: list[Arguments] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"timeout": None},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 2},
    {"persistent_workers": True},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.5},
    {"batch_size": "2"},
    {"batch_size": np.int64(2)},
    {"drop_last": "no"},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "thread", "num_workers": 2},
    {"multiprocessing_context": 3, "num_workers": 2},
    {"dataset": Streamed(), "shuffle": True},
    {"dataset": Streamed(), "sampler": [1]},
    {"dataset": [], "shuffle": True},
    {"dataset": 5, "shuffle": True},
    {"generator": 5, "shuffle": True},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_a_wrong_argument_is_refused_with_torchs_message(arguments: Arguments) -> None:
    def refusal(kind: Kind) -> tuple[type[BaseException] | None, str]:
        try:
            kind(**{"dataset": [1, 2, 3], **arguments})
        except Exception as error:
            return type(error), str(error)
        return None, ""

    assert refusal(OURS) == refusal(THEIRS)


def test_a_prefetch_factor_of_zero_is_refused_by_iter() -> None:
    loader = OURS([1, 2, 3], num_workers=1, prefetch_factor=0)  # type: ignore[arg-type]

    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(loader)


def test_more_workers_than_processors_give_torchs_warning() -> None:
    def warnings(kind: Kind) -> list[str]:
        with pytest.warns(UserWarning, match="This DataLoader will create 99 worker processes") as caught:
            kind([1, 2, 3], num_workers=99)  # type: ignore[arg-type]
        return [str(warning.message) for warning in caught]

    assert warnings(OURS) == warnings(THEIRS)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"on_death": "cry"}, "cry"),
        ({"on_death": 3}, "3"),
        ({"max_deaths": -1}, "-1"),
        ({"max_deaths": 1.5}, "1.5"),
        ({"max_deaths": "many"}, "many"),
        ({"max_deaths": {3}}, "{3}"),
        ({"death_window": 0}, "0"),
        ({"death_window": -2.5}, "-2.5"),
        ({"death_window": "long"}, "long"),
        ({"death_window": float("nan")}, "nan"),
        ({"death_window": float("inf")}, "inf"),
        ({"memory": 0}, "0"),
        ({"memory": -1}, "-1"),
        ({"memory": "5 apples"}, "5 apples"),
        ({"memory": 2.5}, "2.5"),
        ({"memory": Path("x")}, "x"),
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_feedline_argument_is_refused_at_once_with_its_value(
    arguments: Arguments, value: str, workers: int
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        OURS([1, 2, 3], num_workers=workers, **arguments)  # type: ignore[arg-type]

    assert value in str(caught.value)
    assert next(iter(arguments)) in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_death": "raise"},
        {"max_deaths": 0},
        {"max_deaths": np.int64(3)},
        {"death_window": 5},
        {"memory": "2GiB"},
        {"memory": 1 << 26},
        {"memory": np.int64(1 << 26)},
        {"num_workers": np.int64(1)},
        {"timeout": np.float64(20.0)},
        {"prefetch_factor": np.int64(3)},
    ],
    ids=str,
)
def test_a_valid_argument_of_any_numeric_type_is_accepted(arguments: Arguments) -> None:
    loader = OURS([1, 2, 3], **{"num_workers": 1, **arguments})  # type: ignore[arg-type]

    assert torch.cat(list(loader)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_parameter_except_shuffle_is_an_attribute(workers: int) -> None:
    loader = OURS([1, 2, 3], shuffle=True, num_workers=workers)  # type: ignore[arg-type]
    names = set(inspect.signature(OURS.__init__).parameters) - {"self", "shuffle"}

    assert {name for name in names if not hasattr(loader, name)} == set()


def test_every_parameter_of_torchs_loader_is_accepted_in_its_position() -> None:
    ours = list(inspect.signature(OURS.__init__).parameters.values())
    theirs = list(inspect.signature(THEIRS.__init__).parameters.values())

    assert [(one.name, one.kind, one.default) for one in ours[: len(theirs)]] == [
        (one.name, one.kind, one.default) for one in theirs
    ]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"batch_sampler": [[0, 1], [2]]}, {"batch_size": None}, {"batch_size": 2, "drop_last": True}],
    ids=str,
)
def test_attributes_are_torchs(arguments: Arguments) -> None:
    dataset: Any = [1, 2, 3]
    ours, theirs = OURS(dataset, **arguments), THEIRS(dataset, **arguments)

    for name in set(inspect.signature(THEIRS.__init__).parameters) - {"self", "shuffle"}:
        assert repr(getattr(ours, name)).split(" at ")[0] == repr(getattr(theirs, name)).split(" at ")[0]


def test_a_loader_can_be_rebuilt_from_its_attributes() -> None:
    kind = feedline.torch.DataLoader
    loader = kind(Noise(5, 3), batch_size=2, num_workers=1, on_death="raise", max_deaths=7)
    names = set(inspect.signature(OURS.__init__).parameters) - {"self", "shuffle"}
    names -= {"batch_size", "drop_last", "sampler"}

    again = kind(**{name: getattr(loader, name) for name in names})

    assert described(list(again)) == described(list(loader))
    assert (again.on_death, again.max_deaths) == ("raise", 7)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_attributes_that_torch_makes_read_only_are_read_only(name: str) -> None:
    def refusal(kind: Kind) -> str:
        loader = kind([1, 2, 3])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="should not be set after") as caught:
            setattr(loader, name, None)
        return str(caught.value)

    assert refusal(OURS) == refusal(THEIRS)


class Whole(feedline.torch.DataLoader[int]):
    """A subclass with one more argument."""

    def __init__(self, *arguments: Any, factor: int, **more: Any) -> None:
        self.factor = factor
        super().__init__(*arguments, **more)

    def __iter__(self) -> Any:
        return (batch * self.factor for batch in super().__iter__())


def test_a_subclass_of_our_loader_is_a_torch_loader() -> None:
    loader = Whole([1, 2, 3], factor=10, num_workers=1)

    assert torch.cat(list(loader)).tolist() == [10, 20, 30]
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader, feedline.torch.DataLoader)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_loader_can_be_pickled_also_after_an_epoch(context: str) -> None:
    loader = OURS(Noise(3, 2), num_workers=1, multiprocessing_context=context)
    list(loader)
    loader.multiprocessing_context = None

    again = pickle.loads(pickle.dumps(loader))

    assert described(list(again)) == described(list(loader))
