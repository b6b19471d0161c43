"""Fields of bytes: a sequence that makes each `bytes` object on request."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import feedline as fl
import numpy as np
import pytest
import shards

VALUES = [b"one", b"", b"three" * 1000, bytes(range(256))]


@pytest.fixture
def column(tmp_path: Path) -> fl.BytesList:
    paths = []
    for number, value in enumerate(VALUES):
        paths.append(tmp_path / f"{number}")
        paths[-1].write_bytes(value)
    (batch,) = fl.files(paths).batch(4).loader()
    found = batch["bytes"]
    assert isinstance(found, fl.BytesList)
    return found


def test_a_bytes_list_is_a_sequence_of_bytes(column: fl.BytesList) -> None:
    assert isinstance(column, Sequence)
    assert (len(column), list(column), column.tolist()) == (4, VALUES, VALUES)
    assert [column[at] for at in (0, 3, -1, -4)] == [VALUES[at] for at in (0, 3, -1, -4)]
    assert type(column[0]) is bytes
    assert (column[1:3], column[::-1], column[7:]) == (VALUES[1:3], VALUES[::-1], [])
    assert b"one" in column
    assert b"two" not in column
    assert (column.count(b"one"), column.index(b"")) == (1, 1)
    assert list(reversed(column)) == VALUES[::-1]
    assert np.array(column, dtype=object).tolist() == VALUES
    assert b"".join(column) == b"".join(VALUES)


def test_a_bytes_list_equals_a_list_of_the_same_values(column: fl.BytesList, tmp_path: Path) -> None:
    (other,) = fl.tfrecord(shards.tfrecord(tmp_path / "same.tfrecord", VALUES), index=None).batch(4).loader()
    assert column == VALUES
    assert column == other["bytes"]
    assert column != VALUES[:3]
    assert column != [*VALUES[:3], b"other"]
    assert column != "text"
    assert repr(column).startswith("BytesList([b'one', b'', b'three")


@pytest.mark.parametrize("at", [4, -5])
def test_an_index_out_of_range_is_an_index_error(column: fl.BytesList, at: int) -> None:
    with pytest.raises(IndexError, match=str(at)):
        column[at]


def test_an_invalid_index_is_refused(column: fl.BytesList) -> None:
    with pytest.raises(TypeError):
        column["one"]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="float"):
        column[1.0]  # type: ignore[call-overload]
    with pytest.raises(IndexError):
        column[2**70]
    with pytest.raises(ValueError, match="no value"):
        column.index(b"two")


def test_a_bytes_list_is_pickled_and_copied_as_a_list(column: fl.BytesList) -> None:
    for other in (pickle.loads(pickle.dumps(column)), copy.copy(column), copy.deepcopy(column)):
        assert (type(other), other) == (list, VALUES)


def test_a_view_reads_without_a_copy_and_outlives_everything(column: fl.BytesList) -> None:
    view = column.view(-1)
    again = np.frombuffer(column.view(3), np.uint8)
    assert np.shares_memory(np.frombuffer(view, np.uint8), again)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    del column
    gc.collect()
    assert view == VALUES[3]
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 1


def test_batches_that_are_kept_do_not_change(tmp_path: Path) -> None:
    records = [b"%d" % number for number in range(3000)]
    path = shards.tfrecord(tmp_path / "numbers.tfrecord", records)
    with fl.tfrecord(path, index=None).batch(7).loader(memory="1MiB") as loader:
        kept = list(loader)
    assert [record for batch in kept for record in batch["bytes"]] == records


def test_a_sample_that_passes_a_filter_does_not_keep_its_neighbours_in_memory(tmp_path: Path) -> None:
    count, record = 20_000, b"x" * 4000
    path = tmp_path / "large.tfrecord"
    path.write_bytes(shards.framed(record) * count)
    rare = fl.tfrecord(path, index=None).filter(fl.col("index").isin(range(0, count, 64)))
    before = resident_bytes()
    with rare.batch(64).loader(memory="1GiB") as loader:
        kept = [batch["bytes"] for batch in loader]
        assert sum(map(len, kept)) == len(range(0, count, 64))
        assert resident_bytes() - before < 50_000_000
    assert all(found == record for part in kept for found in part)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
