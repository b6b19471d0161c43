"""Sources: class folders, files, arrays in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from batches import assert_same, indices, kept
from draws import Draws
from feedline.errors import InvalidArgumentError, InvalidSourceError
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, noise, photo, write
from torchvision.datasets import ImageFolder

PHOTO = encoded(photo(1, 20, 16))
NOBODY = 65534


# ---- images in class folders ----


def assert_as_image_folder(root: Path) -> None:
    theirs = ImageFolder(str(root))
    loader = fl.images(root).batch(3).loader()

    contents, labels = [], []
    for batch in loader:
        contents += batch["bytes"]
        labels += batch["label"].tolist()

    assert loader.classes == theirs.classes
    assert labels == [label for _, label in theirs.samples]
    assert contents == [Path(path).read_bytes() for path, _ in theirs.samples]


def test_images_come_in_the_order_of_torchvisions_image_folder(tmp_path: Path) -> None:
    names = [
        "b/1.jpg",
        "b/10.jpg",
        "b/2.JPG",
        "b/B.Jpeg",
        "b/a.webp",
        "b/x/1.jpg",
        "b/x-y/1.jpg",
        "b/x/z/1.jpg",
    ]
    names += [
        "b-c/1.png",
        "b-c/1.tiff",
        "B/q.bmp",
        "é/ü.jpg",
        "b c/e f.jpg",
        "z/folder.jpg/1.jpg",
        "b/..jpg.jpg.jpg",
    ]
    names = [name for name in names if not Path(name).name.startswith(".")]
    write(tmp_path, {name: name.encode() for name in names})

    assert_as_image_folder(tmp_path)


@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(
    st.sets(
        st.tuples(
            st.sampled_from(["a", "A", "a-b", "a.b", "a b", "aé", "ab"]),
            st.lists(st.sampled_from(["x", "x-y", "x.y", "x y", "X"]), max_size=3).map("/".join),
            st.sampled_from(["1.jpg", "10.jpg", "1-2.png", "é.jpg", "1.jpg.png"]),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_any_tree_of_names_comes_in_torchvisions_order(
    tmp_path_factory: pytest.TempPathFactory, files: set[tuple[str, str, str]]
) -> None:
    root = tmp_path_factory.mktemp("names")
    write(root, {f"{kind}/{below}/{name}": f"{kind}{below}{name}".encode() for kind, below, name in files})

    assert_as_image_folder(root)


def test_links_to_folders_and_files_are_followed_as_torchvision_does(tmp_path: Path) -> None:
    write(tmp_path, {"outside/deep/1.jpg": b"one", "outside/2.jpg": b"two", "root/cat/0.jpg": b"zero"})
    (tmp_path / "root/dog").symlink_to(tmp_path / "outside")
    (tmp_path / "root/cat/linked").symlink_to(tmp_path / "outside/deep")
    (tmp_path / "root/cat/9.jpg").symlink_to(tmp_path / "outside/2.jpg")

    assert_as_image_folder(tmp_path / "root")


def test_hidden_files_and_files_that_are_not_images_are_skipped(tmp_path: Path) -> None:
    names = [
        "cat/1.jpg",
        "cat/.2.jpg",
        "cat/Thumbs.db",
        "cat/jpg",
        "cat/.git/3.jpg",
        ".hidden/4.jpg",
        "5.jpg",
    ]
    write(tmp_path, {name: name.encode() for name in names})

    pipeline = fl.images(tmp_path)

    assert pipeline.classes == ["cat"]
    assert [batch["bytes"] for batch in pipeline.batch(9).loader()] == [[b"cat/1.jpg"]]


def missing(root: Path) -> Path:
    return root / "missing"


def file_instead_of_folder(root: Path) -> Path:
    return write(root, {"a.jpg": PHOTO})[0]


def no_classes(root: Path) -> Path:
    write(root, {"a.jpg": PHOTO})
    return root


def empty_class(root: Path) -> Path:
    write(root, {"cat/a.jpg": PHOTO, "dog/readme.txt": b"no dogs yet"})
    return root


def broken_link(root: Path) -> Path:
    write(root, {"cat/a.jpg": PHOTO})
    (root / "cat/b.jpg").symlink_to(root / "gone.jpg")
    return root


def cycle(root: Path) -> Path:
    write(root, {"cat/a.jpg": PHOTO})
    (root / "cat/again").symlink_to(root / "cat")
    return root


def link_to_itself(root: Path) -> Path:
    (root / "itself").symlink_to(root / "itself")
    return root / "itself"


@pytest.mark.parametrize(
    ("spoil", "named", "advice"),
    [
        (missing, "missing", "check the path"),
        (file_instead_of_folder, "a.jpg", "check that this is a readable folder"),
        (no_classes, "no class folders", "feedline.files("),
        (empty_class, "dog", "remove the folder"),
        (broken_link, "b.jpg", "remove the link"),
        (cycle, "again", "remove the link"),
        (link_to_itself, "itself", "check"),
    ],
)
def test_an_invalid_folder_is_refused_with_a_hint(
    tmp_path: Path, spoil: Callable[[Path], Path], named: str, advice: str
) -> None:
    root = spoil(tmp_path)

    with pytest.raises(InvalidSourceError) as caught:
        fl.images(root)

    assert named in str(caught.value)
    assert advice in caught.value.hint
    assert caught.value.hint in str(caught.value)


@contextmanager
def without_the_rights_of_root() -> Iterator[None]:
    """Runs the block as the user nobody, because root may read every folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_folder_is_refused_with_a_hint() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        write(root, {"cat/a.jpg": PHOTO})
        (root / "cat").chmod(0)

        with without_the_rights_of_root(), pytest.raises(InvalidSourceError, match="chmod") as caught:
            fl.images(root)

        assert str(root / "cat") in str(caught.value)
        (root / "cat").chmod(0o755)


