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
those of the trainer and all its descendants together, at the moment at which they used the most memory. PSS
counts a page that n processes share as 1/n of a page in each. USS counts only pages that no other process
has. The trainer's own libraries are in all of them.

PSS leaves out shared memory that no process has mapped at the moment. torch's loader has much of it: a batch
that is ready lies in a segment that the worker has unmapped and the trainer has not mapped yet, and of which
only a descriptor is open. `in use` is PSS with these segments, each counted once: what a memory cgroup would
count, and what the machine cannot use for anything else.

The trainer's imports are a large part of all of these: torch and its libraries alone take hundreds of MB.
`added` is what is in use beyond the PSS of the trainer after its imports: what data set and loader cost.

The goals are ratios to torch's loader with a plain list: 0.7 for jpeg, 0.3 for strings and tuples with
feedline.pack."""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import select
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

    in_use: float
    pss: float
    uss: float
    descriptors: int
    processes: int
    # The PSS of the trainer when it has imported torch and the loader, and done nothing else.
    imports: float = 0.0

    @property
    def added(self) -> float:
        """What data set and loader add."""
        return self.in_use - self.imports


# ---- one measurement, in a process of its own ----


def footprint(root: int, but: int) -> Footprint:
    """Of a process and all its descendants that are alive, but for one."""
    pss = uss = mapped = 0
    descriptors = processes = 0
    segments: dict[tuple[int, int], int] = {}
    for pid in [root, *descendants(root)]:
        if pid == but:
            continue
        folder = Path("/proc") / str(pid)
        try:
            rollup = (folder / "smaps_rollup").read_text()
            opened = len(list((folder / "fd").iterdir()))
            mapped += mapped_segments(folder)
            segments |= open_segments(folder)
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
    megabytes = 1.024 / 1e3
    unmapped = max(0, sum(segments.values()) / 1024 - mapped)
    return Footprint((pss + unmapped) * megabytes, pss * megabytes, uss * megabytes, descriptors, processes)


def is_segment(name: str) -> bool:
    return name.startswith(("/dev/shm/", "/memfd:"))


def mapped_segments(process: Path) -> int:
    """The PSS of the shared memory that a process has mapped and holds open, in KiB."""
    total, counts = 0, False
    for line in (process / "smaps").read_text().splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):
            # Feedline's arenas are mapped for as long as they exist, and their descriptors are closed.
            counts = len(values) == 5 and is_segment(values[4]) and "feedline-arena" not in values[4]
        elif counts and name == "Pss:":
            total += int(values[0])
    return total


def open_segments(process: Path) -> dict[tuple[int, int], int]:
    """The bytes that each segment of shared memory takes of which a process has a descriptor."""
    found = {}
    for link in (process / "fd").iterdir():
        try:
            name = str(link.readlink())
            if is_segment(name) and "feedline-arena" not in name:
                status = link.stat()
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return found


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
    import torch

    torch.set_num_threads(1)
    loader_name, _, holder = contestant.partition(" ")
    if loader_name == "torch":
        from torch.utils.data import DataLoader
    else:
        from feedline.torch import DataLoader
    gc.collect()
    imports = footprint(os.getpid(), but=0).pss
    dataset: Any = (
        Photos(ROUNDS * workers * BATCH) if workload == "jpeg" else Items(workload, holder, items, workers)
    )
    size = BATCH if workload == "jpeg" else Items.PARTS
    gc.collect()
    loader = DataLoader(
        dataset, size, num_workers=workers, persistent_workers=True, multiprocessing_context="fork"
    )
    command = [sys.executable, __file__, "--watch", str(os.getpid())]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for batch in loader:
        check(batch, workload, items)
        # As a training step does, which drops the batch before it asks for the next.
        del batch
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    # A line and not the end of the pipe: workers that were forked meanwhile hold its other end, too.
    print("end", file=watcher.stdin, flush=True)
    return Footprint(**{**json.loads(watcher.stdout.readline()), "imports": imports})


def watch(root: int) -> Footprint:
    """The largest footprint until something is written to stdin. A process of its own: reading all these
    files takes long, and would give the workers time to get ahead."""
    seen: list[Footprint] = []
    myself = os.getpid()
    while not seen or not select.select([sys.stdin], [], [], 0.2)[0]:
        seen.append(footprint(root, but=myself))
    return max(seen, key=lambda one: one.in_use)


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
            log(f"{workload} {workers} workers {repetition + 1}/{repeat} {name}: {found.in_use:.0f} MB")
    return measured


def table(workload: str, measured: dict[int, dict[str, list[Footprint]]]) -> list[str]:
    ours, theirs, goal = GOALS[workload]
    rows = [
        [
            "workers",
            "contestant",
            "in use, MB",
            "min..max",
            f"in use / {theirs}",
            "PSS, MB",
            f"PSS / {theirs}",
            "USS, MB",
            "added to imports, MB",
            f"added / {theirs}",
            "descriptors",
            "processes",
        ]
    ]
    reached = []
    for workers, contestants in measured.items():
        in_use = {name: median(one.in_use for one in found) for name, found in contestants.items()}
        medians = {name: median(one.pss for one in found) for name, found in contestants.items()}
        added = {name: median(one.added for one in found) for name, found in contestants.items()}
        for name, found in contestants.items():
            sizes = [one.in_use for one in found]
            rows.append(
                [
                    str(workers),
                    name,
                    f"{in_use[name]:,.0f}",
                    f"{min(sizes):,.0f}..{max(sizes):,.0f}",
                    f"{in_use[name] / in_use[theirs]:.2f}",
                    f"{medians[name]:,.0f}",
                    f"{medians[name] / medians[theirs]:.2f}",
                    f"{median(one.uss for one in found):,.0f}",
                    f"{added[name]:,.0f}",
                    f"{added[name] / added[theirs]:.2f}",
                    f"{median(one.descriptors for one in found):.0f}",
                    f"{median(one.processes for one in found):.0f}",
                ]
            )
        ratios = in_use[ours] / in_use[theirs], medians[ours] / medians[theirs]
        found_ratios = f"{ratios[0]:.2f} in use, {ratios[1]:.2f} PSS, {added[ours] / added[theirs]:.2f} added"
        reached.append(f"- {workers} workers: {ours} / {theirs} = {found_ratios} (goal <= {goal:g})")
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
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
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
    if arguments.watch:
        print(json.dumps(asdict(watch(arguments.watch))), flush=True)
        return
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
