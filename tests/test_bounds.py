"""Descriptors and memory stay within their budgets, for any size of the data set."""

from __future__ import annotations

import os
from pathlib import Path

import feedline as fl
import pytest
from pictures import encoded, photo, write
from programs import answer

MIB = 1 << 20


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight photos of 500 x 375 pixels."""
    contents = {f"{number}.jpg": encoded(photo(number, 500, 375), quality=90) for number in range(8)}
    return write(tmp_path_factory.mktemp("originals"), contents)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, originals: list[Path]) -> Path:
    """1500 links to these photos; each counts as a separate file."""
    folder = tmp_path_factory.mktemp("linked")
    for number in range(1500):
        os.link(originals[number % len(originals)], folder / f"{number:04}.jpg")
    return folder


# ---- descriptors ----


@pytest.mark.parametrize("batch", [4, 100])
@pytest.mark.parametrize("steps", [".decode().resize((16, 16))", ""])
def test_64_descriptors_are_enough_for_any_number_of_files(folder: Path, batch: int, steps: str) -> None:
    program = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    paths = sorted(Path(arguments[0]).iterdir())[:400]
    loader = fl.files(paths){steps}.batch({batch}, index=True).loader(files="auto")
    with Watch(arguments[0]) as watch:
        indices = [index for batch in loader for index in batch["index"].tolist()]
    say([watch.most, indices, loader.decided["files"]])
    """

    most, indices, files = answer(program, folder)

    assert indices == list(range(400))
    assert 0 < most <= files < 64


def test_an_epoch_continues_when_the_program_takes_descriptors(
    folder: Path,
) -> None:
    # The program takes the remaining descriptors after the budget was decided.
    program = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    paths = sorted(Path(arguments[0]).iterdir())[:300]
    loader = fl.files(paths).batch(10, index=True).loader(prefetch=0)
    running = iter(loader)
    indices = next(running)["index"].tolist()
    taken = []
    while descriptors() < 60:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    for batch in running:
        indices += batch["index"].tolist()
    say([indices, loader.report().skipped])
    """

    assert answer(program, folder) == [list(range(300)), 0]


@pytest.mark.parametrize(("files", "readers"), [(1, 8), (3, 2), (3, 16)])
@pytest.mark.parametrize("batch", [1, 50])
@pytest.mark.parametrize("prefetch", [0, "64MiB"])
def test_open_files_stay_within_the_budget(
    folder: Path, files: int, readers: int, batch: int, prefetch: int | str
) -> None:
    program = f"""
    paths = sorted(Path(arguments[0]).iterdir())[:300]
    pipeline = fl.files(paths).decode().resize((16, 16)).batch({batch})
    loader = pipeline.loader(files={files}, readers={readers}, prefetch={prefetch!r})
    with Watch(arguments[0]) as watch:
        taken = sum(len(batch["image"]) for batch in loader)
    say([watch.most, taken])
    """

    most, taken = answer(program, folder)

    assert taken == 300
    assert 0 < most <= files


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows(folder: Path) -> None:
    program = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 200))
    loader = fl.files(arguments).batch(1).loader()
    say([resource.getrlimit(resource.RLIMIT_NOFILE), loader.decided["files"]])
    """

    limits, files = answer(program, next(folder.iterdir()))

    assert limits == [200, 200]
    assert 30 < files < 200


# ---- memory ----

# Prints the peak memory above that before the loader was made; keeps the last `held` batches.
PEAK = """
    import numpy
    paths = sorted(Path(arguments[0]).iterdir())[: int(arguments[1])]
    held_at_once = int(arguments[2])
    pipeline = fl.files(paths){steps}
    # Load and allocate everything that a run needs once.
    next(iter(fl.files(paths[:1]){steps}.loader(threads=1, memory="8MiB")))
    before = memory("VmRSS")
    loader = pipeline.loader(memory={memory!r}, threads=4)
    held, taken = [], 0
    for batch in loader:
        held = [*held, batch][-held_at_once:] if held_at_once else []
        taken += len(next(iter(batch.values())))
        del batch
    say([memory("VmHWM") - before, taken])
"""

STEPS = {
    "pictures of one size": ".decode().random_resized_crop(224).to_float().batch(32)",
    "padded pictures": ".decode().batch(16, pad=True)",
    "bytes": ".batch(64)",
}


@pytest.mark.parametrize("held", [0, 2])
@pytest.mark.parametrize("count", [200, 1500])
@pytest.mark.parametrize("steps", STEPS)
def test_memory_stays_within_its_budget_for_any_number_of_files(
    folder: Path, steps: str, count: int, held: int
) -> None:
    program = PEAK.format(steps=STEPS[steps], memory="96MiB")

    peak, taken = answer(program, folder, count, held)

    assert taken == count
    assert peak <= (96 + 64) * MIB


@pytest.mark.parametrize("count", [200, 1500])
def test_batches_larger_than_their_budget_are_made_one_by_one_in_bounded_memory(
    folder: Path, count: int
) -> None:
    # A batch has 18.4 MiB, and 16 of 32 MiB are for batches: one is in use and one in progress.
    program = PEAK.format(steps=STEPS["pictures of one size"], memory="32MiB")

    peak, taken = answer(program, folder, count, 0)

    assert taken == count
    assert peak <= (16 + 3 * 18.4 + 64) * MIB


def test_the_file_budget_does_not_shrink_from_epoch_to_epoch(folder: Path) -> None:
    paths = sorted(folder.iterdir())[:50]
    loader = fl.files(paths).batch(10).loader(files=2)

    assert [sum(len(batch["bytes"]) for batch in loader) for _ in range(20)] == [50] * 20


def test_an_image_larger_than_the_memory_budget_is_still_delivered(tmp_path: Path) -> None:
    # 1 MiB cannot hold 1200 x 900 pixels; exceeding the budget is better than waiting forever.
    paths = write(tmp_path, {f"{number}.jpg": encoded(photo(number, 1200, 900)) for number in range(4)})
    loader = fl.files(paths).decode().batch(2).loader(memory="1MiB", threads=3)

    assert [batch["image"].shape for batch in loader] == [(2, 900, 1200, 3)] * 2


def test_memory_does_not_grow_from_epoch_to_epoch(folder: Path) -> None:
    program = """
    paths = sorted(Path(arguments[0]).iterdir())[:60]
    loader = fl.files(paths).decode().resize((64, 64)).batch(20).loader(memory="32MiB")
    def epoch():
        for batch in loader:
            del batch
    for _ in range(3):
        epoch()
    before = memory("VmRSS")
    for _ in range(25):
        epoch()
    say(memory("VmRSS") - before)
    """

    assert answer(program, folder) < 16 * MIB
