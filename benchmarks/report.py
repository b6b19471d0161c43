"""Tables, goals, plots and result files of the benchmarks.

The worker benchmark has its own tables in comparison.py and shares the rest.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Literal

OURS, BARE = "feedline", "bare"
QUIET_CORES = 0.1
OUR_COLOUR = "#c2410c"
PACKAGES = re.compile(
    r"feedline|torch|torchvision|pillow|tensorflow([-_]cpu)?|nvidia-dali.*|numpy|webdataset|grain|torchdata|accelerate",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Measured:
    """One measurement of one contestant: how much it delivered, in the unit of its table, and the time it
    took.

    `others` is the CPU time that the rest of the machine used meanwhile.
    """

    count: float
    seconds: float
    cpu_seconds: float
    others: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_micros(self) -> float:
        return 1e6 * self.cpu_seconds / self.count

    @property
    def others_share(self) -> float:
        return self.others / self.seconds


@dataclass(frozen=True)
class Goal:
    """The limit for feedline's ratio to a contestant, or to the best of several."""

    of: Literal["CPU", "rate"]
    limit: float
    # Compared with the best of these; by default of all peers.
    against: tuple[str, ...] = ()


IMAGE_GOALS = (Goal("CPU", 0.42), Goal("rate", 2.2), Goal("CPU", 1.05, (BARE,)))


@dataclass(frozen=True)
class Table:
    """All measurements of one workload over data of one size."""

    size: str
    workload: str
    pixels: str
    epochs: int
    measured: dict[str, list[Measured]]
    unit: str = "image"
    goals: tuple[Goal, ...] = IMAGE_GOALS
    # Contestants that are not peers: they do less, or are feedline as well.
    aside: tuple[str, ...] = (BARE,)

    @property
    def units(self) -> str:
        """The plural of the unit."""
        return self.unit if self.unit.isupper() else f"{self.unit}s"

    def medians(self, of: Callable[[Measured], float]) -> dict[str, float]:
        return {name: median(map(of, runs)) for name, runs in self.measured.items() if runs}


def rate(measured: Measured) -> float:
    return measured.rate


def cpu(measured: Measured) -> float:
    return measured.cpu_micros


def lines(table: Table) -> list[str]:
    """A heading, the table in Markdown, and feedline's ratios with their goals."""
    rates, cpus = table.medians(rate), table.medians(cpu)
    others = table.medians(lambda measured: measured.others_share)
    head = ["contestant", f"{table.units}/s", "min..max", f"CPU µs/{table.unit}", "min..max"]
    rows = [[*head, "rate / feedline", "CPU / feedline", "others, cores"]]
    for name in rates:
        runs = table.measured[name]
        rows.append(
            [
                name,
                _short(rates[name]),
                _range(rate, runs),
                _short(cpus[name]),
                _range(cpu, runs),
                _ratio(rates[name], rates.get(OURS)),
                _ratio(cpus[name], cpus.get(OURS)),
                f"{others[name]:.2f}",
            ]
        )
    heading = f"### {table.size} ({table.pixels}), {table.workload}"
    found = goals(table)
    if max(others.values(), default=0.0) > QUIET_CORES:
        found.append("- not a quiet machine: see the last column, and measure again when nothing else runs")
    return [heading, "", *aligned(rows), "", *found]


def goals(table: Table) -> list[str]:
    """Feedline's ratio to the contestant of each goal."""
    found = []
    for goal in table.goals:
        values = table.medians(cpu if goal.of == "CPU" else rate)
        peers = goal.against or [name for name in values if name != OURS and name not in table.aside]
        present = [name for name in peers if name in values]
        if OURS not in values or not present:
            continue
        choose, sign = (min, "<=") if goal.of == "CPU" else (max, ">=")
        best = choose(present, key=values.__getitem__)
        other, note = (best, "") if len(goal.against) == 1 else ("best peer", f", the peer is {best}")
        ratio = _ratio(values[OURS], values[best])
        found.append(f"- feedline {goal.of} / {other} {goal.of} = {ratio} (goal {sign} {goal.limit:g}){note}")
    return found


