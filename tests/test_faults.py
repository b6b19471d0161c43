"""Bad samples: what is raised, what is skipped, and what replaces them."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from draws import Draws
from feedline import _native, errors
from feedline.errors import FeedlineError
from filled import filled_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, noise, photo, png, write
from programs import answer

PHOTO = photo(1, 90, 70)
JPEG = encoded(PHOTO)
PNG = encoded(PHOTO, "PNG")
WEBP = encoded(PHOTO, "WEBP")

SKIP = fl.FaultPolicy("skip", limit=None)
REPLACE = fl.FaultPolicy("replace", limit=None)


def with_jpeg_size(content: bytes, width: int, height: int) -> bytes:
    frame = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
    return content[: frame + 5] + struct.pack(">HH", height, width) + content[frame + 9 :]


def with_png_size(content: bytes, width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


BOMBS = {
    "JPEG": with_jpeg_size(JPEG, 65500, 65500),
    "progressive JPEG": with_jpeg_size(encoded(PHOTO, progressive=True), 65500, 65500),
    "PNG": with_png_size(PNG, 1 << 30, 1 << 30),
    "PNG beyond 32 bits": with_png_size(PNG, (1 << 32) - 1, (1 << 32) - 1),
}

BAD: dict[str, tuple[bytes, type[FeedlineError]]] = {
    "truncated JPEG": (JPEG[: len(JPEG) // 2], errors.CorruptImageError),
    "truncated progressive JPEG": (encoded(PHOTO, progressive=True)[:-300], errors.CorruptImageError),
    "truncated PNG": (PNG[: len(PNG) // 2], errors.CorruptImageError),
    "truncated WebP": (WEBP[: len(WEBP) // 2], errors.CorruptImageError),
    "JPEG of nothing but a header": (JPEG[:20], errors.CorruptImageError),
    "PNG with a wrong checksum": (PNG[:100] + bytes([PNG[100] ^ 1]) + PNG[101:], errors.CorruptImageError),
    "empty file": (b"", errors.CorruptImageError),
    "JPEG without rows": (with_jpeg_size(JPEG, 90, 0), errors.CorruptImageError),
    "text": (b"this is no image", errors.UnknownFormatError),
    "GIF": (encoded(PHOTO, "GIF"), errors.UnknownFormatError),
    "BMP": (encoded(PHOTO, "BMP"), errors.UnknownFormatError),
    **{f"bomb, {name}": (content, errors.TooLargeError) for name, content in BOMBS.items()},
}


def small(paths: Sequence[Path], size: int = 3) -> fl.Pipeline:
    return fl.files(paths).decode().resize((8, 8)).batch(size, index=True)


def taken(loader: fl.Loader) -> tuple[list[list[int]], FeedlineError | None]:
    """The indices of each batch, and the error that ended the epoch."""
    batches: list[list[int]] = []
    try:
        for batch in loader:
            batches.append(batch["index"].tolist())
    except FeedlineError as error:
        return batches, error
    return batches, None


# ---- raise ----


@pytest.mark.parametrize(("content", "kind"), BAD.values(), ids=BAD)
def test_a_bad_file_is_raised_with_its_name_after_the_batches_before_it(
    tmp_path: Path, photos: list[Path], content: bytes, kind: type[FeedlineError]
) -> None:
    bad = write(tmp_path, {"bad.jpg": content})[0]

    batches, error = taken(small([*photos[:7], bad, *photos[7:]]).loader())

    assert batches == [[0, 1, 2], [3, 4, 5]]
    assert type(error) is kind
    assert (error.index, error.path, error.offset, error.stage) == (7, str(bad), None, "worker")
    assert error.hint
    assert all(part in str(error) for part in ("sample 7", str(bad), error.hint))


@pytest.mark.parametrize("decoded", [False, True])
def test_a_missing_file_is_raised_with_its_name_after_the_batches_before_it(
    tmp_path: Path, decoded: bool
) -> None:
    paths = write(tmp_path, {f"cat/{number}.jpg": JPEG for number in range(8)})
    pipeline = fl.images(tmp_path)
    paths[5].unlink()

    loader = (pipeline.decode() if decoded else pipeline).batch(3, index=True).loader()
    batches, error = taken(loader)

    assert batches == [[0, 1, 2]]
    assert type(error) is errors.ReadError
    assert (error.index, error.path, error.stage) == (5, str(paths[5]), "fetch")
    assert "no such file" in str(error)


def test_a_folder_instead_of_a_file_is_raised_with_its_name(tmp_path: Path, photos: list[Path]) -> None:
    batches, error = taken(small([*photos[:3], tmp_path]).loader())

    assert batches == [[0, 1, 2]]
    assert type(error) is errors.ReadError
    assert (error.index, error.path, error.stage) == (3, str(tmp_path), "fetch")
    assert "not a regular file" in str(error)


def test_a_pipe_instead_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    program = """
    os.mkfifo(arguments[0])
    try:
        next(iter(fl.files(arguments).batch(1).loader()))
    except fl.errors.ReadError as error:
        say([error.path, error.stage])
    """

    assert answer(program, tmp_path / "pipe", seconds=200) == [str(tmp_path / "pipe"), "fetch"]


def test_the_first_bad_sample_in_order_is_raised_for_any_number_of_threads(
    tmp_path: Path, photos: list[Path]
) -> None:
    # The later fault is found at once, the earlier one only after a large image is decoded.
    large = encoded(photo(2, 1500, 1200), "PNG")
    paths = write(tmp_path, {"large.png": large[: len(large) - 30], "empty.jpg": b""})
    for threads in (1, 2, 8):
        batches, error = taken(small([*photos[:3], *paths]).loader(threads=threads))

        assert batches == [[0, 1, 2]]
        assert error is not None
        assert error.index == 3


def test_the_iterator_is_exhausted_after_an_error(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a.jpg": b"", "b.jpg": JPEG})
    running = iter(small(paths).loader())
    with pytest.raises(errors.CorruptImageError):
        next(running)

    assert list(running) == []


@pytest.mark.parametrize(
    "content",
    [
        JPEG,
        encoded(PHOTO, progressive=True),
        encoded(photo(1, 30, 20), "PNG"),
        png(photo(1, 30, 20), 8, interlaced=True),
        WEBP,
        encoded(photo(1, 30, 20), "WEBP", lossless=True),
        encoded(np.dstack([PHOTO, noise(1, 70, 90)]), "WEBP"),
    ],
    ids=["JPEG", "progressive JPEG", "PNG", "interlaced PNG", "WebP", "lossless WebP", "WebP with alpha"],
)
def test_an_image_truncated_anywhere_is_a_fault_never_silently_gray(tmp_path: Path, content: bytes) -> None:
    lengths = sorted(
        {*range(0, len(content), 1 + len(content) // 500), *range(len(content) - 64, len(content))}
    )
    paths = write(tmp_path, {str(length): content[:length] for length in lengths})
    loader = small(paths, 1).loader(faults=SKIP)

    batches, error = taken(loader)

    # No good sample is left, which is an error.
    assert type(error) is errors.TooManyFaultsError
    assert [lengths[index] for (index,) in batches] == [], f"of {len(content)} bytes"
    assert {fault.kind for fault in loader.report().faults} <= {"CorruptImageError", "UnknownFormatError"}


def test_no_corrupt_byte_of_an_image_breaks_the_run(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    contents = {}
    for form, content in {"jpeg": JPEG, "png": PNG, "webp": WEBP}.items():
        for number in range(150):
            corrupt = bytearray(content)
            corrupt[random.integers(len(content))] ^= 1 << random.integers(8)
            contents[f"{number}.{form}"] = bytes(corrupt)
    loader = small(write(tmp_path, contents)).loader(faults=SKIP)

    batches, error = taken(loader)

    report = loader.report()
    assert error is None
    assert sum(map(len, batches)) + report.skipped == report.expected == 450
    assert not [fault for fault in report.faults if fault.kind == "CodecPanicError"]


@pytest.mark.parametrize("name", BOMBS)
def test_an_image_that_claims_to_be_huge_is_refused_before_memory_is_allocated(
    tmp_path: Path, photos: list[Path], name: str
) -> None:
    program = """
    def first(path):
        return next(iter(fl.files([path]).decode().batch(1).loader(threads=1)))
    first(arguments[0])
    before = memory("VmHWM")
    try:
        first(arguments[1])
    except fl.errors.TooLargeError:
        say(memory("VmHWM") - before)
    """

    grown = answer(program, photos[0], *write(tmp_path, {"bomb": BOMBS[name]}))

    assert grown < 8 << 20


def test_the_user_sets_the_limit_of_pixels(photos: list[Path]) -> None:
    # The first photo has 60 x 80 pixels.
    allowed = fl.files(photos[:1]).decode(max_pixels=4800).batch(1)
    assert next(iter(allowed.loader()))["image"].shape == (1, 80, 60, 3)

    with pytest.raises(errors.TooLargeError, match="60 x 80 pixels are more than the limit of 4799"):
        next(iter(fl.files(photos[:1]).decode(max_pixels=4799).batch(1).loader()))


def test_a_crop_that_does_not_fit_is_raised_with_both_sizes(photos: list[Path]) -> None:
    with pytest.raises(errors.TooSmallError, match="80 x 81 does not fit into an image of 80 x 60") as caught:
        next(iter(fl.files(photos).decode().random_crop((80, 81), padding=10).batch(1).loader()))

    assert (caught.value.index, caught.value.path, caught.value.stage) == (0, str(photos[0]), "worker")


def test_a_shape_that_does_not_fit_names_both_samples(photos: list[Path]) -> None:
    loader = fl.files([photos[3], photos[3], photos[5]]).decode().batch(3).loader()

    with pytest.raises(errors.ShapeMismatchError) as caught:
        next(iter(loader))

    assert (caught.value.index, caught.value.path, caught.value.stage) == (2, str(photos[5]), "collate")
    assert "sample 2 has shape [75, 65, 3]" in str(caught.value)
    assert "sample 0 in the same batch [77, 63, 3]" in str(caught.value)


def test_an_odd_first_sample_is_the_one_that_does_not_fit(photos: list[Path]) -> None:
    pipeline = fl.files([photos[5], photos[3], photos[3], photos[3]]).decode().batch(4)

    with pytest.raises(errors.ShapeMismatchError) as caught:
        next(iter(pipeline.loader()))
    assert (caught.value.index, caught.value.path) == (0, str(photos[5]))

    with pytest.warns(errors.SampleSkippedWarning, match="sample 0"):
        (batch,) = pipeline.loader(faults=fl.FaultPolicy("skip"))
    assert batch["image"].shape == (3, 77, 63, 3)


# ---- skip ----


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A bad file of every kind that is detected quickly."""
    contents = {name: content for name, (content, _) in BAD.items() if "bomb" not in name}
    return write(
        tmp_path_factory.mktemp("bad"), {f"{at}.jpg": content for at, content in enumerate(contents.values())}
    )


