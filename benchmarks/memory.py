"""Measures the memory, descriptors and processes of feedline.torch.DataLoader and torch's own.

    python benchmarks/memory.py            everything, for published results
    python benchmarks/memory.py --quick    checks that everything runs, measures little
    python benchmarks/memory.py --workload strings --workers 8 --repeat 3

Workloads:

    jpeg     JPEGs of 500x375, decoded and resized with Pillow to 3x224x224 float32, batches of 64
    strings  a data set with a list of a million strings, all of which every worker looks at
    tuples   as strings, with tuples of a path and a label

Contestants are torch's loader and Feedline's; `list` and `pack` say whether the items are a plain list or
feedline.pack(list). Each measurement is a process of its own, a trainer with its workers. The numbers are
those of the trainer and all its descendants together, at the moment at which their PSS was highest. PSS
counts a page that n processes share as 1/n of a page in each, so the sum is the memory that is really used;
USS counts only pages that no other process has. The trainer's own libraries are in all of them.

The goals are ratios to torch's loader with a plain list: 0.7 for jpeg, 0.3 for strings and tuples with
feedline.pack."""

from __future__ import annotations

import argparse
import gc
import io
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import report
from turns import log

ROOT = Path(__file__).parent.parent
WORKLOADS = {"jpeg": ("torch", "feedline")} | dict.fromkeys(
    ("strings", "tuples"), ("torch list", "feedline list", "torch pack", "feedline pack")
)
GOALS = {"jpeg": ("feedline", "torch", 0.7)} | dict.fromkeys(
    ("strings", "tuples"), ("feedline pack", "torch list", 0.3)
)
WORKERS = (2, 8, 16)
ITEMS, QUICK_ITEMS = 1_000_000, 50_000
# How many batches each worker makes.
ROUNDS = 4
BATCH, SIDE, PHOTOS = 64, 224, 16
LONGEST_SECONDS = 1200


@dataclass(frozen=True)
class Footprint:
    """What a trainer and all its descendants use together; sizes in MB."""

    pss: float
    uss: float
    descriptors: int
    processes: int


# ---- one measurement, in a process of its own ----


def footprint(root: int) -> Footprint:
    """Of a process and all its descendants that are alive."""
    pss = uss = 0
    descriptors = processes = 0
    for pid in [root, *descendants(root)]:
        folder = Path("/proc") / str(pid)
        try:
            rollup = (folder / "smaps_rollup").read_text()
            opened = len(list((folder / "fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        fields = dict(line.split(":", 1) for line in rollup.splitlines()[1:] if ":" in line)
        kilobytes = {name: int(value.split()[0]) for name, value in fields.items()}
        if not kilobytes:
            # It has ended and is not reaped yet.
            continue
        pss += kilobytes["Pss"]
        uss += kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
        descriptors += opened
        processes += 1
    return Footprint(pss / 1e3 * 1.024, uss / 1e3 * 1.024, descriptors, processes)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name of a program may have spaces and parentheses.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


def measure(contestant: str, workload: str, workers: int, items: int) -> Footprint:
    import os

    import torch

    torch.set_num_threads(1)
    loader_name, _, holder = contestant.partition(" ")
    if loader_name == "torch":
        from torch.utils.data import DataLoader
    else:
        from feedline.torch import DataLoader
    dataset: Any = (
        Photos(ROUNDS * workers * BATCH) if workload == "jpeg" else Items(workload, holder, items, workers)
    )
    size = BATCH if workload == "jpeg" else Items.PARTS
    gc.collect()
    loader = DataLoader(
        dataset, size, num_workers=workers, persistent_workers=True, multiprocessing_context="fork"
    )
    seen: list[Footprint] = []
    for number, batch in enumerate(loader):
        check(batch, workload, items)
        # As a training step does, which drops the batch before it asks for the next.
        del batch
        # Looking at all processes takes long: once in each round, after the first.
        if number >= workers and number % workers == 0:
            seen.append(footprint(os.getpid()))
    seen.append(footprint(os.getpid()))
    return max(seen, key=lambda one: one.pss)


def check(batch: Any, workload: str, items: int) -> None:
    if workload == "jpeg":
        assert tuple(batch.shape) == (BATCH, 3, SIDE, SIDE)
        assert str(batch.dtype) == "torch.float32"
    else:
        assert int(batch.sum()) == items, "a worker did not look at all items"


class Photos:
    """A few encoded photographs, decoded again and again."""

    def __init__(self, count: int) -> None:
        import photos

        self.count = count
        self.encoded = []
        for number in range(PHOTOS):
            written = io.BytesIO()
            photos.photo(number, 500, 375).save(written, "jpeg", quality=90)
            self.encoded.append(written.getvalue())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        with Image.open(io.BytesIO(self.encoded[index % PHOTOS])) as image:
            pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))) / 255


