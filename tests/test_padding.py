"""Padding of the shorter arrays of a batch: zeros, or a number of the user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline.errors import InvalidArgumentError, StateMismatchError
from pictures import encoded, photo

LENGTHS = [3, 0, 5, 1]


@pytest.fixture
def lines(tmp_path: Path) -> fl.Pipeline:
    path = tmp_path / "lines.jsonl"
    records = [
        {"tokens": [at + 1] * length, "weights": [0.5] * length, "label": at}
        for at, length in enumerate(LENGTHS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    fields = {"tokens": fl.int64(shape=[None]), "weights": fl.float32(shape=[None]), "label": fl.int64()}
    return fl.jsonl(path, index=None).parse(fields)


def as_it_is(pipeline: fl.Pipeline) -> fl.Pipeline:
    return pipeline


def by_a_function(pipeline: fl.Pipeline) -> fl.Pipeline:
    return pipeline.map(dict, threads=True)


both_ways = pytest.mark.parametrize("way", [as_it_is, by_a_function])
Way = Callable[[fl.Pipeline], fl.Pipeline]


@both_ways
@pytest.mark.parametrize(
    ("pad", "token", "weight"),
    [
        (True, 0, 0.0),
        (0, 0, 0.0),
        (-100, -100, -100.0),
        (np.int64(7), 7, 7.0),
        ({"tokens": 50256}, 50256, 0.0),
        ({"tokens": -(2**63), "weights": 0.25}, -(2**63), 0.25),
        ({}, 0, 0.0),
    ],
)
def test_shorter_samples_are_padded_with_the_given_number(
    lines: fl.Pipeline, way: Way, pad: Any, token: int, weight: float
) -> None:
    with way(lines).batch(4, pad=pad).loader() as loader:
        (batch,) = loader
    for name, first, padding in (("tokens", lambda at: at + 1, token), ("weights", lambda at: 0.5, weight)):
        rows = [[first(at)] * length + [padding] * (5 - length) for at, length in enumerate(LENGTHS)]
        assert batch[name].tolist() == rows
        assert batch[f"{name}_lengths"].tolist() == LENGTHS
    assert batch["tokens"].dtype == np.int64
    assert batch["weights"].dtype == np.float32


@both_ways
def test_images_are_padded_with_the_given_number(tmp_path: Path, way: Way) -> None:
    for number, size in enumerate([(8, 5), (4, 9)]):
        (tmp_path / f"{number}.png").write_bytes(encoded(photo(number, *size), "PNG"))
    pictures = fl.files(str(tmp_path / "*.png")).decode()
    with way(pictures).batch(2, pad=255).loader() as loader:
        (batch,) = loader
    images, shapes = batch["image"], batch["image_shape"]
    for image, (height, width, _) in zip(images, shapes.tolist(), strict=True):
        assert (image[height:] == 255).all()
        assert (image[:, width:] == 255).all()
        assert image[:height, :width].min() < 255


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        (300, "pad=300 does not fit"),
        (-1, "pad=-1 does not fit"),
        (0.5, "pad=0.5 does not fit"),
        ({"image": 256}, "pad=256 does not fit"),
        ({"label": 1}, "no field of that name is padded\nhint: padded are: image"),
        ("x", "x"),
        ([3], "[3]"),
        (float("nan"), "nan"),
    ],
)
def test_invalid_padding_is_refused_where_it_is_written(tmp_path: Path, pad: Any, said: str) -> None:
    (tmp_path / "0.png").write_bytes(encoded(photo(0, 8, 5), "PNG"))
    with pytest.raises(InvalidArgumentError) as raised:
        fl.files(str(tmp_path / "*.png")).decode().batch(2, pad=pad)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        ({"tokens": 0.5}, "pad=0.5 does not fit 'tokens'"),
        ({"weights": 1e39}, r"pad=1e\+39 does not fit 'weights'"),
        ({"nope": 1}, "pad names 'nope'"),
        ({"label": 1}, "pad names 'label'"),
    ],
)
def test_invalid_padding_after_a_function_is_refused_when_the_batch_is_made(
    lines: fl.Pipeline, pad: dict[str, float], said: str
) -> None:
    pipeline = by_a_function(lines).batch(4, pad=pad)
    with pipeline.loader() as loader, pytest.raises(InvalidArgumentError, match=said):
        list(loader)


def test_a_state_belongs_to_its_padding(lines: fl.Pipeline) -> None:
    with lines.batch(1, pad=1).loader() as loader, lines.batch(1, pad=2).loader() as other:
        next(iter(loader))
        with pytest.raises(StateMismatchError):
            other.load_state_dict(loader.state_dict())
