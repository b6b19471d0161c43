"""Measures states and resuming: how large a state is, how long it takes to make, and how long a loader needs
from its construction to the first batch behind it.

    python benchmarks/resume.py            everything, for published results
    python benchmarks/resume.py --quick    checks that everything runs, measures little
    python benchmarks/resume.py --only "feedline" "torchdata 2" --order shuffled --repeat 3

The data set has 12 million numbers in memory, in batches of 1,000. A state is made after 10 million of them.
Contestants; the number is that of worker processes:

    feedline             fl.arrays(...).loader(threads=2)
    feedline.torch 0, 2  feedline.torch.DataLoader
    torchdata 0, 2       torchdata's StatefulDataLoader
    grain                grain.MapDataset, two threads
    accelerate 0, 2      accelerate.skip_first_batches over torch's DataLoader: there is no state, the program
                         keeps the seed and the number of batches

Data sets of torch give a whole batch at once (`__getitems__`): what a sample costs is not measured here.

The state is made once after each of some batches, in the run that has come that far; its size is that of its
JSON, or of its pickle if JSON cannot hold it. Grain does not run: it is put to its place with a state of its
own, because a run of ten million elements takes it long.

A start is measured from the construction of the loader to its first batch. First starts and resumed ones
alternate in one process, after one of each that is not measured. The first batch of a resumed start is
compared with the one that followed in the run that made the state. The CPU time includes the workers and
their end. The ratios are those of a resumed start to the first start beside it.

Goals for feedline and feedline.torch: a state under 10 kB, made in under 100 µs, and a ratio of 1, for which
1.1 is allowed because of noise.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import report
from clocks import cpu_seconds
from turns import log

ROOT = Path(__file__).parent.parent
CONTESTANTS = (
    "feedline",
    "feedline.torch 0",
    "feedline.torch 2",
    "torchdata 0",
    "torchdata 2",
    "grain",
    "accelerate 0",
    "accelerate 2",
)
ORDERS = ("in order", "shuffled")
# Samples of the data set, and before the state.
COUNT, DONE = 12_000_000, 10_000_000
QUICK_COUNT, QUICK_DONE = 120_000, 100_000
BATCH, THREADS, SEED = 1_000, 2, 7
STATES, ROUNDS = 200, 5
LARGEST_BYTES, LONGEST_MICROS, LARGEST_RATIO = 10_000, 100, 1.1
LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Made:
    """The state of a run, as it is in a file."""

    bytes: int | None
    micros: list[float]


@dataclass(frozen=True)
class Starts:
    """Seconds of first starts and of the resumed ones beside them."""

    first: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    first_cpu: list[float] = field(default_factory=list)
    resumed_cpu: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.first, self.resumed, strict=True)]

    def cpu_ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.first_cpu, self.resumed_cpu, strict=True)]

    def add(self, other: Starts) -> None:
        for name, values in asdict(other).items():
            getattr(self, name).extend(values)


@dataclass(frozen=True)
class Contestant:
    """`make` creates a loader, `save` takes its state from the loader and its iterator, `resume` begins to
    iterate from a state, and `run` iterates up to the batch behind which the state is made."""

    make: Callable[[], Any]
    save: Callable[[Any, Any], Any] | None
    resume: Callable[[Any, Any], Any]
    run: Callable[[Any, int], Any]


def ran(loader: Any, batches: int) -> Any:
    """The iterator of a loader that has delivered that many batches."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


def loaded(loader: Any, state: Any) -> Any:
    loader.load_state_dict(state)
    return iter(loader)


def state_of(loader: Any, _iterator: Any) -> Any:
    return loader.state_dict()


def native(count: int, order: str) -> Contestant:
    import feedline as fl
    import numpy as np

    source = fl.arrays({"number": np.arange(count)})

    def make() -> Any:
        pipeline = source.shuffle(SEED) if order == "shuffled" else source
        return pipeline.batch(BATCH).loader(threads=THREADS)

    return Contestant(make, state_of, loaded, ran)


class Numbers:
    """A data set of torch that gives a whole batch at once."""

    def __init__(self, count: int) -> None:
        import torch

        self.values = torch.arange(count)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.values[indices]


def as_it_is(batch: Any) -> Any:
    return batch


def of_torch(kind: Any, count: int, order: str, workers: int) -> Callable[[], Any]:
    import torch

    dataset = Numbers(count)

    def make() -> Any:
        torch.manual_seed(SEED)
        shuffle = order == "shuffled"
        return kind(dataset, BATCH, shuffle=shuffle, num_workers=workers, collate_fn=as_it_is)

    return make


