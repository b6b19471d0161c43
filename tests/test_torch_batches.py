"""The content and the memory layout of batches are those of torch's own loader."""

from __future__ import annotations

import collections
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import feedline.torch
import numpy as np
import pytest
import torch
import torch.utils.data
from alike import described
from feedline.errors import NotPicklableError, WorkerDiedWarning
from samples_of_torch import Noise
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

# A loader class: torch's or ours.
Kind = type[torch.utils.data.DataLoader[Any]]
Arguments = dict[str, Any]
THEIRS: Kind = torch.utils.data.DataLoader
OURS: Kind = feedline.torch.DataLoader

# torch warns when prototype features are used.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*prototype stage"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:Sparse CSR"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:.*quantiz"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


class Listed(Dataset[Any]):
    """Each sample is made on request."""

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        self.makers = makers

    def __len__(self) -> int:
        return len(self.makers)

    def __getitem__(self, index: int) -> Any:
        return self.makers[index]()


def as_it_is(samples: Any) -> Any:
    return samples


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Labelled:
    image: Tensor
    label: int


class Fields(collections.UserDict[str, Any]):
    pass


class Parts(collections.UserList[Any]):
    pass


class OwnDict(dict[str, Any]):
    pass


class OwnTensor(Tensor):
    pass


def numbers(kind: torch.dtype, *shape: int) -> Tensor:
    """Arbitrary but fixed bits of any dtype."""
    tensor = torch.empty(shape, dtype=kind)
    if tensor.numel() > 0:
        high = 2 if kind is torch.bool else 120
        bits = np.random.default_rng(7).integers(0, high, tensor.nbytes, dtype=np.uint8)
        tensor = torch.from_numpy(bits).view(kind).view(shape)
    return tensor


# ---- structures that torch collates ----

COLLATED: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.arange(6.0).view(2, 3),
    "a scalar tensor": lambda: torch.tensor(3),
    "an empty tensor": lambda: torch.empty(0, 3),
    "a large tensor": lambda: numbers(torch.float32, 3, 1000),
    "a very large tensor": lambda: numbers(torch.uint8, 3, 700, 500),
    "a dict": lambda: {"x": torch.ones(2), "y": 3, "name": "cat"},
    "nested": lambda: {"x": [torch.ones(2), {"y": (1, 2.5)}], "z": ((True,), [b"bytes"])},
    "a named tuple": lambda: Point(torch.ones(2000), Point(1, "one")),
    "a tuple and a list": lambda: (1, [2.0, 3.0]),
    "a mapping of one's own": lambda: Fields({"x": torch.ones(2), "y": 3}),
    "a sequence of one's own": lambda: Parts([torch.ones(2), 3]),
    "a dict of one's own": lambda: OwnDict(x=torch.ones(2000), y=3),
    "an ordered dict": lambda: collections.OrderedDict(z=1, a=2),
    "a text": lambda: "cat",
    "bytes": lambda: b"cat",
    "an int": lambda: 7,
    "a float": lambda: 0.1,
    "a bool": lambda: True,
    "a number of NumPy": lambda: np.float32(0.1),
    "a whole number of NumPy": lambda: np.int16(5),
    "a truth of NumPy": lambda: np.bool_(True),
    "an array": lambda: np.arange(6, dtype=np.int32).reshape(2, 3),
    "a large array": lambda: np.arange(60_000, dtype=np.float64),
    "an array in Fortran's order": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "an array of no dimension": lambda: np.array(3.5),
    "channels last": lambda: numbers(torch.float32, 2, 3, 5, 4).to(memory_format=torch.channels_last),
    "not contiguous": lambda: numbers(torch.float32, 70, 80).t()[::2],
    "expanded": lambda: torch.arange(3.0).expand(5, 3),
}


def twice_each(makers: Mapping[str, Callable[[], Any]]) -> Listed:
    return Listed([make for make in makers.values() for _ in range(2)])


@cache
def collated(is_ours: bool) -> dict[str, Any]:
    kind = OURS if is_ours else THEIRS
    loader = kind(twice_each(COLLATED), batch_size=2, num_workers=2)
    return {name: described(batch) for name, batch in zip(COLLATED, loader, strict=True)}


@pytest.mark.parametrize("name", COLLATED)
def test_samples_are_collated_as_torch_does(name: str) -> None:
    assert collated(True)[name] == collated(False)[name]


