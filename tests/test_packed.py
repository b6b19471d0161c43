"""Packed items: the same values as in a list, in one memory that workers share."""

from __future__ import annotations

import copy
import datetime
import enum
import multiprocessing
import os
import pickle
import random
from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline.errors import CorruptRecordError, InvalidArgumentError
from feedline.torch import DataLoader
from hypothesis import given
from hypothesis import strategies as st
from programs import answer
from torch.utils.data import Dataset

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
KEYS = st.text() | st.integers() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)
# What data sets have: every item is alike.
ALIKE = st.lists(st.tuples(st.text(), st.integers(-300, 300))) | st.lists(
    st.fixed_dictionaries({"path": st.text(), "box": st.tuples(st.floats(0, 1), st.floats(0, 1))})
)
PAIRS = [(f"train/{number:05}.jpg", number % 10) for number in range(1000)]


def typed(value: Any) -> Any:
    """A value with the types of all its parts, which `==` does not compare: 1 is equal to True and to 1.0."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(part) for part in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(part)) for key, part in value.items()]
    # The repr also tells 0.0 from -0.0.
    return type(value), repr(value)


@given(st.lists(VALUES, max_size=8) | ALIKE)
def test_items_come_back_with_their_values_and_types(items: list[Any]) -> None:
    packed = fl.pack(items)
    assert len(packed) == len(items)
    assert typed(packed.tolist()) == typed(items)
    assert typed(pickle.loads(pickle.dumps(packed)).tolist()) == typed(items)


@given(st.lists(st.integers(0, 9), max_size=12), st.slices(14), st.slices(14))
def test_slices_of_slices_are_those_of_a_list(items: list[int], first: slice, second: slice) -> None:
    view = fl.pack(items)[first][second]
    expected = items[first][second]
    assert isinstance(view, fl.PackedList)
    assert view == expected
    assert list(reversed(view)) == expected[::-1]
    assert pickle.loads(pickle.dumps(view)) == expected
    for at in range(-len(expected) - 1, len(expected) + 1):
        if -len(expected) <= at < len(expected):
            assert view[at] == expected[at]
        else:
            with pytest.raises(IndexError):
                view[at]


def test_a_packed_list_is_a_read_only_sequence() -> None:
    packed = fl.pack(PAIRS)
    assert isinstance(packed, Sequence)
    assert packed == PAIRS
    assert packed == fl.pack(iter(PAIRS))
    assert packed == packed[:]
    assert packed != PAIRS[:-1]
    assert packed != [*PAIRS[:-1], ("other", 1)]
    assert packed != tuple(PAIRS)
    assert ("train/00007.jpg", 7) in packed
    assert ("train/00007.jpg", 8) not in packed
    assert packed.index(PAIRS[7]) == 7
    assert packed.count(PAIRS[7]) == 1
    assert fl.pack([1, 2, 1, 2]).index(2, 2) == 3
    assert fl.pack([1, 2, 1]).count(1) == 2
    with pytest.raises(ValueError, match="is not among the items"):
        packed.index(PAIRS[7], 8)
    assert packed[np.int64(3)] == packed[torch.tensor(3)] == PAIRS[3]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not str"):
        packed["3"]  # type: ignore[call-overload]
    with pytest.raises(IndexError, match="there are 1000 items, got 1000"):
        packed[1000]
    with pytest.raises(IndexError):
        packed[2**70]
    with pytest.raises(TypeError):
        packed[0] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match="unhashable"):
        hash(packed)
    assert repr(fl.pack(["a", 1])) == "PackedList(['a', 1])"
    assert repr(fl.pack(range(9))) == "PackedList([0, 1, 2, ...], 9 items)"
    assert copy.copy(packed) is packed
    assert copy.deepcopy(packed) is packed
    assert random.Random(1).choice(packed) == random.Random(1).choice(PAIRS)
    assert fl.pack([]) == []


def test_a_change_of_an_item_does_not_change_the_packed_one() -> None:
    packed = fl.pack([[1, 2], [3]])
    packed[0].append(9)
    assert packed == [[1, 2], [3]]


def test_items_that_are_alike_take_little_more_than_their_content() -> None:
    content = sum(len(path) for path, _ in PAIRS)
    # One byte for the length of the text, one for the label, four for where the item ends.
    assert fl.pack(PAIRS).nbytes < content + 6 * len(PAIRS) + 100
    assert fl.pack(range(100)).nbytes < 100 + 100


@given(
    st.dictionaries(
        st.text() | st.integers() | st.binary() | st.none() | st.tuples(st.text(), st.integers()), LEAVES
    )
)
def test_a_mapping_comes_back_with_its_order(mapping: dict[Any, Any]) -> None:
    packed = fl.pack(mapping)
    assert isinstance(packed, Mapping)
    assert packed == mapping
    assert list(packed) == list(mapping)
    assert len(packed) == len(mapping)
    assert list(packed.values()) == list(mapping.values())
    assert list(packed.items()) == list(mapping.items())
    assert list(reversed(packed)) == list(reversed(mapping))
    assert all(packed[key] == mapping[key] for key in mapping)
    assert pickle.loads(pickle.dumps(packed)) == mapping


def test_a_mapping_finds_what_a_dict_finds() -> None:
    plain: dict[Any, int] = {"a": 1, 1: 2, ("x", 2): 3, b"a": 4, None: 5, 2**70: 6}
    packed = fl.pack(plain)
    sought = [
        "a",
        b"a",
        1,
        True,
        1.0,
        1.5,
        np.int64(1),
        np.str_("a"),
        2**70,
        2.0**70,
        None,
        ("x", 2),
        ("x",),
        "b",
        object(),
    ]
    for key in sought:
        assert packed.get(key) == plain.get(key), key
        assert (key in packed) == (key in plain), key
    with pytest.raises(KeyError, match="'b'"):
        packed["b"]
    with pytest.raises(TypeError, match="unhashable"):
        packed[[]]
    assert repr(packed) == "PackedDict({'a': 1, 1: 2, ('x', 2): 3, ...}, 6 items)"


class Color(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024: a user may have one


def test_what_cannot_be_packed_is_named_with_its_place_and_a_hint() -> None:
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    cases: list[tuple[Any, str, str]] = [
        (["a", object()], "item 1 is a object", "can be packed"),
        (
            ["a", ("b", {"when": datetime.date(2020, 1, 1)})],
            "item 1[1]['when'] is a datetime.date",
            "can be packed",
        ),
        ([Path("a")], "item 0 is a pathlib", "str(path)"),
        ([np.int64(1)], "item 0 is a numpy.int64", ".item()"),
        ([np.float64(1)], "item 0 is a numpy.float64", ".item()"),
        ([np.zeros(3)], "item 0 is a numpy.ndarray", ".tolist()"),
        ([torch.zeros(3)], "item 0 is a torch.Tensor", ".tolist()"),
        ([Point(1, 2)], "item 0 is a test_packed.Point", "tuple(value)"),
        ([OrderedDict(a=1)], "item 0 is a collections.OrderedDict", "dict(value)"),
        ([Color.RED], "item 0 is a test_packed.Color", "int(value)"),
        ([{object(): 1}], "item 0 has a key that is a object", "can be packed"),
        ([deep], "is nested more than 32 levels deep", "second sequence"),
        ("abc", "got 'abc'", "fl.pack([...])"),
        (b"abc", "got b'abc'", "fl.pack([...])"),
        ({1, 2}, "must have an order", "sorted(items)"),
        (np.zeros(3), "got a ndarray", "keep it as it is"),
        (torch.zeros(3), "got a Tensor", "keep it as it is"),
        (7, "got 7", "help(feedline.pack)"),
        ({1.5: "a"}, "key 1.5 is a float", "keys are str"),
        ({True: "a"}, "key True is a bool", "keys are str"),
        ({("a", 1.5): "a"}, "key ('a', 1.5)[1] is a float", "keys are str"),
        ({"a": [object()]}, "the value of key 'a'[0] is a object", "can be packed"),
    ]
    for items, message, hint in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            fl.pack(items)
        assert message in str(caught.value), str(caught.value)
        assert hint in caught.value.hint, caught.value.hint


def test_an_exception_of_the_iterable_is_raised_as_it_is() -> None:
    def items() -> Any:
        yield "a"
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fl.pack(items())


def test_corrupt_pickles_give_errors_and_no_crash() -> None:
    memory: Any = fl.pack(PAIRS)._memory
    whole = bytes(memory)
    seen = set()
    for place in range(0, len(whole), 7):
        tampered = bytearray(whole)
        tampered[place] ^= 0x91
        try:
            memory = fl._native.PackedMemory.from_bytes(tampered)
            fl.PackedList(memory, 0, 1, 1000).tolist()
        except (CorruptRecordError, UnicodeDecodeError, ValueError) as error:
            seen.add(type(error))
    assert CorruptRecordError in seen
    with pytest.raises(CorruptRecordError, match="pack the items again"):
        fl._native.PackedMemory.from_bytes(whole[:-3])
    with pytest.raises(ValueError, match="outside the memory"):
        fl.PackedList(fl.pack([1])._memory, 0, 1, 2)


def test_a_descriptor_that_is_no_packed_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"FLITEMS1")
    with pytest.raises(OSError, match="sealed"):
        fl._native.PackedMemory.from_descriptor(os.open(tmp_path / "file", os.O_RDONLY))


class Samples(Dataset[tuple[str, int]]):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[str, int]:
        path, label = self.samples[index]
        return path, label


LARGE = [(f"train/{number:050}.jpg", number) for number in range(40_000)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader])
def test_workers_see_the_same_items_however_they_start(method: str, kind: Any) -> None:
    for items in (PAIRS, LARGE):
        dataset = Samples(fl.pack(items))
        loader = kind(dataset, batch_size=len(items) // 4, num_workers=2, multiprocessing_context=method)
        paths = [path for batch in loader for path in batch[0]]
        assert paths == [path for path, _ in items]


def shared_bytes(packed: fl.PackedList[Any]) -> int:
    """The bytes of the packed memory that this process does not have for itself."""
    assert sum(label for _, label in packed) >= 0
    text = Path("/proc/self/smaps").read_text()
    part = text[text.index("feedline-packed") :]
    fields = dict(line.split(":") for line in part.splitlines()[1:16])
    return sum(int(fields[name].split()[0]) for name in ("Shared_Clean", "Shared_Dirty")) << 10


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_that_is_started_shares_the_memory(method: str) -> None:
    packed = fl.pack(LARGE)
    assert packed == LARGE
    assert packed.nbytes > 1 << 20
    with multiprocessing.get_context(method).Pool(1, _hold, (packed,)) as pool:
        assert pool.apply(_shared) > packed.nbytes * 0.9


_held: Any = None


def _hold(packed: Any) -> None:
    global _held
    _held = packed


def _shared() -> int:
    return shared_bytes(_held)


def test_the_memory_is_freed_with_its_last_view() -> None:
    """Descriptors before, with a pack and a view of it, with the view alone, and after."""
    counted = answer(
        """
        items = ["x" * 60] * 40_000
        before = descriptors()
        packed = fl.pack(items)
        view = packed[5:7]
        both = descriptors()
        del packed
        one = descriptors()
        assert view == ["x" * 60] * 2
        del view
        say([both - before, one - before, descriptors() - before])
        """
    )
    assert counted == [1, 1, 0]


def test_without_a_descriptor_left_items_are_packed_all_the_same() -> None:
    assert answer(
        """
        import pickle, resource
        items = ["x" * 60] * 40_000
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors(), 64))
        packed = fl.pack(items)
        say([packed == items, packed._memory.descriptor(), pickle.loads(pickle.dumps(packed)) == items])
        """
    ) == [True, None, True]


def test_a_closed_descriptor_does_not_matter() -> None:
    assert answer(
        """
        import pickle
        items = ["x" * 60] * 40_000
        packed = fl.pack(items)
        os.closerange(3, 1000)
        say([packed == items, packed._memory.descriptor(), pickle.loads(pickle.dumps(packed)) == items])
        """
    ) == [True, None, True]