def stateful(count: int, order: str, workers: int, *, is_ours: bool) -> Contestant:
    module, kind = "torchdata.stateful_dataloader", "StatefulDataLoader"
    if is_ours:
        module, kind = "feedline.torch", "DataLoader"
    loader = getattr(importlib.import_module(module), kind)
    return Contestant(of_torch(loader, count, order, workers), state_of, loaded, ran)


def accelerate(count: int, order: str, workers: int) -> Contestant:
    from accelerate import skip_first_batches  # type: ignore[import-untyped]
    from torch.utils.data import DataLoader

    def resume(loader: Any, batches: int) -> Any:
        return iter(skip_first_batches(loader, batches))

    make = of_torch(DataLoader, count, order, workers)
    return Contestant(make, None, resume, ran)


def grain(count: int, order: str) -> Contestant:
    import grain
    import numpy as np

    values = np.arange(count)
    options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=4)

    def make() -> Any:
        dataset = grain.MapDataset.source(values)
        if order == "shuffled":
            dataset = dataset.shuffle(SEED)
        return dataset.batch(BATCH).to_iter_dataset(options)

    def resume(loader: Any, state: Any) -> Any:
        iterator = iter(loader)
        iterator.set_state(state)
        return iterator

    def run(loader: Any, batches: int) -> Any:
        iterator = iter(loader)
        next(iterator)
        state = iterator.get_state()
        assert state == {"next_index": 1}, f"grain has another state: {state}"
        iterator.set_state({"next_index": batches})
        return iterator

    return Contestant(make, lambda _, iterator: iterator.get_state(), resume, run)


def contestant_of(name: str, count: int, order: str) -> Contestant:
    loader, _, workers = name.partition(" ")
    if loader == "feedline":
        return native(count, order)
    if loader == "grain":
        return grain(count, order)
    if loader == "accelerate":
        return accelerate(count, order, int(workers))
    return stateful(count, order, int(workers), is_ours=loader == "feedline.torch")


def numbers_of(batch: Any) -> list[int]:
    numbers: list[int] = (batch["number"] if isinstance(batch, dict) else batch).tolist()
    return numbers


def size_of(state: Any) -> int:
    try:
        return len(json.dumps(state, separators=(",", ":")).encode())
    except TypeError:
        return len(pickle.dumps(state))


# ---- one measurement, in a process of its own ----


def make_state(contestant: Contestant, done: int, states: int, file: Path) -> Made:
    """Runs up to the state, and writes it to a file with the batch that follows. Where a program keeps the
    number of batches, that is the state."""
    loader = contestant.make()
    batches = done // BATCH
    if contestant.save is None:
        iterator = contestant.run(loader, batches)
        file.write_bytes(pickle.dumps((batches, numbers_of(next(iterator)))))
        return Made(None, [])
    iterator = contestant.run(loader, batches - states)
    micros, state = [], None
    for _ in range(states):
        next(iterator)
        start = time.perf_counter()
        state = contestant.save(loader, iterator)
        micros.append(1e6 * (time.perf_counter() - start))
    file.write_bytes(pickle.dumps((state, numbers_of(next(iterator)))))
    return Made(size_of(state), micros)


def start_once(contestant: Contestant, state: Any, expected: list[int] | None) -> tuple[float, float]:
    """Seconds to the first batch, and CPU seconds until the loader has ended."""
    gc.collect()
    cpu, start = cpu_seconds(), time.perf_counter()
    loader = contestant.make()
    iterator = iter(loader) if expected is None else contestant.resume(loader, state)
    batch = next(iterator)
    seconds = time.perf_counter() - start
    assert expected is None or numbers_of(batch) == expected, "resumed at another place"
    del batch, iterator, loader
    return seconds, cpu_seconds() - cpu


def start_often(contestant: Contestant, file: Path, rounds: int) -> Starts:
    state, expected = pickle.loads(file.read_bytes())
    starts = Starts()
    for number in range(rounds + 1):
        # Who comes first alternates, too.
        kinds = (None, expected) if number % 2 else (expected, None)
        measured = {kind is None: start_once(contestant, state, kind) for kind in kinds}
        if number:
            first, resumed = measured[True], measured[False]
            starts.add(Starts([first[0]], [resumed[0]], [first[1]], [resumed[1]]))
    return starts


