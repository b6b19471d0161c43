"""Measures how fast, and with how much CPU time, loaders turn shards of records into batches of 64.

    python benchmarks/records.py                               everything, for published results
    python benchmarks/records.py --quick                       checks that everything runs, measures little
    python benchmarks/records.py --case tfrecord --repeat 9
    python benchmarks/records.py --case tar --only feedline,dali

Cases:

    tfrecord           16 shards of 40,000 tf.train.Examples with a 32x32 PNG and a label: found by a pattern,
                       read 16 at a time, parsed, decoded, float32
    tfrecord-raw-4k    16 shards of records of 4 KiB, 256 MiB in all, with verified checksums; feedline and
                       tf.data keep them in their own memory, and with -bytes convert them to Python's bytes
    tfrecord-raw-100k  the same with records of 100 KiB; `read` is a plain read of the same files, one after
                       another, and `read-threads` reads them with threads
    tar                10 shards of 3,000 JPEGs of 500x375 with labels: resize 256, center 224x224, float32;
                       `images` is feedline on the same JPEGs as a folder
    tokens             windows of 1,025 tokens in random order, from 50,000,000 tokens of uint16

The data is created if it is missing, with TensorFlow and webdataset, in the system's temporary folder, and
read once before each measurement, so that the disk does not matter.

Measurements work as in images.py: each in a process of its own, contestants in turns, medians with min..max;
imports, the start of workers and a warm-up of 4 batches are not measured.

Tables go to stdout, progress to stderr, and results to benchmarks/results/records (with --quick to
.bench/results).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import material
import peers
import peers_tar
import peers_tfrecord
import peers_tokens
import report
from clocks import cpu_seconds, machine_seconds
from peers import BATCH, Contestant
from report import Goal, Measured, Table
from turns import fill, log, run_measurement

ROOT = Path(__file__).parent.parent
WARM_UP_BATCHES = 4


@dataclass(frozen=True)
class Case:
    """A case to measure: data, contestants, and the goals of feedline."""

    about: str
    does: str
    contestants: Sequence[Contestant]
    epochs: int
    goals: tuple[Goal, ...]
    unit: str = "sample"
    # How many units a sample is.
    weight: float = 1.0
    aside: tuple[str, ...] = ()

    def named(self, name: str) -> Contestant:
        return next(contestant for contestant in self.contestants if contestant.name == name)


def raw(size: int) -> Case:
    return Case(
        f"{material.SHARDS} shards, records of {size >> 10} KiB",
        "checksums checked",
        peers_tfrecord.RAW,
        4,
        (Goal("rate", 3.0, ("tf.data", "tf.data-files")), Goal("rate", 0.5, ("read",))),
        "MB",
        size / 1e6,
        ("feedline-bytes", "tf.data-bytes", "read", "read-threads"),
    )


CASES = {
    "tfrecord": Case(
        f"{material.SHARDS} shards, {material.EXAMPLES:,} Examples",
        "interleave, parse, decode 32x32 PNG, float32",
        peers_tfrecord.EXAMPLES,
        2,
        (Goal("CPU", 0.4), Goal("rate", 2.5)),
    ),
    **{name: raw(size) for name, size in material.RAW_BYTES.items()},
    "tar": Case(
        f"{material.TAR_SHARDS} shards, {material.PHOTOS:,} JPEGs",
        "resize 256, crop 224, float32",
        peers_tar.PHOTOS,
        2,
        (Goal("CPU", 1.05, ("images",)), Goal("rate", 0.95, ("images",))),
        aside=("images",),
    ),
    "tokens": Case(
        f"{material.TOKENS:,} tokens of uint16",
        f"windows of {material.WINDOW:,}, shuffled",
        peers_tokens.WINDOWS,
        4,
        (Goal("CPU", 0.5, ("torch",)),),
    ),
}


def measure(case: str, name: str, folder: Path, epochs: int, threads: int) -> Measured:
    """One measurement, in this process."""
    material.warm(folder)
    open_epochs = CASES[case].named(name).open
    assert open_epochs is not None
    epoch = open_epochs(str(folder), case, threads)
    for batch in epoch(WARM_UP_BATCHES):
        check(case, name, batch)
    samples = 0
    busy, cpu, start = machine_seconds(), cpu_seconds(), time.perf_counter()
    for _ in range(epochs):
        for batch in epoch(None):
            samples += len(batch)
    seconds, cpu, busy = time.perf_counter() - start, cpu_seconds() - cpu, machine_seconds() - busy
    return Measured(samples * CASES[case].weight, seconds, cpu, max(0.0, busy - cpu))


def check(case: str, name: str, batch: Any) -> None:
    """Checks that a contestant does not deliver less than the others."""
    if name.startswith("read"):
        return
    if case in material.RAW_BYTES:
        content = batch[0] if isinstance(batch[0], bytes) else batch[0].numpy()
        if len(content) != material.RAW_BYTES[case]:
            raise SystemExit(f"a record must have {material.RAW_BYTES[case]} bytes, got {len(content)}")
        return
    side, wide = material.SIDE, peers.SIDE
    wanted: dict[str, tuple[str, set[tuple[int, ...]]]] = {
        "tfrecord": ("float32", {(side, side, 3)}),
        "tar": ("float32", {(wide, wide, 3), (3, wide, wide)}),
        "tokens": ("uint16", {(material.WINDOW,)}),
    }
    dtype, shapes = wanted[case]
    shape, found = tuple(batch.shape), str(batch.dtype)
    if shape[1:] not in shapes or shape[0] > BATCH or dtype not in found:
        raise SystemExit(f"a batch must be {dtype} of {BATCH} samples of {shapes}, got {found} of {shape}")


def measure_all(name: str, arguments: argparse.Namespace) -> Table | None:
    """The table of one case; None if no contestant can run."""
    case = CASES[name]
    names = []
    for contestant in case.contestants:
        if arguments.only and contestant.name not in arguments.only:
            continue
        if missing := contestant.missing():
            log(f"{contestant.name}: left out, {missing}")
        else:
            names.append(contestant.name)
    if not names:
        return None
    folder = material.prepare(name, arguments.quick)
    epochs = arguments.epochs or (1 if arguments.quick else case.epochs)
    table = Table(name, case.does, case.about, epochs, {}, case.unit, case.goals, case.aside)
    given = ["--case", name, "--folder", str(folder), "--epochs", str(epochs)]
    given += ["--threads", str(arguments.threads)]
    fill(table, names, arguments.repeat, lambda each: run_measurement(__file__, "--one", each, *given))
    return table


def read_arguments() -> argparse.Namespace:
    everyone = {contestant.name for case in CASES.values() for contestant in case.contestants}
    listed = [
        f"    {name:<18}{contestant.name:<15}{contestant.about}"
        for name, case in CASES.items()
        for contestant in case.contestants
    ]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="contestants (one whose packages are not installed is left out with a note):\n"
        + "\n".join(listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one epoch, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (5; with --quick 1)")
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--only", metavar="NAMES", help="contestants, with commas between them")
    parser.add_argument("--threads", type=int, default=2, help="threads or workers of each contestant (2)")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of a measurement (2 or 4)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    parser.add_argument(
        "--one", metavar="NAME", choices=everyone, help="one measurement here, as a line of JSON"
    )
    parser.add_argument("--folder", type=Path, help="the data of --one")
    arguments = parser.parse_args()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 5)
    arguments.only = arguments.only.split(",") if arguments.only else []
    unknown = sorted(set(arguments.only) - everyone)
    if unknown:
        parser.error(f"--only: no contestant {', '.join(unknown)}; there are {', '.join(sorted(everyone))}")
    if arguments.one and (arguments.folder is None or arguments.case == "all"):
        parser.error("--one needs --folder and one --case")
    return arguments


def main() -> None:
    arguments = read_arguments()
    if arguments.one:
        epochs = arguments.epochs or 1
        found = measure(arguments.case, arguments.one, arguments.folder, epochs, arguments.threads)
        print(json.dumps(asdict(found)), flush=True)
        return
    machine = report.machine()
    tables = []
    for name in CASES if arguments.case == "all" else [arguments.case]:
        table = measure_all(name, arguments)
        if table is not None:
            tables.append(table)
            print("\n".join(report.lines(table)), end="\n\n", flush=True)
    results = arguments.results or (
        ROOT / ".bench" / "results" if arguments.quick else ROOT / "benchmarks" / "results" / "records"
    )
    title = "Records: shards to batches of 64"
    for path in report.write(results, tables, machine, "records", title):
        log(f"wrote {path}")


if __name__ == "__main__":
    main()