class Items:
    """Many items. The samples of a batch look at all of them together."""

    PARTS = 4

    def __init__(self, workload: str, holder: str, items: int, workers: int) -> None:
        paths = (f"data/train/class{number % 1000:04}/image_{number:010}.jpg" for number in range(items))
        made: Any = paths if workload == "strings" else ((path, at % 1000) for at, path in enumerate(paths))
        if holder == "pack":
            import feedline

            # From an iterator, as a data set does that lists its files: the list itself is never made.
            made = feedline.pack(made)
        else:
            made = list(made)
        self.items = made
        self.is_of_tuples = workload == "tuples"
        self.count = self.PARTS * workers * ROUNDS

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        part = self.items[index % self.PARTS :: self.PARTS]
        # Looks at the parts of a tuple, too.
        return sum(1 for path, _ in part if path) if self.is_of_tuples else sum(1 for path in part if path)


# ---- all measurements, in turns ----


def run_one(contestant: str, workload: str, workers: int, items: int) -> Footprint:
    command = [sys.executable, __file__, "--one", contestant, "--workload", workload]
    command += ["--workers", str(workers), "--items", str(items)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(
            f"{contestant}, {workload}, {workers} workers: exit code {done.returncode}: {last}"
        )
    return Footprint(**json.loads(lines[-1]))


def measure_all(workload: str, workers: int, repeat: int, items: int) -> dict[str, list[Footprint]]:
    names = WORKLOADS[workload]
    measured: dict[str, list[Footprint]] = {name: [] for name in names}
    for repetition in range(repeat):
        turn = repetition % len(names)
        for name in [*names[turn:], *names[:turn]]:
            found = run_one(name, workload, workers, items)
            measured[name].append(found)
            log(f"{workload} {workers} workers {repetition + 1}/{repeat} {name}: {found.pss:.0f} MB PSS")
    return measured


def table(workload: str, measured: dict[int, dict[str, list[Footprint]]]) -> list[str]:
    ours, theirs, goal = GOALS[workload]
    rows = [
        [
            "workers",
            "contestant",
            "PSS, MB",
            "min..max",
            "USS, MB",
            "descriptors",
            "processes",
            f"PSS / {theirs}",
        ]
    ]
    reached = []
    for workers, contestants in measured.items():
        medians = {name: median(one.pss for one in found) for name, found in contestants.items()}
        for name, found in contestants.items():
            sizes = [one.pss for one in found]
            rows.append(
                [
                    str(workers),
                    name,
                    f"{medians[name]:,.0f}",
                    f"{min(sizes):,.0f}..{max(sizes):,.0f}",
                    f"{median(one.uss for one in found):,.0f}",
                    f"{median(one.descriptors for one in found):.0f}",
                    f"{median(one.processes for one in found):.0f}",
                    f"{medians[name] / medians[theirs]:.2f}",
                ]
            )
        ratio = medians[ours] / medians[theirs]
        reached.append(f"- {workers} workers: {ours} / {theirs} = {ratio:.2f} (goal <= {goal:g})")
    return [f"### {workload}", "", *report.aligned(rows), "", *reached]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few items, 2 workers, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (3; with --quick 1)")
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--workers", nargs="+", type=int, metavar="N")
    parser.add_argument("--items", type=int, metavar="N", help="how many strings or tuples")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 3)
    arguments.workers = arguments.workers or ((2,) if arguments.quick else WORKERS)
    arguments.items = arguments.items or (QUICK_ITEMS if arguments.quick else ITEMS)
    arguments.results = arguments.results or (
        ROOT / (".bench" if arguments.quick else "benchmarks") / "results" / "memory"
    )
    return arguments


def main() -> None:
    arguments = read_arguments()
    if arguments.one:
        found = measure(arguments.one, arguments.workload[0], arguments.workers[0], arguments.items)
        print(json.dumps(asdict(found)), flush=True)
        return
    machine = report.machine()
    text = report.opening("Memory: a trainer and its workers", machine)
    numbers: dict[str, Any] = {}
    for workload in arguments.workload:
        measured = {
            workers: measure_all(workload, workers, arguments.repeat, arguments.items)
            for workers in arguments.workers
        }
        numbers[workload] = {
            workers: {name: [asdict(one) for one in found] for name, found in contestants.items()}
            for workers, contestants in measured.items()
        }
        lines = table(workload, measured)
        text += ["", *lines]
        print("\n".join(lines), end="\n\n", flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "memory.md").write_text("\n".join(text) + "\n")
    (arguments.results / "memory.json").write_text(
        json.dumps({**machine, "measured": numbers}, indent=1) + "\n"
    )
    log(f"wrote {arguments.results}")


if __name__ == "__main__":
    main()
