"""The command line: runs rounds of all families in turn until the time is up, and prints a summary."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from attack import rounds
from attack.families import FAMILIES
from attack.rounds import Outcome

__all__ = ["main"]

_HELP = """\
Attacks Feedline with random faults until the time is up, and checks that no sample is lost, doubled or wrong.

Families of attacks take turns. Each round runs in a process of its own and depends only on the seed, the
family and the number of the round. A finding is printed at once, with the command that repeats its round.
"""
_EXAMPLES = """\
examples:
  python tools/attack                                   all families for a minute
  python tools/attack --seconds 3600 --seed 7           an hour
  python tools/attack --only kills pools --rounds 5     five rounds of two families
  python tools/attack --seed 7 --only kills --round 12  one round again

exit codes: 0 no findings, 1 findings, 2 wrong arguments
"""
# Seconds between two lines of progress.
_PROGRESS = 10.0


@dataclass
class Summary:
    """The results of all rounds of one family."""

    counts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    seconds: float = 0.0
    findings: int = 0
    not_possible: str | None = None

    def add(self, outcome: Outcome) -> None:
        self.rounds += 1
        self.counts += outcome.counts
        self.seconds += outcome.seconds
        self.findings += outcome.finding is not None
        self.not_possible = outcome.not_possible


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python tools/attack",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--seconds", type=_positive, default=60.0, help="how long; the first round is always finished (60)"
    )
    result.add_argument("--seed", type=int, default=1, help="seed of all random choices (1)")
    result.add_argument(
        "--only", nargs="+", action="extend", choices=FAMILIES, metavar="NAME", help="these families only"
    )
    which = result.add_mutually_exclusive_group()
    which.add_argument("--rounds", type=_count, help="rounds of each family, however long they take")
    which.add_argument("--round", type=_number, help="this round only")
    result.add_argument(
        "--timeout", type=_positive, default=300.0, help="seconds after which a round counts as hanging (300)"
    )
    result.add_argument("--list", action="store_true", help="print the families and end")
    return result


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _number(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return value


def schedule(arguments: argparse.Namespace, names: list[str]) -> Iterator[tuple[str, int]]:
    """The families and rounds to run, in order."""
    if arguments.round is not None:
        yield from ((name, arguments.round) for name in names)
        return
    until = time.monotonic() + arguments.seconds
    number = 0
    while number < arguments.rounds if arguments.rounds is not None else True:
        for name in names:
            if arguments.rounds is None and number > 0 and time.monotonic() >= until:
                return
            yield name, number
        number += 1


def main(given: list[str] | None = None) -> int:
    arguments = parser().parse_args(given)
    if arguments.list:
        for name, about in FAMILIES.items():
            print(f"{name:<12} {about}")
        return 0
    # Exit normally on SIGTERM, so that the running round is ended as well.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = list(dict.fromkeys(arguments.only or FAMILIES))
    summaries = {name: Summary() for name in names}
    began = reported = time.monotonic()
    for name, number in schedule(arguments, names):
        summary = summaries[name]
        if summary.not_possible is not None:
            continue
        outcome = rounds.run(arguments.seed, name, number, arguments.timeout)
        summary.add(outcome)
        if outcome.finding is not None:
            print(_shown(arguments.seed, name, number, outcome.finding), flush=True)
        if time.monotonic() - reported >= _PROGRESS:
            reported = time.monotonic()
            print(_progress(summaries, reported - began), file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, before)
    print(_table(summaries))
    found = sum(summary.findings for summary in summaries.values())
    print(f"{found} findings in {time.monotonic() - began:.0f} s, seed {arguments.seed}")
    return 1 if found else 0


def _shown(seed: int, name: str, number: int, finding: str) -> str:
    command = ["python", "tools/attack", "--seed", str(seed), "--only", name, "--round", str(number)]
    # A finding may quote hostile text, which must not move the cursor.
    lines = ["".join(map(_escaped, line)) for line in finding.rstrip().split("\n")]
    rest = [f"  {line}" for line in lines[1:]]
    return "\n".join([f"finding in {name}: {lines[0]}", *rest, f"  again: {shlex.join(command)}"])


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _progress(summaries: dict[str, Summary], seconds: float) -> str:
    done = ", ".join(f"{name} {summary.rounds}" for name, summary in summaries.items())
    found = sum(summary.findings for summary in summaries.values())
    return f"{seconds:.0f} s: {done}; {found} findings"


def _table(summaries: dict[str, Summary]) -> str:
    """A Markdown table with a line for each family."""
    lines = ["| family | rounds | seconds per round | findings | what was done |", "|---|---|---|---|---|"]
    for name, summary in summaries.items():
        each = summary.seconds / max(1, summary.rounds)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(summary.counts.items()))
        if summary.not_possible is not None:
            counts = f"not possible: {summary.not_possible}"
        lines.append(f"| {name} | {summary.rounds} | {each:.1f} | {summary.findings} | {counts} |")
    return "\n".join(lines)