@pytest.mark.parametrize(
    "sample",
    [None, {"x": None}, object(), np.array(["cat"]), np.array([None])],
    ids=lambda sample: repr(sample)[:20],
)
def test_samples_that_torch_cannot_collate_raise_torchs_message(sample: Any) -> None:
    def refusal(kind: Kind, workers: int) -> str:
        with pytest.raises(TypeError, match="default_collate") as caught:
            list(kind(Listed([lambda: sample]), num_workers=workers))
        return next(line for line in str(caught.value).splitlines() if "default_collate:" in line)

    assert refusal(OURS, 0) == refusal(THEIRS, 0)
    assert refusal(OURS, 1) == f"TypeError: {refusal(THEIRS, 0)}"


def test_samples_of_different_shapes_are_refused() -> None:
    dataset = Listed([lambda: torch.ones(2000), lambda: torch.ones(2001)])

    with pytest.raises(RuntimeError, match="equal size"):
        list(OURS(dataset, batch_size=2, num_workers=1))


def test_rows_of_a_tensor_data_set_are_lists() -> None:
    dataset = TensorDataset(torch.arange(6.0), torch.arange(6))

    ours = described(list(OURS(dataset, batch_size=2, num_workers=2)))

    assert ours == described(list(THEIRS(dataset, batch_size=2)))


# ---- any object, with a collate function that returns it unchanged ----

KINDS = [
    kind
    for name in [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
    if (kind := getattr(torch, name, None)) is not None
]
ARRAYS = [
    "?",
    "b",
    "B",
    "h",
    "H",
    "i",
    "I",
    "l",
    "L",
    "q",
    "Q",
    "e",
    "f",
    "d",
    "g",
    "F",
    "D",
    "G",
    "S3",
    "U3",
    "M8[s]",
    "m8[ns]",
    ">i4",
    "V5",
]


def sparse() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.5, 2.5]), (3, 2))


def read_only() -> Any:
    array = np.arange(5)
    array.flags.writeable = False
    return array


def with_itself() -> Any:
    tensor = torch.arange(5.0)
    return [tensor, tensor]


PASSED: dict[str, Callable[[], Any]] = {
    **{f"{kind}": partial(numbers, kind, 3, 4) for kind in KINDS},
    **{f"{kind}, large": partial(numbers, kind, 2000, 4) for kind in KINDS},
    **{f"{kind}, one number": partial(numbers, kind) for kind in KINDS},
    **{f"{kind}, none": partial(numbers, kind, 0, 3) for kind in KINDS},
    **{f"array of {kind}": partial(np.zeros, (3, 2), kind) for kind in ARRAYS},
    **{f"array of {kind}, large": partial(np.zeros, (3, 2000), kind) for kind in ARRAYS},
    "array of fields": lambda: np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "array of objects": lambda: np.array(["cat", None, 3, {"a": 1}], dtype=object),
    "array in Fortran's order": lambda: np.asfortranarray(np.arange(600.0).reshape(20, 30)),
    "array with gaps": lambda: np.arange(3000.0).reshape(50, 60)[::2, ::3],
    "array of nothing": lambda: np.empty((0, 3)),
    "array that may not be written": read_only,
    "masked array": lambda: np.ma.masked_equal(np.arange(5), 3).filled(9),
    "numbers of NumPy": lambda: [np.float16(0.5), np.uint64(2**63), np.bool_(False), np.str_("x")],
    "nothing": lambda: None,
    "no parts": lambda: [[], {}, (), "", b""],
    "text, bytes and numbers": lambda: ["ü", b"\0", bytearray(b"x"), 1 << 70, 0.1, 1j, True, None, ...],
    "large bytes": lambda: [bytes(100_000), bytearray(100_000), "x" * 100_000],
    "sets and slices": lambda: [{1}, frozenset({2}), range(3), slice(1, 2)],
    "a named tuple": lambda: Point(1, torch.ones(3)),
    "a data class": lambda: Labelled(torch.ones(3), 4),
    "things of torch": lambda: [torch.Size([1, 2]), torch.float16, torch.device("cpu"), torch.strided],
    "channels last": lambda: numbers(torch.float32, 2, 3, 16, 16).to(memory_format=torch.channels_last),
    "not contiguous": lambda: numbers(torch.float32, 30, 40).t(),
    "with gaps": lambda: numbers(torch.float32, 30, 40)[::2, 3:9],
    "with gaps, of eight bits": lambda: numbers(torch.float8_e5m2, 30, 40)[::2, 3:9],
    "expanded": lambda: torch.arange(3.0).expand(500, 3),
    "a part of something larger": lambda: torch.arange(9000.0)[10:13],
    "conjugated": lambda: numbers(torch.complex64, 30).conj(),
    "negated": lambda: numbers(torch.complex64, 30).conj().imag,
    "with a gradient": lambda: torch.arange(3.0).requires_grad_(),
    "large, with a gradient": lambda: torch.arange(3000.0).requires_grad_(),
    "a parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "a tensor of one's own": lambda: torch.arange(3000.0).as_subclass(OwnTensor),
    "sparse": sparse,
    "sparse by rows": lambda: sparse().to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.arange(3.0), torch.arange(5.0)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(6.0), 0.1, 3, torch.qint8),
    "one tensor twice": with_itself,
    "many tensors": lambda: [torch.full((3,), number) for number in range(300)],
    "many large tensors": lambda: [torch.full((2000,), number) for number in range(40)],
}