def mixed(photos: list[Path], bad: list[Path], places: set[int]) -> list[Path]:
    """The photos, with bad files at these indices."""
    return [bad[at % len(bad)] if at in places else path for at, path in enumerate(photos)]


@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(
    places=st.sets(st.integers(0, 23)), size=st.integers(1, 9), threads=st.sampled_from([1, 2, 3, 8]),
    drop_last=st.booleans(), shuffled=st.booleans(), padded=st.booleans(),
)  # fmt: skip
def test_the_last_samples_fill_the_slots_of_skipped_ones(
    photos: list[Path], bad: list[Path], places: set[int], size: int, threads: int,
    drop_last: bool, shuffled: bool, padded: bool,
) -> None:  # fmt: skip
    pipeline = fl.files(mixed(photos, bad, places))
    pipeline = pipeline.shuffle(4) if shuffled else pipeline
    order = [index for batch in pipeline.batch(24, index=True).loader() for index in batch["index"].tolist()]
    pipeline = pipeline.decode() if padded else pipeline.decode().resize((8, 8))
    loader = pipeline.batch(size, index=True, drop_last=drop_last, pad=padded).loader(
        threads=threads, faults=SKIP
    )

    batches, error = taken(loader)

    expected = filled_batches(order, places, size, drop_last=drop_last)
    report = loader.report()
    assert error is None
    assert batches == expected
    assert (report.delivered, report.skipped) == (sum(map(len, expected)), len(places))
    assert report.delivered + report.skipped == report.expected
    assert report.pending == 0
    assert {fault.index for fault in report.faults} == places


