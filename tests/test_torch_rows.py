"""Large samples are copied into their batch as soon as they are made; batches are the same as torch's."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.remains import eventually
from feedline import FaultPolicy
from feedline.torch import DataLoader
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

# Larger than what is copied early, so that a batch has rows.
SIDE = 160
COUNT = 22


def picture(index: int, kind: str = "tensor") -> Any:
    values = torch.arange(SIDE * SIDE, dtype=torch.float32).reshape(SIDE, SIDE) + index
    return values if kind == "tensor" else values.numpy()


class Pictures:
    """Samples of one structure. It keeps them all, as a data set with a cache does."""

    def __init__(self, structure: str) -> None:
        self.structure = structure
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.kept[index] = sample = make(self.structure, index)
        before = repr(sample)
        for number, other in self.kept.items():
            assert repr(other) == repr(make(self.structure, number)), "a kept sample has changed"
        assert repr(sample) == before
        return sample


def make(structure: str, index: int) -> Any:
    image, array = picture(index), picture(index, "array")
    samples: dict[str, Any] = {
        "tensor": image,
        "array": array,
        "transposed": image.t(),
        "tuple": (image, index),
        "list": [index, array],
        "dict": {"image": image, "mask": array, "name": f"{index}"},
        "nested": (image, {"mask": array}),
        "doubles": (image.double(), image > 100),
        "strings": ("a", index),
        # Not the same in every sample.
        "mixed": (image, 1) if index % 3 else (array, 1),
        "longer dict": {"image": image, **({"more": index} if index % 4 == 3 else {})},
    }
    return samples[structure]


def batches(loader: Any) -> list[Any]:
    return list(loader)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


STRUCTURES = ["tensor", "array", "transposed", "tuple", "list", "dict", "nested", "doubles", "strings"]


@pytest.mark.parametrize("policy", [None, FaultPolicy("skip")])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_batches_of_large_samples_are_those_of_torch(structure: str, policy: FaultPolicy | None) -> None:
    dataset: Any = Pictures(structure)
    found = batches(DataLoader(dataset, batch_size=4, num_workers=2, faults=policy))
    assert_same(found, batches(TorchLoader(dataset, batch_size=4)))


def test_tensors_and_arrays_in_one_batch_are_those_of_torch() -> None:
    dataset: Any = Pictures("mixed")
    found = batches(DataLoader(dataset, batch_size=4, num_workers=1, sampler=[0, 3, 6, 9, 0, 1, 2, 4]))
    assert_same(found, batches(TorchLoader(dataset, batch_size=4, sampler=[0, 3, 6, 9, 0, 1, 2, 4])))


def test_a_key_that_only_some_samples_have_is_treated_as_in_torch() -> None:
    dataset: Any = Pictures("longer dict")
    found = batches(DataLoader(dataset, batch_size=4, num_workers=1))
    assert_same(found, batches(TorchLoader(dataset, batch_size=4)))


class FailsAt:
    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == self.index:
            raise ValueError(f"sample {index} is bad")
        return picture(index, self.kind), index


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_a_bad_sample_in_a_batch_of_large_ones_is_skipped_alone(kind: str) -> None:
    dataset: Any = FailsAt(5, kind)
    found = batches(DataLoader(dataset, batch_size=4, num_workers=2, faults=FaultPolicy("skip", limit=None)))
    seen: dict[int, torch.Tensor] = {}
    for images, indices in found:
        seen |= {int(index): image for index, image in zip(indices, images, strict=True)}
    assert sorted(seen) == [index for index in range(COUNT) if index != 5]
    for index, image in seen.items():
        assert torch.equal(image, picture(index))


class OddShape(FailsAt):
    def __getitem__(self, index: int) -> Any:
        image = picture(index)
        return image[:-1] if index == self.index else image


def test_a_sample_of_another_shape_is_named() -> None:
    dataset: Any = OddShape(6, "tensor")
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        batches(DataLoader(dataset, batch_size=4, num_workers=1))
    assert "feedline: sample 6 gives a tensor of shape (159, 160)" in str(caught.value)


def add_one(samples: list[Any]) -> Any:
    return default_collate(samples) + 1


def test_a_collate_function_of_the_user_gets_samples_that_do_not_share_memory() -> None:
    dataset: Any = Pictures("tensor")
    found = batches(DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=add_one))
    assert_same(found, batches(TorchLoader(dataset, batch_size=4, collate_fn=add_one)))


class Weighed:
    """Returns the memory of its worker that no other process shares."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # Values of their own, and without leftovers of the allocator.
        image = torch.full((3, 512, 512), float(index))
        gc.collect()
        fields = Path("/proc/self/smaps_rollup").read_text().split("\n")
        (anonymous,) = [int(line.split()[1]) for line in fields if line.startswith("Anonymous:")]
        return image, anonymous * 1024


def test_a_worker_does_not_hold_a_batch_twice() -> None:
    size, bytes_each = 32, 3 * 512 * 512 * 4
    dataset: Any = Weighed(3 * size)
    for images, anonymous in DataLoader(dataset, batch_size=size, num_workers=1):
        assert images[:, 0, 0, 0].tolist() == sorted(images[:, 0, 0, 0].tolist())
        grown = int(anonymous.max() - anonymous.min())
        assert grown < size * bytes_each / 2, f"{grown} bytes more during a batch"


def arena_bytes(pid: int) -> int:
    """The bytes of its arena that a worker has mapped and that take memory."""
    total, is_arena = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_arena = "feedline-arena" in line
        elif is_arena and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_a_worker_without_work_returns_the_memory_of_batches_that_are_gone() -> None:
    dataset: Any = Pictures("tensor")
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    iterator: Any = iter(loader)
    kept = next(iterator)
    pid = iterator._workers[0].pid
    assert sum(len(batch) for batch in iterator) == COUNT - len(kept)

    size = kept.nbytes
    assert eventually(lambda: arena_bytes(pid) < 2 * size)
    assert arena_bytes(pid) >= size
    assert torch.equal(kept[3], picture(3))

    del kept
    assert eventually(lambda: arena_bytes(pid) < SIDE * SIDE)


class Uneven:
    """Samples from a kilobyte to 50 MB, the large ones next to one another."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((50_000_000 if index % 10 > 3 else 1000,), index, dtype=torch.uint8)


def allocated_bytes(pids: list[int]) -> int:
    """The memory that the arenas of some workers take."""
    sizes = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/map_files").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if "feedline-arena" in str(link.readlink()):
                    status = link.stat()
                    sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def test_what_is_in_flight_stays_within_the_memory_of_the_loader_and_one_sample() -> None:
    dataset: Any = Uneven()
    limit = 64 << 20
    loader = DataLoader(dataset, batch_size=None, num_workers=2, prefetch_factor=8, memory=limit)
    iterator: Any = iter(loader)
    pids = [worker.pid for worker in iterator._workers]
    most = 0
    for index, sample in enumerate(iterator):
        assert sample[0] == sample[-1] == index
        most = max(most, allocated_bytes(pids))
    # It was used, and one sample that the consumer waits for may go beyond it.
    assert 50_000_000 < most < limit + 2 * 50_000_000
    reported = loader.report().resources["shared_memory"]
    assert reported.budget == limit
    assert 50_000_000 < reported.peak < limit + 2 * 50_000_000