@cache
def passed() -> dict[str, Any]:
    loader = OURS(Listed(list(PASSED.values())), batch_size=None, collate_fn=as_it_is, num_workers=2)
    return dict(zip(PASSED, loader, strict=True))


@pytest.mark.parametrize("name", PASSED)
def test_results_of_a_worker_arrive_unchanged(name: str) -> None:
    assert described(passed()[name]) == described(PASSED[name]())


# torch's own loader loses signs, scales, the byte order and the read-only flag of arrays.
ONLY_OURS = {"negated", "conjugated", "quantized", "array that may not be written"}
ONLY_OURS |= {"array of >i4", "array of >i4, large"}


@cache
def passed_by_torch() -> dict[str, Any]:
    makers = {name: make for name, make in PASSED.items() if name not in ONLY_OURS}
    loader = THEIRS(Listed(list(makers.values())), batch_size=None, collate_fn=as_it_is, num_workers=2)
    return {name: described(batch) for name, batch in zip(makers, loader, strict=True)}


@pytest.mark.parametrize("name", [name for name in PASSED if name not in ONLY_OURS])
def test_results_of_a_worker_arrive_as_with_torch(name: str) -> None:
    assert described(passed()[name]) == passed_by_torch()[name]


def test_an_array_without_dimensions_arrives() -> None:
    dataset = Listed([lambda: {"x": np.array(2.5)}])

    (batch,) = OURS(dataset, batch_size=None, collate_fn=as_it_is, num_workers=1)

    assert described(batch) == described({"x": np.array(2.5)})


@pytest.mark.parametrize("name", ["channels last", "not contiguous"])
def test_the_order_of_dimensions_in_memory_is_kept(name: str) -> None:
    assert passed()[name].stride() == PASSED[name]().stride()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [1, 8])
def test_channels_last_is_kept_for_every_shape(channels: int, side: int) -> None:
    def made() -> Tensor:
        return torch.empty(2, channels, side, side, memory_format=torch.channels_last).fill_(1)

    (arrived,) = OURS(Listed([made]), batch_size=None, num_workers=1)

    assert arrived.stride() == made().stride()


def test_one_tensor_twice_in_a_batch_is_one_tensor_in_the_trainer() -> None:
    one, other = passed()["one tensor twice"]

    assert one is other


def halves() -> Any:
    whole = torch.arange(4000.0)
    return whole, whole[:2000], whole[1000:].view(30, 100)


def test_views_of_shared_memory_arrive_with_their_own_values() -> None:
    (ours,) = OURS(Listed([halves]), batch_size=None, collate_fn=as_it_is, num_workers=1)

    assert described(ours) == described(halves())


def test_views_of_shared_memory_arrive_with_separate_memory_unlike_torchs() -> None:
    def shared(kind: Kind) -> list[float]:
        (batch,) = kind(Listed([halves]), batch_size=None, collate_fn=as_it_is, num_workers=1)
        batch[0].fill_(5)
        return [float(part.flatten()[0]) for part in batch]

    assert shared(THEIRS) == [5.0] * len(halves())
    assert shared(OURS) == [5.0, *(float(part.flatten()[0]) for part in halves()[1:])]


# ---- memory ----


def written(value: Any) -> None:
    """Writes to everything in a batch."""
    if isinstance(value, Tensor):
        value.view(torch.uint8).fill_(1) if value.dim() else value.fill_(1)
    elif isinstance(value, np.ndarray):
        value[...] = 1
    else:
        for part in value:
            written(part)


def large_and_small() -> Any:
    return [torch.zeros(3), torch.zeros(5000), np.zeros(3), np.zeros(5000), torch.zeros(400_000)]


@pytest.mark.parametrize("collate", [None, as_it_is])
def test_batches_are_writable(collate: Any) -> None:
    loader = OURS(Listed([large_and_small] * 6), batch_size=2, collate_fn=collate, num_workers=2)

    for batch in loader:
        written(batch)
        assert float(batch[0][1][0]) != 0