def test_skipping_samples_does_not_change_the_pixels_of_others(photos: list[Path], bad: list[Path]) -> None:
    def images(paths: list[Path]) -> dict[int, Any]:
        pipeline = fl.files(paths).decode().random_resized_crop(16).flip().batch(5, index=True)
        batches = list(pipeline.loader(seed=2, faults=SKIP))
        return {
            int(index): image
            for batch in batches
            for index, image in zip(batch["index"], batch["image"], strict=True)
        }

    whole, skipped = images(photos), images(mixed(photos, bad, {0, 3, 4, 11, 12, 13, 14, 15, 22}))

    assert len(skipped) == 15
    for index, image in skipped.items():
        np.testing.assert_array_equal(image, whole[index])


def test_the_report_names_every_fault(photos: list[Path], bad: list[Path], tmp_path: Path) -> None:
    paths = mixed(photos, bad, {2, 8})
    paths[5] = tmp_path / "gone.jpg"
    loader = small(paths).loader(faults=SKIP)
    for _ in range(2):
        list(loader)

    report = loader.report()

    two, five, eight = report.faults
    assert [(fault.index, fault.path) for fault in report.faults] == [
        (at, str(paths[at])) for at in (2, 5, 8)
    ]
    assert (two.stage, two.kind, five.stage, five.kind) == (
        "worker",
        "CorruptImageError",
        "fetch",
        "ReadError",
    )
    assert (eight.stage, eight.kind) == ("worker", "UnknownFormatError")
    assert "no such file" in five.reason
    assert [(fault.epoch, fault.times) for fault in report.faults] == [(0, 2)] * 3
    assert all(f"sample {at} " in str(report) and str(paths[at]) in str(report) for at in (2, 5, 8))
    assert [fault["path"] for fault in json.loads(report.to_json())["faults"]] == [
        str(paths[at]) for at in (2, 5, 8)
    ]