def machine() -> dict[str, Any]:
    """The machine, the date and the versions of a measurement."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    installed = ((package.metadata["Name"], package.version) for package in metadata.distributions())
    versions = {name: version for name, version in sorted(installed) if PACKAGES.fullmatch(name)}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "versions": {"python": platform.python_version(), **versions},
    }


def opening(title: str, machine: dict[str, Any]) -> list[str]:
    """The first lines of a page of results."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"# {title}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, {machine['date']}",
        "",
        versions,
        "",
        f"    {machine['command']}",
        "",
        "Medians with min..max of the repetitions; `--help` describes the measurements.",
    ]


def write(
    folder: Path,
    tables: list[Table],
    machine: dict[str, Any],
    name: str = "images",
    title: str = "Images: folders of JPEGs to batches of 64",
) -> list[Path]:
    """Writes the tables as JSON, as Markdown and, if matplotlib is installed, as a plot."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**machine, "tables": [_plain(table) for table in tables]}
    written = [folder / f"{name}.json", folder / f"{name}.md"]
    written[0].write_text(json.dumps(whole, indent=1) + "\n")

    text = opening(title, machine)
    for table in tables:
        text += ["", *lines(table)]
    written[1].write_text("\n".join(text) + "\n")

    try:
        written.append(draw(folder / f"{name}.png", tables))
    except ModuleNotFoundError as error:
        print(f"no plot, {error}", file=sys.stderr)
    return written


def draw(path: Path, tables: list[Table]) -> Path:
    """Draws two bar charts for each table: the rate, and the CPU time per unit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(tables), 2, figsize=(11, 0.8 + 2.5 * len(tables)), squeeze=False)
    for table, row in zip(tables, rows, strict=True):
        for axes, (of, title) in zip(
            row,
            [(rate, f"{table.units}/s, more is better"), (cpu, f"CPU µs per {table.unit}, less is better")],
            strict=True,
        ):
            middle = table.medians(of)
            spans = [[of(run) for run in table.measured[name]] for name in middle]
            pale = dict.fromkeys(table.aside, "#d6d3d1")
            colours = [{**pale, OURS: OUR_COLOUR}.get(name, "#64748b") for name in middle]
            draw_bars(axes, middle, spans, colours, "{:.3g}" if max(middle.values()) < 100 else "{:,.0f}")
            axes.set_title(title, fontsize=9, loc="left")
            axes.locator_params(axis="x", nbins=5)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        # The title of the row.
        about = f"{table.size} ({table.pixels}), {table.workload}"
        row[0].set_title(f"{about}\n{row[0].get_title('left')}", fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def draw_bars(
    axes: Any, values: dict[str, float], spans: list[list[float]], colours: list[str], form: str
) -> None:
    """Draws a bar for each name, the first on top, with a line from the smallest to the largest value."""
    middles = list(values.values())
    errors = [
        [value - min(span) for value, span in zip(middles, spans, strict=True)],
        [max(span) - value for value, span in zip(middles, spans, strict=True)],
    ]
    bars = axes.barh(list(values), middles, xerr=errors, color=colours, ecolor="#292524")
    axes.bar_label(bars, fmt=form, padding=4, fontsize=8)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def aligned(rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table with aligned columns; the first row is its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    texts = []
    for row in (rows[0], rule, *rows[1:]):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        texts.append("| " + " | ".join(cells) + " |")
    return texts


def _plain(table: Table) -> dict[str, Any]:
    medians = {
        f"{table.units}_per_second": table.medians(rate),
        f"cpu_micros_per_{table.unit}": table.medians(cpu),
    }
    return {**asdict(table), "medians": medians}


def _range(of: Callable[[Measured], float], runs: list[Measured]) -> str:
    return f"{_short(min(map(of, runs)))}..{_short(max(map(of, runs)))}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float, to: float | None) -> str:
    return "-" if to is None else f"{value / to:.2f}"
