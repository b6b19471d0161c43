"""Creates a folder of JPEGs with the size and look of photographs, from a seed.

python benchmarks/photos.py FOLDER --count 3000 --size 500x375
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = 10


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Soft shapes of several sizes, some hard edges, and grain."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 3), np.float32)
    for cells, weight in ((3, 70.0), (12, 40.0), (48, 18.0), (160, 9.0)):
        field = random.normal(size=(max(2, cells * height // width), cells, 3)).astype(np.float32)
        for channel in range(3):
            shared = 0.7 * field[..., 0] + 0.3 * field[..., channel]
            soft = Image.fromarray(shared).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., channel] += weight * np.asarray(soft)
    image = Image.fromarray((pixels + 120).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image, "RGBA")
    for _ in range(12):
        left, top = int(random.integers(0, width)), int(random.integers(0, height))
        right = left + int(random.integers(5, width // 3))
        bottom = top + int(random.integers(5, height // 3))
        colour = (*(int(part) for part in random.integers(0, 256, 3)), 110)
        (draw.ellipse if random.random() < 0.5 else draw.rectangle)((left, top, right, bottom), fill=colour)
    grain = random.normal(scale=5.0, size=(height, width, 1))
    return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))


def make(folder: Path, count: int, width: int, height: int, seed: int = 0) -> None:
    """Creates the missing photos; a complete folder is not changed."""
    done = folder / f".complete-{count}-{width}x{height}-{seed}"
    if done.exists():
        return
    for number in range(count):
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            photo(seed + number, width, height).save(path, quality=90)
        if number % 500 == 499:
            print(f"  {number + 1} of {count} photos of {width}x{height}", flush=True)
    done.touch()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--size", default="500x375", help="width x height")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    width, height = (int(side) for side in arguments.size.split("x"))
    make(arguments.folder, arguments.count, width, height, arguments.seed)


if __name__ == "__main__":
    main()