class Cached(Dataset[Any]):
    """Returns the same memory repeatedly, and writes to it in between. `keep` makes the memory."""

    def __init__(self, keep: Callable[[], Any], *, changes: bool) -> None:
        self.keep = keep
        self.changes = changes
        self.kept: Any = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if self.kept is None:
            self.kept = self.keep()
        if self.changes:
            self.kept[...] = index
        return self.kept


KEPT: dict[str, Callable[[], Any]] = {
    "small": lambda: torch.zeros(3),
    "large": lambda: torch.zeros(5000),
    "very large": lambda: torch.zeros(400_000),
    "array": lambda: np.zeros(5000),
    "collated": lambda: default_collate([torch.zeros(5000), torch.zeros(5000)]),
    "part of what was collated": lambda: default_collate([torch.zeros(5000), torch.zeros(5000)])[0],
}


@pytest.mark.parametrize("kept", KEPT)
def test_writes_of_the_trainer_do_not_reach_memory_that_a_worker_keeps(kept: str) -> None:
    dataset = Cached(KEPT[kept], changes=False)

    for batch in OURS(dataset, batch_size=None, collate_fn=as_it_is, num_workers=1):
        assert float(batch.max()) == 0
        batch[...] = 9


@pytest.mark.parametrize("kept", KEPT)
def test_writes_of_a_worker_do_not_reach_batches_of_the_trainer(kept: str) -> None:
    dataset = Cached(KEPT[kept], changes=True)

    batches = list(OURS(dataset, batch_size=None, collate_fn=as_it_is, num_workers=1))

    assert [float(batch.min()) for batch in batches] == list(range(12))
    assert [float(batch.max()) for batch in batches] == list(range(12))


class Remembering:
    """A collate function that always returns its first batch."""

    def __init__(self) -> None:
        self.batch: Any = None

    def __call__(self, samples: Any) -> Any:
        if self.batch is None:
            self.batch = default_collate(samples)
        return self.batch


def test_a_batch_that_a_collate_function_keeps_is_not_changed_by_the_trainer() -> None:
    dataset = Listed([lambda: torch.zeros(5000)] * 12)

    for batch in OURS(dataset, batch_size=2, collate_fn=Remembering(), num_workers=1):
        assert float(batch.max()) == 0
        batch.fill_(9)


def with_rest(samples: Any) -> Any:
    """Uses more of the arena than it returns."""
    whole = default_collate(samples)
    return whole[1:], whole[:1].clone(), whole[:, ::2]


def test_parts_of_a_collated_batch_arrive_with_their_own_values() -> None:
    dataset = Listed([lambda: numbers(torch.float32, 50, 60)] * 8)

    ours = described(list(OURS(dataset, batch_size=4, collate_fn=with_rest, num_workers=2)))

    assert ours == described(list(THEIRS(dataset, batch_size=4, collate_fn=with_rest)))