def test_a_name_that_is_not_utf8_is_found_and_named(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/cat"
    Path(os.fsdecode(folder)).mkdir()
    path = folder + b"/\xff\xfe.jpg"
    Path(os.fsdecode(path)).write_bytes(b"no image")

    with pytest.raises(fl.errors.UnknownFormatError) as caught:
        next(iter(fl.images(tmp_path).decode().batch(1).loader()))

    assert os.fsencode(caught.value.path or "") == path


# ---- files ----


def test_files_come_in_the_order_of_the_list_with_their_labels(photos: list[Path]) -> None:
    listed: list[str | os.PathLike[str]] = [str(photos[5]), photos[2], photos[5], photos[0]]

    batches = list(fl.files(listed, labels=[7, -1, 3, 2**40]).batch(2).loader())

    contents = [content for batch in batches for content in batch["bytes"]]
    assert contents == [Path(path).read_bytes() for path in listed]
    assert [batch["label"].tolist() for batch in batches] == [[7, -1], [3, 2**40]]


def test_files_without_labels_have_none(photos: list[Path]) -> None:
    assert list(next(iter(fl.files(photos).batch(2).loader()))) == ["bytes"]


def test_labels_may_be_numpy_numbers(photos: list[Path]) -> None:
    labels = np.arange(len(photos), dtype=np.uint8)

    batch = next(iter(fl.files(photos, labels=list(labels)).batch(24).loader()))

    np.testing.assert_array_equal(batch["label"], labels)


def test_a_pattern_finds_files_below_any_folder_sorted_and_no_folders(tmp_path: Path) -> None:
    names = ["b/2.jpg", "a/1.jpg", "a/c/3.jpg", "a/4.png", "a/folder.jpg/5.jpg"]
    write(tmp_path, {name: name.encode() for name in names})

    batch = next(iter(fl.files(f"{tmp_path}/**/*.jpg").batch(9).loader()))

    assert batch["bytes"] == [b"a/1.jpg", b"a/c/3.jpg", b"a/folder.jpg/5.jpg", b"b/2.jpg"]


def test_one_path_of_any_type_is_one_file(photos: list[Path]) -> None:
    for path in (photos[3], str(photos[3])):
        assert len(fl.files(path)) == 1


@pytest.mark.parametrize(
    ("paths", "labels", "named"),
    [
        ([], None, "empty"),
        (["a", "b"], [1], "1 labels for 2 files"),
        ("/nowhere/*.jpg", None, "/nowhere/*.jpg"),
        ("/nowhere/[", None, "/nowhere/["),
        ([3], None, "3"),
    ],
)
def test_invalid_lists_of_files_are_refused(paths: Any, labels: Any, named: str) -> None:
    with pytest.raises(InvalidSourceError) as caught:
        fl.files(paths, labels)

    assert named in str(caught.value)


@pytest.mark.parametrize("label", ["cat", 1.5, 1 << 70, None])
def test_a_label_that_is_not_an_integer_is_refused_with_its_value(label: Any) -> None:
    with pytest.raises(fl.FeedlineError) as caught:
        fl.files(["a", "b"], labels=[0, label])

    assert str(label) in str(caught.value)


# ---- arrays ----


@pytest.mark.parametrize(
    "dtype",
    [
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
        "float32",
        "float64",
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2), (0,), (1, 1)])
def test_arrays_of_every_type_and_shape_are_delivered_unchanged(dtype: str, shape: tuple[int, ...]) -> None:
    bits = noise(1, 11, *shape, np.dtype(dtype).itemsize)
    array = bits[..., 0] > 99 if dtype == "bool" else bits.view(dtype)[..., 0]

    batches = list(fl.arrays({"x": array}).batch(4).loader(threads=2))

    assert all(batch["x"].dtype == np.dtype(dtype) for batch in batches)
    assert np.concatenate([batch["x"] for batch in batches]).tobytes() == array.tobytes()


