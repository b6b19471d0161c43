"""Compares feedline.torch.DataLoader with torch's DataLoader, which it replaces.

    python benchmarks/workers.py                                everything, for published results
    python benchmarks/workers.py --quick                        checks that everything runs, measures little
    python benchmarks/workers.py --workload transport --repeat 9
    python benchmarks/workers.py --null                         torch and torch: how far from 1 is noise?

Workloads, with 2 workers by default:

    transport  the cost of sending a batch from a worker to the trainer: one tensor of 4 KB, a dict of 16
               NumPy arrays or of 16 tensors, 1 MB in all, one tensor of 38 MB. Nothing is collated. Each
               batch is dropped before the next is requested.
    overhead   60,000 samples of float32[784] with a label, batches of 256, shuffled; also with 0 workers
    large      samples of float32[3,224,224], batches of 64, default collate; also with 0 workers
    startup    from the construction of a loader to its first batch, then from iter() to the first batch of
               the second epoch: 2 and 8 workers, fork and spawn, with and without persistent_workers
    recovery   only feedline, since torch's epoch ends there: from the SIGKILL of a worker until its
               replacement is ready, and until the replacement's first batch is delivered; 20 kills, while the
               trainer takes batches of 8 small samples and works 1 ms on each

Each measurement runs in a process of its own. The two loaders take turns, each repetition starts with the
other one, and the table has medians with min..max. Times and rates are measured after a warm-up. CPU time is
that of the trainer after its set-up (imports, data set) and of all its descendants, until the last process
has ended, minus the time of a trainer that does nothing after its set-up. It is divided by everything that
was delivered, including the warm-up, since it includes the start and the end of workers.

"not slower" is a goal of 1.05 or 0.95. "others" is the number of cores that the rest of this machine used
meanwhile: if it is not near 0, do not trust the rates, and the CPU times are too high. A measurement during
which it was above 0.1 is repeated, at most twice, and the quietest one counts.

Tables go to stdout, progress to stderr, and results to benchmarks/results/workers (with --quick or --null to
.bench/results/workers).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import clocks
import comparison
import report
from comparison import Goal, Quantity, Row
from measurement import WORKLOADS, Measured, Task, Workload, measure, measure_idle

ROOT = Path(__file__).parent.parent
NOT_SLOWER, RATE_NOT_SLOWER = Goal(1.05), Goal(0.95)
RECOVERY_GOAL = Goal(50, "value")
SPAWN_GOAL, SECOND_EPOCH_GOAL = Goal(1 / 3), Goal(1 / 10)

CPU_OF_BATCH, CPU_OF_SAMPLE = Quantity("CPU of a batch", "µs"), Quantity("CPU of a sample", "µs")
RATE = Quantity("rate", "samples/s", "more")
SECOND = Quantity("second epoch", "ms")
QUANTITIES: dict[Workload, dict[str, Quantity]] = {
    "transport": {"time": Quantity("time of a batch", "µs"), "cpu": CPU_OF_BATCH},
    "overhead": {"rate": RATE, "cpu": CPU_OF_SAMPLE},
    "large": {"rate": RATE, "cpu": CPU_OF_SAMPLE},
    "startup": {"first": Quantity("first batch", "ms"), "second": SECOND},
    "recovery": {
        "ready": Quantity("replacement ready", "ms"),
        "delivered": Quantity("its first batch", "ms"),
    },
}


@dataclass(frozen=True)
class Case:
    """A case to measure with each loader, and its goals."""

    name: str
    task: Task
    quick_count: int
    goals: dict[str, Goal] = field(default_factory=dict)


def cases(workload: Workload) -> list[Case]:
    match workload:
        case "transport":
            return [
                Case(subject, Task(workload, subject, 2, count, warm_up), quick_count, {"time": Goal(goal)})
                for subject, count, quick_count, warm_up, goal in (
                    ("tensor 4 KB", 6000, 1000, 50, 0.15),
                    ("16 arrays 1 MB", 1200, 200, 20, 0.05),
                    ("16 tensors 1 MB", 1200, 200, 20, 0.05),
                    ("tensor 38 MB", 200, 40, 8, 0.4),
                )
            ]
        case "overhead":
            return _with_and_without_workers(workload, 5, {"rate": Goal(2.5), "cpu": Goal(0.4)})
        case "large":
            return _with_and_without_workers(workload, 3, {"rate": Goal(2.5), "cpu": Goal(0.35)})
        case "startup":
            return [
                _start(method, workers, persistent)
                for method in ("fork", "spawn")
                for workers in (2, 8)
                for persistent in (False, True)
            ]
        case "recovery":
            goals = {"ready": RECOVERY_GOAL, "delivered": RECOVERY_GOAL}
            return [Case("killed worker", Task(workload, "", 2, 20), 20, goals)]


def _with_and_without_workers(workload: Workload, epochs: int, goals: dict[str, Goal]) -> list[Case]:
    return [
        Case("2 workers", Task(workload, "", 2, epochs, 1), 1, goals),
        Case("0 workers", Task(workload, "", 0, epochs, 1), 1, {"rate": RATE_NOT_SLOWER}),
    ]


def _start(method: str, workers: int, persistent: bool) -> Case:
    name = f"{method}, {workers} workers{', persistent' if persistent else ''}"
    goals = {"first": NOT_SLOWER} if method == "fork" else {"first": SPAWN_GOAL} if workers == 8 else {}
    return Case(name, Task("startup", "", workers, 2, 0, method, persistent), 2, goals)


# ---- all measurements, in turns ----


def measure_in_turns(
    case: Case, contestants: dict[str, str], repeat: int, again: int
) -> dict[str, list[Measured]]:
    """All measurements of each contestant; a contestant that fails is left out with a note."""
    measured: dict[str, list[Measured]] = {name: [] for name in contestants}
    idle = dict.fromkeys(contestants, 0.0)
    for repetition in range(repeat):
        for name in list(contestants)[:: -1 if repetition % 2 else 1]:
            if name not in measured:
                continue
            where = f"{case.task.workload}, {case.name} {repetition + 1}/{repeat} {name}"
            try:
                if repetition == 0 and "cpu" in QUANTITIES[case.task.workload]:
                    idle[name] = measure_idle(case.task, contestants[name])
                measured[name].append(measure_quietly(case.task, contestants[name], idle[name], again))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                del measured[name]
                log(f"{where}: left out, {error}")
                continue
            log(f"{where}: {_summary(case, measured[name][-1])}")
    return measured


def measure_quietly(task: Task, loader: str, idle_seconds: float, again: int) -> Measured:
    """The quietest of several measurements; chosen by the load of other processes, never by the result."""
    best = measure(task, loader, idle_seconds)
    for _ in range(again):
        if best.others <= report.QUIET_CORES:
            break
        best = min(best, measure(task, loader, idle_seconds), key=lambda measured: measured.others)
    return best


def rows(case: Case, measured: dict[str, list[Measured]], names: tuple[str, str]) -> list[Row]:
    """The measurements of a case, one row for each quantity."""
    theirs, ours = (measured.get(name, []) for name in names)
    others = [measurement.others for measurement in (*theirs, *ours)]
    if not others:
        return []
    workload = case.task.workload
    found = [
        Row(workload, case.name, quantity, _all(theirs, key), _all(ours, key), case.goals.get(key), others)
        for key, quantity in QUANTITIES[workload].items()
    ]
    if case.task.method == "spawn" and case.task.workers == 8:
        against = replace(SECOND, name=f"second epoch, {names[0]}'s first")
        goal = SECOND_EPOCH_GOAL
        found.append(
            Row(workload, case.name, against, _all(theirs, "first"), _all(ours, "second"), goal, others)
        )
    return found


def _all(measured: list[Measured], key: str) -> list[float]:
    return [value for measurement in measured for value in measurement.values[key]]


def _summary(case: Case, measured: Measured) -> str:
    quantities = QUANTITIES[case.task.workload].items()
    numbers = [
        f"{quantity.name} {max(measured.values[key]):.4g} {quantity.unit}" for key, quantity in quantities
    ]
    return f"{', '.join(numbers)}, others {measured.others:.0%} of a core"


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- command line ----


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little work, one repetition")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions (5; with --quick 1)")
    parser.add_argument(
        "--again", type=int, metavar="N", help="repetitions of a disturbed measurement (2; with --quick 0)"
    )
    parser.add_argument("--workload", nargs="+", choices=[*WORKLOADS, "all"], default=["all"])
    parser.add_argument("--null", action="store_true", help="compare torch with torch, without recovery")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write results")
    arguments = parser.parse_args()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 5)
    if arguments.again is None:
        arguments.again = 0 if arguments.quick else 2
    wanted = WORKLOADS if "all" in arguments.workload else arguments.workload
    arguments.workload = [name for name in wanted if not (arguments.null and name == "recovery")]
    if not arguments.workload:
        parser.error("--null: torch does not recover; name another --workload")
    is_published = not (arguments.quick or arguments.null)
    arguments.results = arguments.results or (
        ROOT / ("benchmarks" if is_published else ".bench") / "results" / "workers"
    )
    return arguments


def main() -> None:
    arguments = read_arguments()
    names = ("torch", "torch again") if arguments.null else ("torch", "feedline")
    contestants = {names[0]: "torch", names[1]: "torch" if arguments.null else "feedline"}

    clocks.adopt_orphans()
    log(f"CPU time of ended, killed and orphaned grandchildren is counted: {clocks.check():.2f} s of 0.60 s")
    # Loads the files of torch into the page cache before anything is measured.
    measure_idle(cases("transport")[0].task, "torch")

    machine = report.machine()
    tables = {}
    is_whole = True
    for workload in arguments.workload:
        alone = {"feedline": "feedline"} if workload == "recovery" else contestants
        found = []
        for case in cases(workload):
            if arguments.quick:
                case = replace(case, task=replace(case.task, count=case.quick_count))
            measured = measure_in_turns(case, alone, arguments.repeat, arguments.again)
            is_whole = is_whole and len(measured) == len(alone)
            found += rows(case, measured, names)
        if found:
            tables[workload] = found
            print("\n".join(comparison.lines(workload, found, names)), end="\n\n", flush=True)
    for path in comparison.write(arguments.results, tables, machine, names):
        log(f"wrote {path}")
    if not is_whole:
        raise SystemExit("a loader was left out, see above")


if __name__ == "__main__":
    main()
