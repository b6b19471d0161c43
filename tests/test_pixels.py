"""Pixels equal those of Pillow and torchvision bit for bit; the tests run both beside Feedline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import feedline as fl
import numpy as np
import pytest
import torch
from draws import Draws, resized_crop_box
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pictures import Pixels, encoded, gray, noise, opened, photo, png, write
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as classic
from torchvision.transforms.v2 import functional as vision

Mode = Literal["rgb", "gray"]
Filter = Literal["bilinear", "bicubic"]
Layout = Literal["CHW", "HWC"]

PILLOW = {"rgb": "RGB", "gray": "L"}
MODES: list[Mode] = ["rgb", "gray"]
FILTERS: list[Filter] = ["bilinear", "bicubic"]
SIZES = [(64, 48), (61, 47), (17, 99), (1, 1), (3, 1)]


def made(pipeline: fl.Pipeline, seed: int = 0) -> list[NDArray[Any]]:
    """The images of all samples, one by one."""
    with pipeline.batch(1).loader(threads=2, seed=seed) as loader:
        return [batch["image"][0].copy() for batch in loader]


def tensor(pixels: Pixels) -> torch.Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def pixels_of(picture: torch.Tensor) -> Pixels:
    return picture.permute(1, 2, 0).numpy()


# ---- decoding ----


def jpegs(width: int, height: int) -> dict[str, bytes]:
    picture = photo(width, width, height)
    files = {
        f"{name}, quality {quality}": encoded(picture, quality=quality, subsampling=subsampling)
        for name, subsampling in (("4:4:4", 0), ("4:2:2", 1), ("4:2:0", 2))
        for quality in (10, 50, 75, 90, 100)
    }
    files["progressive"] = encoded(picture, progressive=True)
    files["progressive 4:2:2"] = encoded(picture, progressive=True, subsampling=1)
    files["restart markers"] = encoded(picture, restart_marker_blocks=1)
    files["gray"] = encoded(gray(width, width, height))
    files["gray progressive"] = encoded(gray(width, width, height), progressive=True)
    inks = Image.frombytes("CMYK", (width, height), noise(width, height, width, 4).tobytes())
    files["CMYK of Adobe's kind"] = encoded(inks)
    return files


def pngs(width: int, height: int) -> dict[str, bytes]:
    picture = Image.fromarray(photo(width, width, height))
    alpha = Image.fromarray(noise(width, height, width))
    light = picture.convert("L")
    files = {
        "RGB": encoded(picture, "PNG"),
        "RGBA": encoded(Image.merge("RGBA", [*picture.split(), alpha]), "PNG"),
        "L": encoded(light, "PNG"),
        "LA": encoded(Image.merge("LA", [light, alpha]), "PNG"),
        "1": encoded(picture.convert("1"), "PNG"),
        "P with one transparent color": encoded(picture.quantize(50), "PNG", transparency=0),
        "P with an alpha for each color": encoded(picture.quantize(50), "PNG", transparency=bytes(range(50))),
        "RGB with one transparent color": encoded(picture, "PNG", transparency=picture.getpixel((0, 0))),
        "L with one transparent color": encoded(light, "PNG", transparency=light.getpixel((0, 0))),
    }
    for colors in (2, 4, 16, 200):
        files[f"P of {colors} colors"] = encoded(picture.quantize(colors), "PNG")
    random = np.random.default_rng(width)
    for depth in (1, 2, 4, 8):
        samples = random.integers(0, 1 << depth, (height, width, 1))
        files[f"gray of {depth} bits, interlaced"] = png(samples, depth, interlaced=True)
    for channels in (2, 3, 4):
        for interlaced in (False, True):
            samples = random.integers(0, 1 << 16, (height, width, channels))
            files[f"{channels} channels of 16 bits, {interlaced=}"] = png(samples, 16, interlaced=interlaced)
    files["RGB, interlaced"] = png(photo(width, width, height), 8, interlaced=True)
    return files


def webps(width: int, height: int) -> dict[str, bytes]:
    picture = photo(width, width, height)
    clear = np.dstack([picture, noise(width, height, width)])
    files = {f"lossy {quality}": encoded(picture, "WEBP", quality=quality) for quality in (10, 50, 80, 100)}
    files["lossless"] = encoded(picture, "WEBP", lossless=True)
    files["lossy with alpha"] = encoded(clear, "WEBP")
    files["lossless with alpha"] = encoded(clear, "WEBP", lossless=True, exact=True)
    return files


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("forms", [jpegs, pngs, webps])
def test_decoded_pixels_are_pillows(
    tmp_path: Path, forms: Callable[[int, int], dict[str, bytes]], width: int, height: int, mode: Mode
) -> None:
    files = forms(width, height)
    paths = write(tmp_path, {str(number): content for number, content in enumerate(files.values())})

    images = made(fl.files(paths).decode(mode))

    for (name, content), image in zip(files.items(), images, strict=True):
        np.testing.assert_array_equal(image, opened(content, PILLOW[mode]), err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_16_bit_gray_gives_the_upper_byte(tmp_path: Path, mode: Mode) -> None:
    # Pillow clips nearly all pixels to white; this difference is documented.
    samples = np.random.default_rng(1).integers(0, 1 << 16, (31, 29, 1))
    paths = write(tmp_path, {"a.png": png(samples, 16), "b.png": png(samples, 16, interlaced=True)})

    for image in made(fl.files(paths).decode(mode)):
        np.testing.assert_array_equal(image, np.broadcast_to(samples >> 8, image.shape))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a"])
def test_a_file_is_decoded_by_its_content_whatever_its_name(tmp_path: Path, form: str, name: str) -> None:
    content = encoded(photo(3, 40, 30), form)
    paths = write(tmp_path, {name: content})

    np.testing.assert_array_equal(made(fl.files(paths).decode())[0], opened(content))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("rest", [b"\0" * 100, b"\xff" * 7, b"\n", encoded(photo(2, 9, 9))])
def test_bytes_after_the_end_of_an_image_are_ignored(tmp_path: Path, form: str, rest: bytes) -> None:
    content = encoded(photo(3, 40, 30), form)
    paths = write(tmp_path, {"a": content + rest})

    np.testing.assert_array_equal(made(fl.files(paths).decode())[0], opened(content))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_the_first_frame_of_an_animation_is_decoded(tmp_path: Path, form: str, mode: Mode) -> None:
    frames = [Image.fromarray(photo(seed, 40, 30)) for seed in range(3)]
    content = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    paths = write(tmp_path, {"a": content})

    np.testing.assert_array_equal(made(fl.files(paths).decode(mode))[0], opened(content, PILLOW[mode]))


def turned(form: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(photo(orientation, 61, 47), form, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orient_turns_as_pillows_exif_transpose_does(tmp_path: Path, form: str, orientation: int) -> None:
    paths = write(tmp_path, {"a": turned(form, orientation)})
    with Image.open(paths[0]) as image:
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))

    np.testing.assert_array_equal(made(fl.files(paths).decode(orient=True))[0], upright)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orient_turns_before_the_image_is_resized_and_cropped(tmp_path: Path, orientation: int) -> None:
    paths = write(tmp_path, {"a": turned("JPEG", orientation)})
    with Image.open(paths[0]) as image:
        upright = tensor(np.asarray(ImageOps.exif_transpose(image).convert("RGB")))
    expected = vision.center_crop(vision.resize(upright, [30], antialias=True), [20, 24])

    images = made(fl.files(paths).decode(orient=True).resize(30).center_crop((20, 24)))

    np.testing.assert_array_equal(images[0], pixels_of(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_ignored_unless_requested(tmp_path: Path, orientation: int) -> None:
    content = turned("JPEG", orientation)
    paths = write(tmp_path, {"a": content})

    np.testing.assert_array_equal(made(fl.files(paths).decode())[0], opened(content))


# ---- resizing and center crops ----

sides = st.integers(1, 190)
targets = st.one_of(st.integers(1, 150), st.tuples(st.integers(1, 150), st.integers(1, 150)))


def listed(size: int | tuple[int, int]) -> list[int]:
    return [size] if isinstance(size, int) else list(size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(
    width=sides, height=sides, size=targets, form=st.sampled_from(["JPEG", "PNG"]),
    mode=st.sampled_from(MODES), filter=st.sampled_from(FILTERS),
)  # fmt: skip
def test_resized_pixels_are_torchvisions(
    folder: Path, width: int, height: int, size: int | tuple[int, int], form: str, mode: Mode, filter: Filter
) -> None:
    content = encoded(photo(5, width, height), form)
    paths = write(folder, {"resized": content})
    picture = tensor(opened(content, PILLOW[mode]))
    expected = vision.resize(picture, listed(size), interpolation=InterpolationMode(filter), antialias=True)

    images = made(fl.files(paths).decode(mode).resize(size, filter))

    np.testing.assert_array_equal(images[0], pixels_of(expected))


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(
    width=sides, height=sides, size=targets, crop=st.tuples(sides, sides),
    form=st.sampled_from(["JPEG", "progressive", "PNG"]), mode=st.sampled_from(MODES),
    filter=st.sampled_from(FILTERS),
)  # fmt: skip
def test_the_center_crop_of_a_resized_image_is_torchvisions(
    folder: Path, width: int, height: int, size: int | tuple[int, int], crop: tuple[int, int],
    form: str, mode: Mode, filter: Filter,
) -> None:  # fmt: skip
    # Only a region of a JPEG is decoded, and a crop may be larger than the image.
    container = "PNG" if form == "PNG" else "JPEG"
    content = encoded(photo(6, width, height), container, progressive=form == "progressive")
    paths = write(folder, {"middle": content})
    picture = tensor(opened(content, PILLOW[mode]))
    picture = vision.resize(picture, listed(size), interpolation=InterpolationMode(filter), antialias=True)

    images = made(fl.files(paths).decode(mode).resize(size, filter).center_crop(crop))

    np.testing.assert_array_equal(images[0], pixels_of(vision.center_crop(picture, list(crop))))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_every_region_of_a_jpeg_has_the_pixels_of_the_whole(tmp_path: Path, subsampling: int) -> None:
    content = encoded(photo(7, 150, 130), subsampling=subsampling, quality=85)
    paths = write(tmp_path, {"a.jpg": content})
    whole = tensor(opened(content))

    for height in range(1, 150, 7):
        for width in (1, 2, 15, 16, 17, 64, 149, 150, 151):
            image = made(fl.files(paths).decode().center_crop((height, width)))[0]
            np.testing.assert_array_equal(image, pixels_of(vision.center_crop(whole, [height, width])))


def test_a_center_crop_larger_than_the_image_is_padded_with_black(tmp_path: Path) -> None:
    content = encoded(photo(8, 21, 10))
    paths = write(tmp_path, {"a.jpg": content})

    image = made(fl.files(paths).decode().center_crop((15, 30)))[0]

    np.testing.assert_array_equal(image[2:12, 4:25], opened(content))
    assert int(image.sum()) == int(opened(content).sum())


@pytest.mark.parametrize("filter", FILTERS)
def test_a_reduced_and_an_enlarged_photo_are_torchvisions(tmp_path: Path, filter: Filter) -> None:
    cases: list[tuple[int, int, int | tuple[int, int]]] = [
        (2001, 1501, 224),
        (1501, 2003, (60, 333)),
        (5, 4, 300),
        (640, 480, 480),
    ]
    for width, height, size in cases:
        content = encoded(photo(9, width, height))
        paths = write(tmp_path, {"a.jpg": content})
        expected = vision.resize(
            tensor(opened(content)), listed(size), interpolation=InterpolationMode(filter), antialias=True
        )
        image = made(fl.files(paths).decode().resize(size, filter))[0]
        np.testing.assert_array_equal(image, pixels_of(expected), err_msg=f"{width} x {height} to {size}")


# ---- random crops and flips ----


@pytest.fixture(scope="module")
def many(folder: Path) -> list[Path]:
    """80 images of all proportions and formats."""
    random = np.random.default_rng(2)
    contents = {}
    for number in range(80):
        width, height = (int(side) for side in random.integers(1, 240, 2))
        form = ("JPEG", "JPEG", "PNG", "WEBP")[number % 4]
        options = {"progressive": True} if number % 4 == 1 else {}
        contents[f"many/{number}"] = encoded(photo(number, width, height), form, **options)
    return write(folder, contents)


Range = tuple[float, float]
SCALES: list[tuple[Range, Range]] = [
    ((0.08, 1.0), (3 / 4, 4 / 3)),
    ((0.001, 0.05), (0.2, 5.0)),
    ((0.95, 1.0), (0.95, 1.05)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(("scale", "ratio"), SCALES)
def test_random_resized_crops_and_flips_are_torchvisions_with_the_same_draws(
    many: list[Path], scale: Range, ratio: Range, filter: Filter, mode: Mode
) -> None:
    pipeline = fl.files(many).decode(mode).random_resized_crop((48, 57), scale, ratio, filter).flip(0.5)

    flips = 0
    for position, (path, image) in enumerate(zip(many, made(pipeline, seed=11), strict=True)):
        picture = tensor(opened(path.read_bytes(), PILLOW[mode]))
        height, width = picture.shape[1:]
        box = resized_crop_box(Draws(11, position, 0), height, width, scale, ratio)
        expected = vision.resized_crop(
            picture, *box, [48, 57], interpolation=InterpolationMode(filter), antialias=True
        )
        if Draws(11, position, 1).unit() < 0.5:
            expected, flips = vision.horizontal_flip(expected), flips + 1
        np.testing.assert_array_equal(image, pixels_of(expected), err_msg=f"{path}: {box}")
    assert 20 < flips < 60


@pytest.mark.parametrize("filter", FILTERS)
def test_a_flip_before_a_crop_is_applied_before_it(many: list[Path], filter: Filter) -> None:
    pipeline = fl.files(many).decode().flip(0.5).random_resized_crop(40, filter=filter)

    for position, (path, image) in enumerate(zip(many, made(pipeline, seed=3), strict=True)):
        picture = tensor(opened(path.read_bytes()))
        if Draws(3, position, 0).unit() < 0.5:
            picture = vision.horizontal_flip(picture)
        height, width = picture.shape[1:]
        box = resized_crop_box(Draws(3, position, 1), height, width, (0.08, 1.0), (3 / 4, 4 / 3))
        expected = vision.resized_crop(
            picture, *box, [40, 40], interpolation=InterpolationMode(filter), antialias=True
        )
        np.testing.assert_array_equal(image, pixels_of(expected), err_msg=f"{path}: {box}")


@pytest.mark.parametrize(("size", "padding"), [((1, 1), 0), ((32, 40), 40), ((9, 5), 4), ((200, 7), 100)])
def test_random_crops_with_padding_are_torchvisions_with_the_same_draws(
    many: list[Path], size: tuple[int, int], padding: int
) -> None:
    pipeline = fl.files(many).decode().random_crop(size, padding).flip()

    for position, (path, image) in enumerate(zip(many, made(pipeline, seed=5), strict=True)):
        picture = vision.pad(tensor(opened(path.read_bytes())), [padding] * 4)
        draws = Draws(5, position, 0)
        top = draws.below(picture.shape[1] - size[0] + 1)
        left = draws.below(picture.shape[2] - size[1] + 1)
        expected = vision.crop(picture, top, left, *size)
        if Draws(5, position, 1).unit() < 0.5:
            expected = vision.horizontal_flip(expected)
        np.testing.assert_array_equal(image, pixels_of(expected), err_msg=str(path))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_flip_with_probability_1_or_0_is_always_or_never_applied(photos: list[Path], p: float) -> None:
    for path, image in zip(photos, made(fl.files(photos).decode().flip(p)), strict=True):
        picture = opened(path.read_bytes())
        np.testing.assert_array_equal(image, picture[:, ::-1] if p else picture)


# ---- numbers ----

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_floats_are_those_of_to_tensor_and_normalize(tmp_path: Path, layout: Layout) -> None:
    content = encoded(noise(1, 64, 64, 3), "PNG")
    paths = write(tmp_path, {"a.png": content})
    expected = classic.normalize(classic.to_tensor(Image.fromarray(opened(content))), MEAN, STD).numpy()

    image = made(fl.files(paths).decode().to_float(MEAN, STD, layout))[0]

    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, expected if layout == "CHW" else expected.transpose(1, 2, 0))


def test_floats_of_gray_and_without_mean_are_those_of_to_tensor(tmp_path: Path) -> None:
    content = encoded(noise(2, 32, 32), "PNG")
    paths = write(tmp_path, {"a.png": content})
    expected = classic.to_tensor(Image.fromarray(opened(content, "L")[..., 0])).numpy()

    np.testing.assert_array_equal(made(fl.files(paths).decode("gray").to_float())[0], expected)
    half = made(fl.files(paths).decode("gray").to_float(0.5, 0.25))[0]
    np.testing.assert_array_equal(half, classic.normalize(torch.from_numpy(expected), 0.5, 0.25).numpy())


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize(
    "dtype",
    ["uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "float32", "float64"],
)
def test_cast_keeps_every_value_in_every_type(tmp_path: Path, dtype: str, layout: Layout) -> None:
    content = encoded(noise(3, 32, 24, 3), "PNG")
    paths = write(tmp_path, {"a.png": content})

    image = made(fl.files(paths).decode().flip(1.0).cast(dtype, layout))[0]

    picture = opened(content)[:, ::-1]
    assert image.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(image, picture if layout == "HWC" else picture.transpose(2, 0, 1))


# ---- scaled decoding ----


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_scaled_decoding_is_near_the_exact_pixels(tmp_path: Path, factor: int) -> None:
    paths = write(tmp_path, {"a.jpg": encoded(photo(10, 803, 601), quality=90)})
    size = (600 // factor, 800 // factor)

    exact = made(fl.files(paths).decode().resize(size))[0]
    scaled = made(fl.files(paths).decode(scaled=True).resize(size))[0]

    assert exact.shape == scaled.shape
    assert np.abs(exact.astype(int) - scaled).mean() < 6


def test_scaled_crops_are_near_the_exact_pixels(tmp_path: Path) -> None:
    contents = {f"{number}.jpg": encoded(photo(number, 900, 700), quality=90) for number in range(8)}
    paths = write(tmp_path, contents)

    exact = made(fl.files(paths).decode().random_resized_crop(64, scale=(0.3, 1.0)))
    scaled = made(fl.files(paths).decode(scaled=True).random_resized_crop(64, scale=(0.3, 1.0)))

    # The crop starts at a whole pixel of the smaller image, up to 7 pixels from its exact place.
    differences = [np.abs(one.astype(int) - other).mean() for one, other in zip(exact, scaled, strict=True)]
    assert max(differences) < 12
    assert max(differences) > 0, "the decoder did not shrink anything"
