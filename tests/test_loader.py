"""Order, batches, settings and states of native pipelines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import feedline as fl
import numpy as np
import pytest
from batches import Batch, assert_same, indices, kept
from feedline.errors import ClosedError, InvalidArgumentError, StateMismatchError
from numpy.typing import NDArray
from pictures import encoded, noise, opened, write

Remainder = Literal["pad", "drop", "uneven"]


def numbers(count: int) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(count)})


# ---- batches ----


@pytest.mark.parametrize("size", [1, 2, 5, 7, 11, 12, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_the_number_of_batches(size: int, drop_last: bool) -> None:
    loader = numbers(11).batch(size, drop_last=drop_last).loader()

    lengths = [len(batch["x"]) for batch in loader]

    full, rest = divmod(11, size)
    assert lengths == [size] * full + ([rest] if rest and not drop_last else [])
    assert len(loader) == len(lengths)
    assert loader.report().dropped == (rest if drop_last else 0)


def test_the_length_of_a_pipeline_is_its_number_of_samples(photos: list[Path]) -> None:
    assert len(fl.files(photos).decode().batch(5)) == len(photos)


def test_the_index_column_names_the_samples_of_a_batch(photos: list[Path]) -> None:
    loader = fl.files(photos).shuffle(1).batch(5, index=True).loader()

    for batch in loader:
        assert batch["index"].dtype == np.int64
        assert batch["bytes"] == [photos[index].read_bytes() for index in batch["index"]]


def test_without_decode_samples_are_bytes(tree: Path) -> None:
    for batch in fl.images(tree).batch(7).loader():
        assert isinstance(batch["bytes"], fl.BytesList)
        assert all(isinstance(content, bytes) for content in batch["bytes"])
        assert len(batch["bytes"]) == len(batch["label"])


def test_padded_images_are_in_the_corner_and_their_shapes_in_a_column(photos: list[Path]) -> None:
    for batch in fl.files(photos).decode().batch(5, pad=True, index=True).loader():
        shapes = batch["image_shape"]
        assert batch["image"].shape[1:] == tuple(shapes.max(axis=0))
        for image, shape, index in zip(batch["image"], shapes, batch["index"], strict=True):
            picture = opened(photos[index].read_bytes())
            assert tuple(shape) == picture.shape
            np.testing.assert_array_equal(image[: shape[0], : shape[1]], picture)
            assert int(image.sum()) == int(picture.sum()), "what is around the picture is not zero"


def test_padded_floats_with_channels_first_are_in_the_corner(photos: list[Path]) -> None:
    batch = next(iter(fl.files(photos).decode().to_float().batch(4, pad=True).loader()))

    for image, shape, path in zip(batch["image"], batch["image_shape"], photos, strict=False):
        picture = np.float32(opened(path.read_bytes()).transpose(2, 0, 1)) / np.float32(255)
        assert tuple(shape) == picture.shape
        np.testing.assert_array_equal(image[:, : shape[1], : shape[2]], picture)
        assert not image[:, shape[1] :].any()
        assert not image[:, :, shape[2] :].any()


def test_padding_adds_shapes_even_if_they_are_equal(photos: list[Path]) -> None:
    batch = next(iter(fl.files(photos).decode().resize((8, 9)).batch(4, pad=True).loader()))

    assert batch["image"].shape == (4, 8, 9, 3)
    assert batch["image_shape"].tolist() == [[8, 9, 3]] * 4


def test_images_of_one_size_need_no_padding(tmp_path: Path) -> None:
    contents = {f"{number}.png": encoded(noise(number, 6, 7, 3), "PNG") for number in range(4)}
    paths = write(tmp_path, contents)

    batch = next(iter(fl.files(paths).decode().batch(4).loader()))

    np.testing.assert_array_equal(batch["image"], [opened(content) for content in contents.values()])


# ---- epochs, shuffle, shards ----


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    loader = numbers(50).shuffle(7).batch(8, index=True).loader()

    epochs = [indices(loader) for _ in range(4)]

    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[0] != list(range(50))


def test_the_seed_alone_decides_the_order() -> None:
    def orders(seed: int) -> list[list[int]]:
        loader = numbers(50).shuffle(seed).batch(8, index=True).loader()
        return [indices(loader) for _ in range(2)]

    assert orders(7) == orders(7)
    assert orders(7) != orders(8)


def test_without_shuffle_every_epoch_is_in_the_order_of_the_source() -> None:
    loader = numbers(20).batch(6, index=True).loader()

    assert [indices(loader) for _ in range(3)] == [list(range(20))] * 3


def test_random_crops_differ_from_epoch_to_epoch_and_by_seed(photos: list[Path]) -> None:
    pipeline = fl.files(photos[:4]).decode().random_resized_crop(16).batch(4)
    loader = pipeline.loader(seed=1)

    first, second = kept(loader), kept(loader)

    assert not np.array_equal(first[0]["image"], second[0]["image"])
    assert_same(kept(pipeline.loader(seed=1)), first)
    assert not np.array_equal(kept(pipeline.loader(seed=2))[0]["image"], first[0]["image"])


@pytest.mark.parametrize("remainder", ["pad", "drop", "uneven"])
@pytest.mark.parametrize(("samples", "world"), [(20, 4), (21, 4), (3, 4), (7, 1)])
def test_all_ranks_together_have_the_epoch(samples: int, world: int, remainder: Remainder) -> None:
    pipeline = numbers(samples).shuffle(5)
    parts = [
        indices(pipeline.shard(rank, world, remainder).batch(2, index=True).loader()) for rank in range(world)
    ]

    together = [index for part in parts for index in part]
    lengths = {len(part) for part in parts}
    if remainder == "pad":
        assert lengths == {-(-samples // world)}
        assert set(together) == set(range(samples))
    elif remainder == "drop":
        assert lengths == {samples // world}
        assert len(set(together)) == len(together)
    else:
        assert sorted(together) == list(range(samples))
        assert max(lengths) - min(lengths) <= 1


def test_the_rank_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")

    automatic = numbers(20).shard("auto").batch(5, index=True)
    given_rank = numbers(20).shard(2, 4).batch(5, index=True)

    assert indices(automatic.loader()) == indices(given_rank.loader()) == [2, 6, 10, 14, 18]


def test_without_an_environment_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    assert indices(numbers(5).shard().batch(5, index=True).loader()) == list(range(5))


def test_a_rank_in_the_environment_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")

    with pytest.raises(InvalidArgumentError, match="first"):
        numbers(5).shard()


# ---- threads and budgets ----

SPLIT_BUDGETS: list[dict[str, Any]] = [
    {"prefetch": 0},
    {"prefetch": 1},
    {"prefetch": "1MiB"},
    {"prefetch": "64MiB"},
    {"memory": "1MiB"},
    {"readers": 1, "files": 1},
    {"readers": 16, "files": 2},
]


@pytest.fixture(scope="module")
def expected(photos: list[Path]) -> list[Batch]:
    loader = crops(photos).loader(threads=1, readers=1)
    return kept(loader) + kept(loader)


def crops(photos: list[Path]) -> fl.Pipeline:
    return fl.files(photos, range(24)).shuffle(3).decode().random_resized_crop(24).flip().batch(5, index=True)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("budget", SPLIT_BUDGETS)
def test_batches_are_the_same_for_any_threads_and_budgets(
    photos: list[Path], expected: list[Batch], threads: int, budget: dict[str, Any]
) -> None:
    loader = crops(photos).loader(threads=threads, **budget)

    assert_same(kept(loader) + kept(loader), expected)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("prefetch", [0, 1, "64MiB"])
def test_batches_of_arrays_and_padded_ones_are_the_same_for_any_threads(
    photos: list[Path], threads: int, prefetch: int | str
) -> None:
    arrays = (
        fl.arrays({"image": noise(1, 300, 9, 9, 3), "y": np.arange(300)}).shuffle(1).random_crop(5).batch(7)
    )
    padded = fl.files(photos).shuffle(1).decode().flip().batch(5, pad=True)

    for pipeline in (arrays, padded):
        ours = kept(pipeline.loader(threads=threads, prefetch=prefetch))
        assert_same(ours, kept(pipeline.loader(threads=1)))


# ---- states ----


def corrupt(photos: list[Path], folder: Path, bad: Sequence[int]) -> list[Path]:
    """The photos, some of them truncated."""
    contents = [path.read_bytes() for path in photos]
    return write(
        folder,
        {
            f"{number:02}.jpg": content[: len(content) // 2] if number in bad else content
            for number, content in enumerate(contents)
        },
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("bad", "policy"),
    [
        ((), fl.FaultPolicy()),
        ((0, 4, 5, 6, 13, 23), fl.FaultPolicy("skip")),
        ((0, 4, 5, 6, 13, 23), fl.FaultPolicy("skip", limit=6)),
        ((0, 4, 5, 6, 13, 23), fl.FaultPolicy("replace")),
    ],
)
def test_a_run_resumed_after_any_batch_continues_identically(
    tmp_path: Path, photos: list[Path], bad: Sequence[int], policy: fl.FaultPolicy, drop_last: bool
) -> None:
    paths = corrupt(photos, tmp_path, bad)
    pipeline = fl.files(paths).shuffle(3).decode().random_resized_crop(16).flip()
    pipeline = pipeline.batch(5, index=True, drop_last=drop_last)
    loader = pipeline.loader(faults=policy)
    whole: list[Batch] = []
    states = [loader.state_dict()]
    for _ in range(2):
        for batch in loader:
            whole += kept([batch])
            states.append(loader.state_dict())

    for taken, state in enumerate(states):
        again = pipeline.loader(threads=3, faults=policy)
        again.load_state_dict(state)
        # The rest of the epoch, which may be empty, and the epochs after it.
        rest = [batch for _ in range(3) for batch in kept(again)]
        assert_same(rest[: len(whole) - taken], whole[taken:])


def test_faults_before_a_state_still_count_against_the_limit(tmp_path: Path, photos: list[Path]) -> None:
    paths = corrupt(photos, tmp_path, (0, 1, 20))
    pipeline = fl.files(paths).decode().resize((8, 8)).batch(4)
    policy = fl.FaultPolicy("skip", limit=2)
    loader = pipeline.loader(faults=policy)
    next(iter(loader))
    again = pipeline.loader(faults=policy)
    again.load_state_dict(loader.state_dict())

    with pytest.raises(fl.errors.TooManyFaultsError):
        list(again)


def test_a_state_of_a_finished_epoch_leads_to_the_next() -> None:
    pipeline = numbers(20).shuffle(1).batch(6, index=True)
    loader = pipeline.loader()
    list(loader)
    state = loader.state_dict()

    again = pipeline.loader()
    again.load_state_dict(state)

    assert indices(again) == indices(loader)


def test_a_loader_can_resume_from_its_own_earlier_state() -> None:
    loader = numbers(20).shuffle(1).batch(6, index=True).loader()
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    rest = indices(running)

    loader.load_state_dict(state)

    assert indices(loader) == rest


def test_resuming_ends_the_running_epoch() -> None:
    # Many rounds: each one catches the epoch at another moment of its work.
    for _ in range(20):
        loader = numbers(2000).batch(2).loader(prefetch=0)
        running = iter(loader)
        next(running)
        loader.load_state_dict(loader.state_dict())

        with pytest.raises(ClosedError):
            next(running)


@pytest.mark.parametrize(
    "other",
    [
        lambda: numbers(19).shuffle(1).batch(6),
        lambda: fl.arrays({"y": np.arange(20)}).shuffle(1).batch(6),
        lambda: fl.arrays({"x": np.arange(20.0)}).shuffle(1).batch(6),
        lambda: numbers(20).shuffle(2).batch(6),
        lambda: numbers(20).batch(6),
        lambda: numbers(20).shuffle(1).batch(5),
        lambda: numbers(20).shuffle(1).batch(6, drop_last=True),
        lambda: numbers(20).shuffle(1).batch(6, index=True),
        lambda: numbers(20).shuffle(1).shard(0, 2).shuffle(2).batch(6),
        lambda: numbers(20).shuffle(1).shard(0, 1, "drop").batch(6),
    ],
)
def test_a_state_of_other_data_or_settings_is_refused(other: Callable[[], fl.Pipeline]) -> None:
    state = other().loader().state_dict()

    with pytest.raises(StateMismatchError):
        numbers(20).shuffle(1).batch(6).loader().load_state_dict(state)


def test_a_state_of_other_transforms_files_or_seed_is_refused(photos: list[Path]) -> None:
    def loader(paths: list[Path], size: int, seed: int) -> fl.Loader:
        return fl.files(paths).decode().random_resized_crop(size).batch(6).loader(seed=seed)

    ours = loader(photos, 16, 1)
    ours.load_state_dict(ours.state_dict())
    for other in (loader(photos[::-1], 16, 1), loader(photos, 17, 1), loader(photos, 16, 2)):
        with pytest.raises(StateMismatchError):
            ours.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("", "must be a dict or a list of dicts, got ''"),
        ("{}", "must be a dict or a list of dicts"),
        (None, "must be a dict or a list of dicts, got None"),
        ([5], "must be a dict or a list of dicts"),
        ([], "no state in the list"),
        ({}, "it has no version"),
        ({"version": "6"}, "it has no version"),
        ({"version": float("nan")}, "not a state"),
        ({"version": object()}, "not a state"),
        ({"version": 6, 7: 8}, "not a state"),
        ({"version": 1}, "version 1, this Feedline reads versions 5 to 6\nhint: start from the beginning"),
        ({"version": 700}, "version 700, this Feedline reads versions 5 to 6\nhint: update Feedline"),
    ],
)
def test_an_invalid_state_is_refused(state: Any, message: str) -> None:
    with pytest.raises(StateMismatchError, match=re.escape(message)):
        numbers(20).batch(6).loader().load_state_dict(state)


# ---- wrong settings ----

Build = Callable[[fl.Pipeline], object]

MISTAKES: list[tuple[str, Build, str]] = [
    ("a seed below zero", lambda files: files.shuffle(-1), "-1"),
    ("a seed that is no whole number", lambda files: files.shuffle(1.5), "1.5"),  # type: ignore[arg-type]
    ("a rank outside the world", lambda files: files.shard(4, 4), "4"),
    ("a rank without a world", lambda files: files.shard(3), "3"),
    ("a world without a rank", lambda files: files.shard(world=3), "3"),
    ("an empty world", lambda files: files.shard(0, 0), "0"),
    ("an unknown remainder", lambda files: files.shard(0, 2, "keep"), "keep"),  # type: ignore[arg-type]
    ("an unknown mode", lambda files: files.decode("cmyk"), "cmyk"),  # type: ignore[arg-type]
    ("no pixels at all", lambda files: files.decode(max_pixels=0), "0"),
    ("a word for a truth", lambda files: files.decode(orient="yes"), "yes"),  # type: ignore[arg-type]
    ("a size of zero", lambda files: files.decode().resize(0), "0"),
    ("a size below zero", lambda files: files.decode().center_crop(-3), "-3"),
    ("a size of three sides", lambda files: files.decode().resize((1, 2, 3)), "[1,2,3]"),
    ("a size that is a word", lambda files: files.decode().resize("big"), "big"),  # type: ignore[arg-type]
    ("a size beyond all bounds", lambda files: files.decode().resize(1 << 20), "1048576"),
    ("a size that is half a pixel", lambda files: files.decode().resize(2.5), "2.5"),  # type: ignore[arg-type]
    ("an unknown filter", lambda files: files.decode().resize(8, "nearest"), "nearest"),  # type: ignore[arg-type]
    ("padding below zero", lambda files: files.decode().random_crop(8, -1), "-1"),
    ("a scale of nothing", lambda files: files.decode().random_resized_crop(8, (0.0, 1.0)), "[0.0,1.0]"),
    ("a scale upside down", lambda files: files.decode().random_resized_crop(8, (0.5, 0.2)), "[0.5,0.2]"),
    ("a scale above one", lambda files: files.decode().random_resized_crop(8, (0.5, 1.5)), "[0.5,1.5]"),
    ("a ratio below zero", lambda files: files.decode().random_resized_crop(8, ratio=(-1.0, 2.0)), "-1.0"),
    ("a probability above one", lambda files: files.decode().flip(1.5), "1.5"),
    ("a probability that is no number", lambda files: files.decode().flip(float("nan")), "nan"),
    ("too few means", lambda files: files.decode().to_float(mean=[0.1, 0.2]), "[0.1,0.2]"),
    ("a deviation of zero", lambda files: files.decode().to_float(std=0.0), "0"),
    ("an infinite mean", lambda files: files.decode().to_float(mean=float("inf")), "inf"),
    ("an unknown layout", lambda files: files.decode().to_float(layout="NHWC"), "NHWC"),  # type: ignore[arg-type]
    ("a type that is too small", lambda files: files.decode().cast("int8"), "int8"),
    ("a type that is unknown", lambda files: files.decode().cast("float33"), "float33"),
    ("no type", lambda files: files.decode().cast(None), "dtype"),  # type: ignore[arg-type]
    ("a batch of nothing", lambda files: files.batch(0), "0"),
    ("a batch of half samples", lambda files: files.batch(2.5), "2.5"),  # type: ignore[arg-type]
    ("a number for a truth", lambda files: files.batch(2, drop_last=2), "2"),  # type: ignore[arg-type]
    ("no threads", lambda files: files.batch(2).loader(threads=0), "0"),
    ("an unknown word for threads", lambda files: files.batch(2).loader(threads="all"), "all"),  # type: ignore[arg-type]
    ("no files", lambda files: files.batch(2).loader(files=0), "0"),
    ("no readers", lambda files: files.batch(2).loader(readers=0), "0"),
    ("an unknown unit", lambda files: files.batch(2).loader(memory="5 apples"), "5 apples"),
    ("too little memory", lambda files: files.batch(2).loader(memory=1000), "1000"),
    ("memory below zero", lambda files: files.batch(2).loader(memory=-1), "-1"),
    ("all memory prefetched", lambda files: files.batch(2).loader(memory="2MiB", prefetch="2MiB"), "2097152"),
    ("a loader's seed below zero", lambda files: files.batch(2).loader(seed=-5), "-5"),
    ("a seed of 65 bits", lambda files: files.batch(2).loader(seed=1 << 64), "18446744073709551616"),
    ("a policy that is none", lambda files: files.batch(2).loader(faults="skip"), "skip"),  # type: ignore[arg-type]
    ("an unknown policy", lambda files: fl.FaultPolicy("ignore"), "ignore"),  # type: ignore[arg-type]
    ("a share above one", lambda files: fl.FaultPolicy("skip", limit=1.5), "1.5"),
    ("a count below zero", lambda files: fl.FaultPolicy("skip", limit=-1), "-1"),
    ("a truth for a count", lambda files: fl.FaultPolicy("skip", limit=True), "True"),
    ("an object that is no value", lambda files: files.decode().resize({3}), "{3}"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "value"),
    [(build, value) for _, build, value in MISTAKES],
    ids=[name for name, _, _ in MISTAKES],
)
def test_a_wrong_setting_is_refused_at_once_with_its_value(build: Build, value: str) -> None:
    files = fl.files(["never-opened.jpg"])

    with pytest.raises(InvalidArgumentError) as caught:
        build(files)

    assert isinstance(caught.value, ValueError)
    assert value in str(caught.value)


MISPLACED: list[tuple[str, Build]] = [
    ("resize before decode", lambda files: files.resize(8)),
    ("to_float before decode", lambda files: files.to_float()),
    ("decode twice", lambda files: files.decode().decode()),
    ("decode after batch", lambda files: files.batch(2).decode()),
    ("resize after batch", lambda files: files.decode().batch(2).resize(8)),
    ("resize after to_float", lambda files: files.decode().to_float().resize(8)),
    ("cast after to_float", lambda files: files.decode().to_float().cast("int64")),
    ("batch twice", lambda files: files.batch(2).batch(2)),
    ("shuffle after batch", lambda files: files.batch(2).shuffle()),
    ("shard after batch", lambda files: files.batch(2).shard(0, 1)),
    ("loader without batch", lambda files: files.decode().loader()),
]


@pytest.mark.parametrize("build", [build for _, build in MISPLACED], ids=[name for name, _ in MISPLACED])
def test_a_call_out_of_order_is_refused_with_a_hint(build: Build) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        build(fl.files(["never-opened.jpg"]))

    assert caught.value.hint
    assert caught.value.hint in str(caught.value)


@pytest.mark.parametrize("image", [noise(1, 5, 9, 8, 4), noise(1, 5, 9, 8), np.zeros((5, 9, 8, 3))])
def test_an_array_that_is_not_an_image_cannot_be_resized(image: NDArray[Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="resize needs a picture"):
        fl.arrays({"image": image}).resize(3)


def test_arrays_cannot_be_decoded() -> None:
    with pytest.raises(InvalidArgumentError, match="decode"):
        numbers(3).decode()


def test_building_on_a_pipeline_does_not_change_it() -> None:
    start = fl.files(["a.jpg"]).decode()
    before = start.settings

    start.resize(8).batch(2)

    assert start.settings == before
    assert start.batch(3).settings[-1]["size"] == 3


def test_numpy_numbers_are_accepted_as_numbers() -> None:
    pipeline = fl.files(["a.jpg"]).decode().resize(np.array([4, 5])).batch(np.int64(3))  # type: ignore[arg-type]

    assert [call.get("size") for call in pipeline.settings] == [None, [4, 5], 3]


# ---- the report ----


def test_the_report_adds_up_while_an_epoch_runs_and_after_it() -> None:
    loader = numbers(20).batch(6).loader()
    running = iter(loader)
    next(running)
    report = loader.report()
    assert (report.expected, report.delivered, report.pending, report.batches) == (20, 6, 14, 1)

    list(running)
    report = loader.report()

    assert (report.epochs, report.completed, report.delivered, report.pending) == (1, 1, 20, 0)
    assert report.delivered + report.skipped + report.pending == report.expected
    assert "20 samples delivered" in str(report)


def test_decided_shows_the_requested_values() -> None:
    loader = (
        fl.files(["a.jpg"]).batch(2).loader(threads=3, readers=5, files=7, prefetch="2MiB", memory="64MiB")
    )

    assert loader.decided == {"threads": 3, "readers": 5, "files": 7, "prefetch": 2 << 20, "memory": 64 << 20}