def resident_bytes(pid: int) -> int:
    """Private memory and mapped memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def maps(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


@pytest.mark.parametrize("collate", [None, as_it_is])
def test_memory_of_dropped_batches_is_reused(collate: Any) -> None:
    more: Arguments = {"batch_size": 2, "collate_fn": collate, "num_workers": 1}
    running: Any = iter(OURS(Noise(1200, 100_000), **more))
    for _ in range(30):
        next(running)
    pids = [os.getpid(), running._workers[0].pid]
    before = [(resident_bytes(pid), maps(pid)) for pid in pids]

    for _ in range(500):
        next(running)

    for pid, (resident, mapped) in zip(pids, before, strict=True):
        assert resident_bytes(pid) < resident + (24 << 20)
        assert maps(pid) < mapped + 20
    del running


def test_batches_that_are_kept_need_no_descriptors() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    batches = list(OURS(Noise(600, 2000), num_workers=1))

    assert [int(batch[0, -1]) for batch in batches] == list(range(600))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 8


@pytest.mark.parametrize("collate", [None, as_it_is])
def test_batches_beyond_the_memory_budget_still_arrive(collate: Any) -> None:
    more: Arguments = {"collate_fn": collate, "num_workers": 2, "memory": "4MiB"}

    batches = list(OURS(Noise(20, 300_000), batch_size=2, **more))

    firsts = [int(row[0]) for batch in batches for row in batch]
    assert firsts == list(range(20))


def test_a_batch_larger_than_the_memory_budget_still_arrives() -> None:
    more: Arguments = {"num_workers": 1, "memory": "2MiB"}

    batches = list(OURS(Noise(3, 2_000_000), **more))

    assert [int(batch[0, -1]) for batch in batches] == [0, 1, 2]


def test_batches_outlive_their_loader() -> None:
    loader = OURS(Noise(6, 5000), num_workers=2)
    batches = list(loader)
    del loader
    gc.collect()

    others = list(OURS(Noise(6, 5000), num_workers=2))
    for batch in others:
        batch.fill_(-1)

    assert [float(batch.min()) for batch in batches] == list(range(6))
    assert [float(batch.max()) for batch in batches] == list(range(6))


def test_batches_outlive_an_abandoned_epoch() -> None:
    running = iter(OURS(Noise(60, 5000), num_workers=2))
    batches = [next(running) for _ in range(5)]
    del running
    gc.collect()

    assert [float(batch.max()) for batch in batches] == list(range(5))


def test_batches_outlive_the_worker_that_made_them() -> None:
    running: Any = iter(OURS(Noise(40, 5000), num_workers=1))
    batches = [next(running) for _ in range(4)]

    os.kill(running._workers[0].pid, signal.SIGKILL)
    with pytest.warns(WorkerDiedWarning, match="SIGKILL"):
        batches += list(running)

    assert [float(batch.min()) for batch in batches] == list(range(40))
    assert [float(batch.max()) for batch in batches] == list(range(40))


def test_batches_can_be_dropped_by_another_thread() -> None:
    batches: list[Any] = []

    def drop() -> None:
        while batches.pop(0) is not None:
            pass

    count = 0
    for batch in OURS(Noise(300, 5000), num_workers=2):
        assert int(batch[0, 0]) == count
        count += 1
        batches.append(batch)
        if count % 50 == 0:
            batches.append(None)
            thread = threading.Thread(target=drop)
            thread.start()
            thread.join()

    assert count == 300


@pytest.mark.parametrize("workers", [0, 2])
def test_without_an_accelerator_nothing_is_pinned_and_torchs_warning_comes(workers: int) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    # torch before 2.9 does not check whether the named accelerator exists, and fails.
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    named: Arguments = {"pin_memory_device": "cuda"} if version >= (2, 9) else {}

    def unpinned(kind: Kind) -> Any:
        loader = kind(Noise(4, 5000), pin_memory=True, num_workers=workers, **named)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = list(loader)
        return [str(warning.message) for warning in caught], [batch.is_pinned() for batch in batches]

    said, pinned = unpinned(OURS)

    assert (said, pinned) == unpinned(THEIRS)
    assert pinned == [False] * 4
    # torch before 2.8 does not warn.
    assert any("pin_memory" in line for line in said) or version < (2, 8)


# ---- storages ----


def storage(kind: str, numbers: int) -> Any:
    tensor = torch.arange(numbers)
    if kind == "shared":
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    made: Any = tensor
    return made.storage() if kind == "typed" else made.untyped_storage()


def content(storage: Any) -> tuple[type, bytes]:
    is_typed = isinstance(storage, torch.storage.TypedStorage)
    typed: Any = storage
    return type(storage), bytes(typed.untyped() if is_typed else storage)


@pytest.mark.parametrize("kind", ["untyped", "typed", "shared"])
# Empty, small enough for a frame, and large enough for shared memory.
@pytest.mark.parametrize("numbers", [0, 5, 5000])
def test_a_storage_arrives_as_with_torchs_loader(kind: str, numbers: int) -> None:
    def made(loader: Kind) -> Any:
        listed = Listed([partial(storage, kind, numbers)] * 3)
        (batch,) = loader(listed, batch_size=3, num_workers=1, collate_fn=as_it_is)
        return [content(one) for one in batch]

    assert made(OURS) == made(THEIRS)


class Holds(Dataset[Any]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.held


@pytest.mark.parametrize("kind", ["untyped", "typed", "shared"])
def test_a_storage_in_a_data_set_or_an_argument_reaches_a_worker_and_returns(kind: str) -> None:
    given = storage(kind, 5)
    spawned = OURS(Holds(given), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [content(one) for one in spawned] == [content(given)]
    with feedline.Executor(1) as executor:
        assert content(executor.submit(as_it_is, given).result()) == content(given)


def test_a_storage_without_memory_is_refused_in_the_worker() -> None:
    loader = OURS(
        Listed([partial(torch.UntypedStorage, 8, device="meta")]), num_workers=1, collate_fn=as_it_is
    )
    with pytest.raises(NotPicklableError, match="a storage on meta cannot be sent to another process"):
        list(loader)
