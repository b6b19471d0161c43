"""Measures how fast, and with how much CPU time, loaders turn folders of JPEGs into batches.

    python benchmarks/images.py                                 everything, for published results
    python benchmarks/images.py --quick                         checks that everything runs, measures little
    python benchmarks/images.py --size small --workload center  one table
    python benchmarks/images.py --only feedline,dali --repeat 9

Workloads, batches of 64:

    center        resize the shorter side to 256 (bilinear, antialias), crop the center 224x224; uint8
    random        a random crop resized to 224x224, flipped at random; uint8
    center-float  as center, then float32, minus the mean and divided by the standard deviation
    random-float  as random, then the same

Sizes: small is 3000 JPEGs of 500x375, large 240 of 2000x1500. They are created in .bench if they are missing,
and read once before each measurement, so that the disk does not matter.

Each measurement runs in a process of its own. Repetition 1 of all contestants comes before repetition 2 of
any, each repetition starts with another contestant, and the table has medians with min..max. Imports, the
start of workers and a warm-up of 4 batches are not measured. CPU time is that of all threads and worker
processes. "others" is the number of cores that the rest of this machine used meanwhile: if it is not near 0,
do not trust the rates, and the CPU times are too high.

Tables go to stdout, progress to stderr, and results to benchmarks/results (with --quick to .bench/results).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import photos
import report
from clocks import cpu_seconds, machine_seconds
from peers import BATCH, CONTESTANTS, SIDE, Contestant, Workload, is_float, run_bare
from report import Measured, Table
from turns import fill, log, run_measurement

ROOT = Path(__file__).parent.parent
WORKLOADS: tuple[Workload, ...] = get_args(Workload)
# Width, height, images, images with --quick, epochs of a measurement.
SIZES = {"small": (500, 375, 3000, 320, 2), "large": (2000, 1500, 240, 128, 2)}
WARM_UP_BATCHES = 4


# ---- one measurement, in a process of its own ----


def measure(contestant: Contestant, workload: Workload, folder: Path, epochs: int, threads: int) -> Measured:
    for path in folder.rglob("*.jpg"):
        path.read_bytes()
    busy = machine_seconds()
    if contestant.open is None:
        runs = [run_bare(str(folder), workload, threads) for _ in range(epochs)]
        images = int(sum(run["images"] for run in runs))
        seconds, cpu = (sum(run[name] for run in runs) for name in ("seconds", "cpu_seconds"))
        return Measured(images, seconds, cpu, max(0.0, machine_seconds() - busy - cpu))
    epoch = contestant.open(str(folder), workload, threads)
    for batch in epoch(WARM_UP_BATCHES):
        check(batch, workload)
    images = 0
    busy, cpu, start = machine_seconds(), cpu_seconds(), time.perf_counter()
    for _ in range(epochs):
        for batch in epoch(None):
            images += len(batch)
    seconds, cpu, busy = time.perf_counter() - start, cpu_seconds() - cpu, machine_seconds() - busy
    return Measured(images, seconds, cpu, max(0.0, busy - cpu))


def check(batch: Any, workload: Workload) -> None:
    shape, dtype = tuple(batch.shape), str(batch.dtype)
    wanted = "float32" if is_float(workload) else "uint8"
    if shape[1:] not in ((SIDE, SIDE, 3), (3, SIDE, SIDE)) or shape[0] > BATCH or wanted not in dtype:
        raise SystemExit(
            f"a batch must be {wanted} of {BATCH} images of {SIDE}x{SIDE}, got {dtype} of {shape}"
        )


# ---- all measurements, in turns ----


def measure_all(
    names: list[str], size: str, workload: Workload, folder: Path, arguments: argparse.Namespace
) -> Table:
    width, height, *_, epochs = SIZES[size]
    epochs = arguments.epochs or (1 if arguments.quick else epochs)
    table = Table(size, workload, f"{width}x{height}", epochs, {})
    given = ["--workload", workload, "--folder", str(folder), "--epochs", str(epochs)]
    given += ["--threads", str(arguments.threads)]
    fill(table, names, arguments.repeat, lambda name: run_measurement(__file__, "--one", name, *given))
    return table


def prepare(size: str, quick: bool) -> Path:
    width, height, count, quick_count, _epochs = SIZES[size]
    folder = ROOT / ".bench" / (f"quick-{size}" if quick else size)
    log(f"photos of {width}x{height} in {folder}")
    photos.make(folder, quick_count if quick else count, width, height)
    return folder


# ---- command line ----


def read_arguments() -> argparse.Namespace:
    listed = "\n".join(f"    {name:<10}{contestant.about}" for name, contestant in CONTESTANTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"contestants (one whose packages are not installed is left out with a note):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few images, one epoch, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (5; with --quick 1)")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--only", metavar="NAMES", help="contestants, with commas between them")
    parser.add_argument("--threads", type=int, default=2, help="threads or workers of each contestant (2)")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of a measurement (2; with --quick 1)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    parser.add_argument(
        "--one", metavar="NAME", choices=CONTESTANTS, help="one measurement here, as a line of JSON"
    )
    parser.add_argument("--folder", type=Path, help="the images of --one")
    arguments = parser.parse_args()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 5)
    wanted = arguments.only.split(",") if arguments.only else list(CONTESTANTS)
    unknown = [name for name in wanted if name not in CONTESTANTS]
    if unknown:
        parser.error(f"--only: no contestant {', '.join(unknown)}; there are {', '.join(CONTESTANTS)}")
    arguments.only = wanted
    if arguments.one and (arguments.folder is None or arguments.workload == "all"):
        parser.error("--one needs --folder and one --workload")
    return arguments


def main() -> None:
    arguments = read_arguments()
    if arguments.one:
        contestant = CONTESTANTS[arguments.one]
        epochs = arguments.epochs or 1
        measured = measure(contestant, arguments.workload, arguments.folder, epochs, arguments.threads)
        print(json.dumps(asdict(measured)), flush=True)
        return

    names = []
    for name in arguments.only:
        missing = CONTESTANTS[name].missing()
        if missing:
            log(f"{name}: left out, {missing}")
        else:
            names.append(name)
    if not names:
        raise SystemExit("no contestant can run here")

    machine = report.machine()
    tables = []
    for size in SIZES if arguments.size == "all" else [arguments.size]:
        folder = prepare(size, arguments.quick)
        for workload in WORKLOADS if arguments.workload == "all" else [arguments.workload]:
            tables.append(measure_all(names, size, workload, folder, arguments))
            print("\n".join(report.lines(tables[-1])), end="\n\n", flush=True)
    results = arguments.results or (
        ROOT / ".bench" / "results" if arguments.quick else ROOT / "benchmarks" / "results"
    )
    for path in report.write(results, tables, machine):
        log(f"wrote {path}")


if __name__ == "__main__":
    main()