def test_an_epoch_without_any_good_sample_is_an_error(bad: list[Path]) -> None:
    loader = small(bad).loader(faults=SKIP)

    batches, error = taken(loader)

    assert batches == []
    assert type(error) is errors.TooManyFaultsError
    assert f"all {len(bad)} samples were bad" in str(error)
    assert loader.report().skipped == len(bad)


def test_a_shape_that_does_not_fit_can_be_skipped(photos: list[Path]) -> None:
    paths = [photos[3], photos[5], photos[3], photos[3], photos[6], photos[3], photos[3], photos[3]]
    loader = fl.files(paths).decode().batch(3, index=True).loader(faults=SKIP)

    batches, error = taken(loader)

    assert error is None
    assert batches == [[0, 7, 2], [3, 6, 5]]
    faults = [(fault.kind, fault.path) for fault in loader.report().faults]
    assert faults == [("ShapeMismatchError", str(photos[5])), ("ShapeMismatchError", str(photos[6]))]


# ---- the limit ----


@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize(("limit", "allowed"), [(0, 0), (2, 2), (3, 3), (0.0, 0), (0.1, 2), (0.13, 3)])
def test_one_fault_more_than_the_limit_ends_the_run(
    photos: list[Path], bad: list[Path], action: Any, limit: float, allowed: int
) -> None:
    policy = fl.FaultPolicy(action, limit=limit)
    places = {3 * number + 4 for number in range(allowed)}

    enough = small(mixed(photos, bad, places), 2).loader(faults=policy)
    assert taken(enough)[1] is None
    batches, error = taken(small(mixed(photos, bad, places | {20}), 2).loader(faults=policy))

    assert type(error) is errors.TooManyFaultsError
    assert f"{allowed + 1} faults are more than the limit of {allowed}" in str(error)
    assert len(batches) == 10


def test_too_many_faults_name_the_last_sample(photos: list[Path], bad: list[Path]) -> None:
    paths = mixed(photos, bad, {2, 8})

    _, error = taken(small(paths).loader(faults=fl.FaultPolicy("skip", limit=1)))

    assert error is not None
    assert "sample 8" in str(error)
    assert (error.index, error.path, error.stage) == (8, str(paths[8]), "worker")


def test_the_limit_counts_each_epoch_by_itself(photos: list[Path], bad: list[Path]) -> None:
    loader = small(mixed(photos, bad, {2, 23})).loader(faults=fl.FaultPolicy("skip", limit=2))

    assert [taken(loader)[1] for _ in range(3)] == [None] * 3


# ---- replace ----


def replaced_by(slot: int, places: set[int], count: int) -> int:
    """The first good sample of the candidates, which the epoch and the slot decide."""
    retries = (Draws(0, slot, attempt).below(count) for attempt in range(8))
    return next(index for index in retries if index not in places)


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(
    places=st.sets(st.integers(0, 23), max_size=8),
    size=st.integers(1, 9),
    threads=st.sampled_from([1, 2, 3, 8]),
)
def test_the_epoch_and_the_slot_alone_decide_a_replacement(
    photos: list[Path], bad: list[Path], places: set[int], size: int, threads: int
) -> None:
    loader = small(mixed(photos, bad, places), size).loader(threads=threads, seed=6, faults=REPLACE)

    batches, error = taken(loader)

    order = [replaced_by(at, places, 24) if at in places else at for at in range(24)]
    report = loader.report()
    assert error is None
    assert batches == [order[start : start + size] for start in range(0, 24, size)]
    assert (report.delivered, report.skipped, report.replaced) == (24, 0, len(places))
    assert {fault.index for fault in report.faults} == places