# ---- all measurements, in turns ----


def run_one(name: str, order: str, file: Path, how: str, *, is_quick: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, "--order", order, "--file", str(file), "--how", how]
    command += ["--quick"] if is_quick else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure_all(
    names: list[str], order: str, repeat: int, folder: Path, *, is_quick: bool
) -> dict[str, tuple[Made, Starts]]:
    measured: dict[str, tuple[Made, Starts]] = {}
    for repetition in range(repeat):
        turn = repetition % len(names)
        for name in [*names[turn:], *names[:turn]]:
            file = folder / f"{name} {order}"
            if repetition and name not in measured:
                continue
            try:
                if name not in measured:
                    made = Made(**run_one(name, order, file, "make", is_quick=is_quick))
                    measured[name] = (made, Starts())
                starts = Starts(**run_one(name, order, file, "start", is_quick=is_quick))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                measured.pop(name, None)
                log(f"{order} {name}: left out, {error}")
                continue
            measured[name][1].add(starts)
            ratio = median(starts.ratios())
            log(f"{order} {repetition + 1}/{repeat} {name}: resumed / first = {ratio:.2f}")
    return {name: measured[name] for name in names if name in measured}


def table(order: str, measured: dict[str, tuple[Made, Starts]]) -> list[str]:
    head = ["contestant", "state, bytes", "to make, µs", "min..max", "first start, ms", "resumed, ms"]
    rows = [[*head, "resumed / first", "min..max", "CPU, resumed / first", "goals"]]
    for name, (made, starts) in measured.items():
        ratios = starts.ratios()
        is_ours = name.startswith("feedline")
        state = ["-", "-", "-"]
        if made.bytes is not None:
            state = [f"{made.bytes:,}", f"{median(made.micros):.0f}"]
            state.append(f"{min(made.micros):.0f}..{max(made.micros):.0f}")
        rows.append(
            [
                name,
                *state,
                f"{1e3 * median(starts.first):.1f}",
                f"{1e3 * median(starts.resumed):.1f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f}..{max(ratios):.2f}",
                f"{median(starts.cpu_ratios()):.2f}",
                missed(made, starts) if is_ours else "-",
            ]
        )
    return [f"### {order}", "", *report.aligned(rows)]


def missed(made: Made, starts: Starts) -> str:
    """Which goals were missed."""
    assert made.bytes is not None
    found = {
        "size": made.bytes < LARGEST_BYTES,
        "time": median(made.micros) < LONGEST_MICROS,
        "start": median(starts.ratios()) <= LARGEST_RATIO,
    }
    return ", ".join(f"{name} missed" for name, is_reached in found.items() if not is_reached) or "reached"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few samples, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (3; with --quick 1)")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--order", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--how", choices=("make", "start"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 3)
    arguments.results = arguments.results or (
        ROOT / (".bench" if arguments.quick else "benchmarks") / "results" / "resume"
    )
    return arguments


def write(folder: Path, text: list[str], numbers: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resume.md").write_text("\n".join(text) + "\n")
    (folder / "resume.json").write_text(json.dumps(numbers, indent=1) + "\n")


def main() -> None:
    arguments = read_arguments()
    if arguments.one:
        count, done, states, rounds = COUNT, DONE, STATES, ROUNDS
        if arguments.quick:
            count, done, states, rounds = QUICK_COUNT, QUICK_DONE, 10, 1
        contestant = contestant_of(arguments.one, count, arguments.order[0])
        found: Made | Starts
        if arguments.how == "make":
            found = make_state(contestant, done, states, arguments.file)
        else:
            found = start_often(contestant, arguments.file, rounds)
        print(json.dumps(asdict(found)), flush=True)
        return
    machine = report.machine()
    text = report.opening("Resuming: states and starts", machine)
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for order in arguments.order:
            measured = measure_all(
                arguments.only, order, arguments.repeat, Path(folder), is_quick=arguments.quick
            )
            numbers[order] = {
                name: {"state": asdict(made), "starts": asdict(starts)}
                for name, (made, starts) in measured.items()
            }
            lines = table(order, measured)
            text += ["", *lines]
            print("\n".join(lines), end="\n\n", flush=True)
            # After each table: the rest may take long.
            write(arguments.results, text, {**machine, "measured": numbers})
    log(f"wrote {arguments.results}")


if __name__ == "__main__":
    main()
