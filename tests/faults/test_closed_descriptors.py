"""Programs whose trainer closes descriptors of other code."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from programs import answer

from faults.remains import eventually, has_ended
from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(300)

# Takes some results of a front, closes all descriptors, and prints the next result and the worker pids.
CLOSED = """
import feedline.torch
import numpy as np

def double(sample):
    return sample

def workers():
    mine = str(os.getpid())
    def children(pid):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    zygotes = children(mine)
    return [int(pid) for zygote in zygotes for pid in [zygote, *children(zygote)]]

fronts = {
    "torch": lambda: iter(fl.torch.DataLoader(list(range(4000)), batch_size=4, num_workers=2)),
    "map": lambda: iter(fl.arrays({"x": np.arange(4000)}).map(double).batch(4).loader(workers=2)),
    "executor": lambda: fl.map(abs, range(4000), workers=2),
}
results = fronts[arguments[0]]()
next(results)
processes = workers()
os.closerange(3, 1000)
# Open other files under the numbers of the closed descriptors.
others = [os.open("/dev/null", os.O_RDWR) for _ in range(50)] if arguments[1] == "reused" else []
try:
    list(results)
except BaseException as error:
    come = [type(error).__name__, str(error).splitlines()[0]]
del results
are_intact = all(os.path.samestat(os.fstat(one), os.stat("/dev/null")) for one in others)
say([come, are_intact, processes])
"""


@pytest.mark.parametrize("numbers", ["closed", "reused"])
@pytest.mark.parametrize("front", ["torch", "map", "executor"])
def test_closed_descriptors_end_the_run_with_an_error_that_names_the_cause(
    front: str, numbers: str, trainers: Trainers
) -> None:
    trainer = trainers.start(CLOSED, front, numbers)
    come, are_intact, processes = trainer.first_answer()
    assert come[0] == "DescriptorsClosedError", (come, trainer.errors)
    assert "were closed by other code" in come[1]
    assert are_intact
    assert trainer.wait() == 0
    assert len(processes) >= 2
    assert eventually(lambda: all(has_ended(process) for process in processes))


READ_ON = """
import numpy as np
folder = Path(arguments[0])
loader = fl.csv(str(folder / "*.csv")).batch(5).loader(
    faults=fl.FaultPolicy("skip"), files=4, prefetch=1, readers=1, threads=1)
numbers = []
others = []
for count, batch in enumerate(loader):
    numbers += batch["number"].tolist()
    if count in (2, 9):
        os.closerange(3, 1000)
    if count == 9 and arguments[1] == "reused":
        others = [os.open(folder / "other.txt", os.O_RDWR) for _ in range(60)]
report = loader.report()
say([sorted(numbers), report.skipped, (folder / "other.txt").read_text()])
"""


@pytest.mark.parametrize("numbers", ["closed", "reused"])
def test_a_native_pipeline_opens_its_files_again(numbers: str, tmp_path: Path) -> None:
    for shard in range(4):
        rows = "".join(f"{shard * 500 + row}\n" for row in range(500))
        (tmp_path / f"{shard}.csv").write_text("number\n" + rows)
    (tmp_path / "other.txt").write_text("777\n" * 4000)

    found, skipped, other = answer(READ_ON, tmp_path, numbers)

    assert found == list(range(2000))
    assert skipped == 0
    assert other == "777\n" * 4000


QUARANTINED = """
import numpy as np
folder = Path(arguments[0])
loader = fl.images(str(folder / "images")).decode().resize((8, 8)).batch(1).loader(
    faults=fl.FaultPolicy("skip", limit=None, quarantine=str(folder / "bad.jsonl")), prefetch=1)
others = []
for count, batch in enumerate(loader):
    if count == 0:
        os.closerange(3, 1000)
        others = [os.open(folder / "other.txt", os.O_RDWR) for _ in range(60)]
report = loader.report()
say([report.delivered, report.skipped, (folder / "other.txt").read_text(),
     len((folder / "bad.jsonl").read_text().splitlines())])
"""


def test_quarantine_lines_are_not_written_into_other_files(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(40):
        path = tmp_path / "images" / "a" / f"{number:03}.png"
        if number % 4 == 3:
            path.write_bytes(os.urandom(100))
        else:
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    (tmp_path / "other.txt").write_text("theirs")

    delivered, skipped, other, lines = answer(QUARANTINED, tmp_path)

    assert (delivered, skipped, other, lines) == (30, 10, "theirs", 10)