def test_a_replacement_has_all_fields_of_the_other_sample(photos: list[Path], bad: list[Path]) -> None:
    places = {0, 1, 7, 8, 22, 23}
    paths = mixed(photos, bad, places)
    pipeline = fl.files(paths, labels=range(100, 124)).decode().resize((8, 8)).batch(5, index=True)
    good = {
        int(index): image
        for batch in pipeline.loader(faults=SKIP)
        for index, image in zip(batch["index"], batch["image"].copy(), strict=True)
    }

    for batch in pipeline.loader(faults=REPLACE):
        np.testing.assert_array_equal(batch["label"], batch["index"] + 100)
        for index, image in zip(batch["index"], batch["image"], strict=True):
            np.testing.assert_array_equal(image, good[int(index)])


def test_if_all_samples_are_bad_there_is_no_replacement(bad: list[Path]) -> None:
    batches, error = taken(small(bad).loader(faults=REPLACE))

    assert batches == []
    assert type(error) is errors.NoReplacementError
    assert (error.index, error.path) == (0, str(bad[0]))


@pytest.mark.parametrize("count", [8, 60])
def test_a_sample_that_does_not_fit_is_replaced_if_one_that_fits_is_found(tmp_path: Path, count: int) -> None:
    # Only the first is wide, so no other sample fits it.
    wide, high = write(tmp_path, {"0.jpg": encoded(photo(1, 30, 20)), "1.jpg": encoded(photo(1, 20, 30))})
    program = f"""
    paths = arguments[:1] + arguments[1:] * {count - 1}
    loader = fl.files(paths).decode().batch(2, index=True).loader(faults=fl.FaultPolicy("replace"))
    try:
        say(next(iter(loader))["index"].tolist())
    except fl.errors.NoReplacementError as error:
        say([type(error).__name__, error.index, error.path])
    """

    said = answer(program, wide, high, seconds=200)

    retries = [Draws(0, 1, (1 << 64) - 1 - attempt).below(count) for attempt in range(8)]
    assert said == ([0, 0] if 0 in retries else ["NoReplacementError", 1, str(high)])
    assert (0 in retries) == (count == 8), "one of both is not tested"


# ---- the classes ----


def kinds() -> dict[str, type[FeedlineError]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {
        name: kind for name, kind in found if issubclass(kind, FeedlineError) and kind is not FeedlineError
    }


def test_every_kind_of_the_core_has_its_class_and_every_class_its_kind() -> None:
    assert {kind.name for kind in _native.error_kinds()} == set(kinds())
    assert {kind.name: kind.code for kind in _native.error_kinds()} == {
        name: kind.code for name, kind in kinds().items()
    }
    assert set(errors.__all__) == {
        *kinds(),
        "CopiedMemoryWarning",
        "EmptyShardWarning",
        "FeedlineError",
        "FeedlineWarning",
        "ResourceShortageWarning",
        "SampleSkippedWarning",
        "SharedFileWarning",
        "SourceUnavailableWarning",
        "WorkerDiedWarning",
        "WorkerStalledWarning",
    }


@pytest.mark.parametrize("name", kinds())
def test_an_error_survives_being_pickled_and_copied(name: str) -> None:
    error = kinds()[name]("it broke", index=3, path="a.jpg", offset=5, stage="worker", hint="fix it")

    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == "it broke"
        assert other.__dict__ == error.__dict__
        assert (other.index, other.path, other.offset, other.stage, other.hint) == (
            3,
            "a.jpg",
            5,
            "worker",
            "fix it",
        )


def test_an_error_of_a_run_survives_being_pickled(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a.jpg": b""})
    _, error = taken(small(paths).loader())

    other = pickle.loads(pickle.dumps(error))

    assert error is not None
    assert (type(other), str(other), other.__dict__) == (type(error), str(error), error.__dict__)
    assert other.path == str(paths[0])


def test_errors_are_also_the_builtin_classes_that_python_raises() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