@pytest.mark.parametrize("slice_of", [slice(None, None, 2), slice(3, None, 5), slice(4, 5), slice(1, 9)])
def test_rows_that_are_not_contiguous_are_read_in_place(slice_of: slice) -> None:
    array = np.random.default_rng(1).normal(size=(20, 3))[slice_of]

    batches = kept(fl.arrays({"x": array}).batch(3).loader())

    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), array)


def test_a_broadcast_row_is_repeated() -> None:
    array = np.broadcast_to(np.arange(3), (5, 3))

    batch = next(iter(fl.arrays({"x": array}).batch(5).loader()))

    np.testing.assert_array_equal(batch["x"], array)


def test_read_only_arrays_are_accepted() -> None:
    array = np.arange(6)
    array.flags.writeable = False

    np.testing.assert_array_equal(next(iter(fl.arrays({"x": array}).batch(6).loader()))["x"], array)


def test_every_array_gives_a_row_to_each_sample() -> None:
    images, targets = noise(1, 10, 4, 5, 3), np.arange(10.0)

    batches = kept(fl.arrays({"image": images, "target": targets}).shuffle(3).batch(4, index=True).loader())

    for batch in batches:
        np.testing.assert_array_equal(batch["image"], images[batch["index"]])
        np.testing.assert_array_equal(batch["target"], targets[batch["index"]])


def test_arrays_are_read_at_the_time_of_the_epoch() -> None:
    array = np.zeros(4)
    loader = fl.arrays({"x": array}).batch(4).loader()
    array[:] = 5

    assert next(iter(loader))["x"].tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({}, "no arrays"),
        ({"x": np.arange(3), "y": np.arange(4)}, '"y" has 4 rows, array "x" has 3'),
        ({"x": np.arange(5)[::-1]}, "not contiguous"),
        ({"x": np.zeros((3, 4)).T}, "not contiguous"),
        ({"x": np.zeros((3, 4))[:, ::2]}, "not contiguous"),
        ({"x": np.array([None, 1])}, '"O"'),
        ({"x": np.array(["a", "b"])}, '"x"'),
        ({"x": np.array([1, 2], "datetime64[s]")}, '"x"'),
        ({"x": np.array([1j])}, '"x"'),
        ({"x": np.array([1], ">i4")}, '">i"'),
        ({"x": np.array(5)}, '"x"'),
        ({"x": [1, 2, 3]}, '"x"'),
        ({1: np.arange(3)}, "1"),
        ([np.arange(3)], "list"),
    ],
)
def test_arrays_that_cannot_be_read_are_refused_with_their_name(arrays: Any, named: str) -> None:
    with pytest.raises(InvalidSourceError) as caught:
        fl.arrays(arrays)

    assert named in str(caught.value)


def test_a_source_without_samples_is_refused() -> None:
    with pytest.raises(InvalidSourceError, match="no samples"):
        fl.arrays({"x": np.zeros((0, 3))}).batch(2).loader()


def test_an_array_named_index_is_not_mixed_up_with_the_index_of_samples() -> None:
    array = np.arange(100, 110, dtype=np.float32)

    try:
        batches = kept(fl.arrays({"index": array}).batch(5, index=True).loader())
    except InvalidArgumentError:
        return
    assert indices(batches) == list(range(10))


@pytest.mark.parametrize("channels", [1, 3])
def test_an_array_named_image_is_an_image(channels: int) -> None:
    images = noise(2, 6, 9, 8, channels)

    pipeline = fl.arrays({"image": images, "y": np.arange(6)}).random_crop(5).flip().batch(6)
    batch = next(iter(pipeline.loader(seed=4)))

    for position in range(6):
        draws = Draws(4, position, 0)
        top, left = draws.below(9 - 5 + 1), draws.below(8 - 5 + 1)
        expected = images[position, top : top + 5, left : left + 5]
        if Draws(4, position, 1).unit() < 0.5:
            expected = expected[:, ::-1]
        np.testing.assert_array_equal(batch["image"][position], expected)
    assert batch["y"].tolist() == list(range(6))


def test_an_array_of_images_equals_files_with_the_same_pixels(tmp_path: Path) -> None:
    images = noise(3, 8, 20, 24, 3)
    paths = write(tmp_path, {f"{number}.png": encoded(image, "PNG") for number, image in enumerate(images)})

    def steps(pipeline: fl.Pipeline) -> fl.Pipeline:
        return pipeline.resize(17).random_resized_crop(9).flip().to_float(0.4, 0.3).batch(3)

    ours = kept(steps(fl.arrays({"image": images})).loader(seed=1))
    assert_same(ours, kept(steps(fl.files(paths).decode()).loader(seed=1)))
