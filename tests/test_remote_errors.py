"""An exception from a worker keeps its type on every front, even if its constructor needs more arguments."""

from __future__ import annotations

import json
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline.torch import DataLoader
from torch.utils.data import Dataset

pytestmark = pytest.mark.timeout(300)


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return json.loads("{" if index == 3 else "1")


def parse(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["number"]) == 3:
        json.loads("{")
    return sample


def test_a_torch_loader_with_a_policy_keeps_the_type_of_an_exception() -> None:
    for workers in (0, 1):
        loader = DataLoader(Texts(), num_workers=workers, faults=fl.FaultPolicy("raise"))
        with pytest.raises(json.JSONDecodeError) as raised:
            list(loader)
        assert (raised.value.doc, raised.value.pos) == ("{", 1)
        if workers:
            assert raised.value.index == 3  # type: ignore[attr-defined]
            assert "in __getitem__" in str(raised.value.__cause__)
            assert any("at sample 3" in note for note in raised.value.__notes__)


def test_a_pipeline_keeps_the_type_of_an_exception_of_a_function() -> None:
    for threads in (False, True):
        loader = fl.arrays({"number": np.arange(6)}).map(parse, threads=threads).batch(2).loader(workers=1)
        with pytest.raises(json.JSONDecodeError) as raised:
            list(loader)
        assert (raised.value.doc, raised.value.pos) == ("{", 1)
        assert raised.value.index == 3  # type: ignore[attr-defined]
        assert any("at sample 3" in note for note in raised.value.__notes__)


def test_a_torch_loader_without_a_policy_raises_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="Caught JSONDecodeError in DataLoader worker process 0"):
        list(DataLoader(Texts(), num_workers=1))
