"""File systems that are full, for real: samples are made again, caches stop, and no fault is lost."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(300)

# A private mount of a few pages, so small that anything fills it.
OPENING = """
import ctypes, errno, threading, warnings
import numpy as np
import torch.utils.data
from feedline.torch import DataLoader
warnings.simplefilter("ignore")
libc = ctypes.CDLL(None, use_errno=True)
small = Path(arguments[0]) / "small"
small.mkdir()
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
    say("not allowed")
    sys.exit(0)
if libc.mount(b"tmpfs", str(small).encode(), b"tmpfs", 0, b"size=256k"):
    say("no mount")
    sys.exit(0)
events = []

def fill():
    with (small / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC

def named(name):
    return [event.details for event in events if event.name == name]

# Writes to the full file system; it has room again after a while.
class Writes(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 17:
            with (small / "calls").open("ab", buffering=0) as file:
                if (small / "filler").exists():
                    threading.Timer(0.15, lambda: (small / "filler").unlink(missing_ok=True)).start()
                file.write(bytes(8192))
        return index
"""


def run(trainers: Trainers, folder: Any, program: str) -> Any:
    said = trainers.answer(OPENING + textwrap.dedent(program), folder, seconds=200)
    if isinstance(said, str):
        pytest.skip(f"only root may mount: {said}")
    return said


FRONTS = {
    "torch": "[int(number) for batch in DataLoader(Writes(), 4, faults=FAULTS, on_event=events.append) "
    "for number in batch]",
    "workers": "[int(number) for batch in DataLoader(Writes(), 4, num_workers=1, faults=FAULTS) "
    "for number in batch]",
    "threads": "[int(number) for batch in mapped(threads=True) for number in batch['number']]",
    "processes": "[int(number) for batch in mapped() for number in batch['number']]",
}


@pytest.mark.parametrize("faults", ["None", "fl.FaultPolicy('skip')"], ids=["plain", "policy"])
@pytest.mark.parametrize("front", FRONTS)
def test_a_function_that_meets_a_full_file_system_is_called_again(
    trainers: Trainers, tmp_path: Any, front: str, faults: str
) -> None:
    program = f"""
    FAULTS = {faults}
    def mapped(**options):
        data = Writes()
        def function(sample):
            return {{"number": data[int(sample["number"])]}}
        pipeline = fl.arrays({{"number": np.arange(40)}}).map(function, **options)
        return pipeline.batch(4).loader(workers=1, faults=FAULTS, on_event=events.append)

    fill()
    found = {FRONTS[front]}
    say([found, [details["resource"] for details in named("shortage_met")]])
    """

    found, met = run(trainers, tmp_path, program)

    assert found == list(range(40))
    if front in ("torch", "threads"):
        assert met == ["space on a file system"]


def test_a_cache_on_a_full_file_system_stops_with_one_event(trainers: Trainers, tmp_path: Any) -> None:
    program = """
    folder = Path(arguments[0]) / "data"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}").write_bytes(bytes([number]) * 20_000)
    paths = sorted(folder.iterdir())
    loader = fl.files(paths).cache(str(small / "cache"), size="1GiB").batch(4).loader(on_event=events.append)
    found = [[value[0] for batch in loader for value in batch["bytes"]] for _ in range(3)]
    say([found, len(named("cache_stopped")), [details["why"] for details in named("cache_stopped")]])
    """

    found, stopped, why = run(trainers, tmp_path, program)

    assert found == [list(range(40))] * 3
    assert stopped == 1
    assert "No space left" in why[0] or "StorageFull" in why[0] or "space" in why[0]


def test_faults_that_do_not_fit_on_the_disk_are_one_event_and_written_later(
    trainers: Trainers, tmp_path: Any
) -> None:
    program = """
    quarantine = small / "bad.jsonl"
    class Bad(torch.utils.data.Dataset):
        def __len__(self):
            return 60
        def __getitem__(self, index):
            if index % 3 == 0:
                if index == 51:
                    (small / "filler").unlink()
                raise ValueError(f"bad sample {index}")
            return index
    faults = fl.FaultPolicy("skip", fill=False, quarantine=str(quarantine))
    loader = DataLoader(Bad(), 4, faults=faults, on_event=events.append)
    fill()
    found = [int(number) for batch in loader for number in batch]
    written = [json.loads(line)["index"] for line in quarantine.read_text().splitlines()
               if line.startswith("{") and line.endswith("}")]
    say([found, written, len(named("quarantine_failed")), loader.report().quarantined])
    """

    found, written, failed, quarantined = run(trainers, tmp_path, program)

    assert found == [number for number in range(60) if number % 3]
    assert written == list(range(0, 60, 3))
    assert failed == 1
    assert quarantined == 20


def test_an_index_that_cannot_be_saved_is_made_again_by_each_run(trainers: Trainers, tmp_path: Any) -> None:
    program = """
    shards = []
    for shard in range(3):
        path = small / f"{shard}.jsonl"
        path.write_text("".join(json.dumps({"number": shard * 50 + number}) + "\\n" for number in range(50)))
        shards.append(path)
    fill()
    def numbers():
        loader = fl.jsonl(shards).parse({"number": fl.int64()}).batch(10).loader()
        return [int(number) for batch in loader for number in batch["number"]]
    say([numbers(), numbers(), sorted(path.name for path in small.iterdir())])
    """

    first, second, names = run(trainers, tmp_path, program)

    assert first == second == list(range(150))
    # No half of an index is left behind.
    assert names == ["0.jsonl", "1.jsonl", "2.jsonl", "filler"]
