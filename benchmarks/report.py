"""What the benchmarks show of their measurements: tables, goals, and files to keep.

The tables are those of images.py; the worker benchmark has its own in comparison.py and shares the rest.
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
from typing import Any

OURS, BARE = "feedline", "bare"
CPU_GOAL, RATE_GOAL, BARE_GOAL = 0.42, 2.2, 1.05
QUIET_CORES = 0.1
OUR_COLOUR = "#c2410c"
PACKAGES = re.compile(
    r"feedline|torch|torchvision|pillow|tensorflow([-_]cpu)?|nvidia-dali.*|numpy", re.IGNORECASE
)


@dataclass(frozen=True)
class Measured:
    """One measurement of one contestant; `others` is CPU time that the rest of the machine took meanwhile."""

    images: int
    seconds: float
    cpu_seconds: float
    others: float

    @property
    def rate(self) -> float:
        return self.images / self.seconds

    @property
    def cpu_micros(self) -> float:
        return 1e6 * self.cpu_seconds / self.images

    @property
    def others_share(self) -> float:
        return self.others / self.seconds


@dataclass(frozen=True)
class Table:
    """All measurements of one workload with one size of images."""

    size: str
    workload: str
    pixels: str
    epochs: int
    measured: dict[str, list[Measured]]

    def medians(self, of: Callable[[Measured], float]) -> dict[str, float]:
        return {name: median(map(of, runs)) for name, runs in self.measured.items() if runs}


def rate(measured: Measured) -> float:
    return measured.rate


def cpu(measured: Measured) -> float:
    return measured.cpu_micros


def lines(table: Table) -> list[str]:
    """A heading, the table, which is Markdown too, and how far the goals are."""
    rates, cpus = table.medians(rate), table.medians(cpu)
    others = table.medians(lambda measured: measured.others_share)
    head = ["contestant", "images/s", "min..max", "CPU µs/image", "min..max"]
    rows = [[*head, "rate / feedline", "CPU / feedline", "others, cores"]]
    for name in rates:
        runs = table.measured[name]
        rows.append(
            [
                name,
                f"{rates[name]:.0f}",
                _range(rate, runs),
                f"{cpus[name]:.0f}",
                _range(cpu, runs),
                _ratio(rates[name], rates.get(OURS)),
                _ratio(cpus[name], cpus.get(OURS)),
                f"{others[name]:.2f}",
            ]
        )
    heading = f"### {table.size} ({table.pixels}), {table.workload}"
    found = goals(rates, cpus)
    if max(others.values(), default=0.0) > QUIET_CORES:
        found.append("- not a quiet machine: see the last column, and measure again when nothing else runs")
    return [heading, "", *aligned(rows), "", *found]


def goals(rates: dict[str, float], cpus: dict[str, float]) -> list[str]:
    """How feedline compares with the best peer, and with its own work done in a bare loop."""
    peers = [name for name in rates if name not in (OURS, BARE)]
    found = []
    if OURS in rates and peers:
        lowest, fastest = min(peers, key=cpus.__getitem__), max(peers, key=rates.__getitem__)
        ratio = _ratio(cpus[OURS], cpus[lowest])
        found.append(f"- feedline CPU / best peer CPU = {ratio} (goal <= {CPU_GOAL}), the peer is {lowest}")
        ratio = _ratio(rates[OURS], rates[fastest])
        found.append(
            f"- feedline rate / best peer rate = {ratio} (goal >= {RATE_GOAL}), the peer is {fastest}"
        )
    if OURS in rates and BARE in rates:
        ratio = _ratio(cpus[OURS], cpus[BARE])
        found.append(f"- feedline CPU / bare CPU = {ratio} (goal <= {BARE_GOAL})")
    return found


def machine() -> dict[str, Any]:
    """Where, when and with what this is measured."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    installed = ((one.metadata["Name"], one.version) for one in metadata.distributions())
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
    """How a page of results begins."""
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
        "Medians with min..max of the repetitions; `--help` says what is measured and how.",
    ]


def write(folder: Path, tables: list[Table], machine: dict[str, Any]) -> list[Path]:
    """Writes images.json, images.md and, where matplotlib is installed, images.png."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**machine, "tables": [_plain(table) for table in tables]}
    written = [folder / "images.json", folder / "images.md"]
    written[0].write_text(json.dumps(whole, indent=1) + "\n")

    text = opening("Images: folders of JPEGs to batches of 64", machine)
    for table in tables:
        text += ["", *lines(table)]
    written[1].write_text("\n".join(text) + "\n")

    try:
        written.append(draw(folder / "images.png", tables))
    except ModuleNotFoundError as error:
        print(f"no plot, {error}", file=sys.stderr)
    return written


def draw(path: Path, tables: list[Table]) -> Path:
    """A row of bars for each table: images per second, and CPU time of an image."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(tables), 2, figsize=(11, 0.8 + 2.4 * len(tables)), squeeze=False)
    for table, row in zip(tables, rows, strict=True):
        for axes, (of, title) in zip(
            row, [(rate, "images/s, more is better"), (cpu, "CPU µs per image, less is better")], strict=True
        ):
            middle = table.medians(of)
            spans = [[of(run) for run in table.measured[name]] for name in middle]
            colours = [{OURS: OUR_COLOUR, BARE: "#d6d3d1"}.get(name, "#64748b") for name in middle]
            draw_bars(axes, middle, spans, colours, "%.0f")
            axes.set_title(f"{table.size} ({table.pixels}), {table.workload}: {title}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def draw_bars(
    axes: Any, values: dict[str, float], spans: list[list[float]], colours: list[str], form: str
) -> None:
    """A bar for each name, the first on top, with a line from the smallest to the largest of its span."""
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
    """The lines of a Markdown table that can be read as it is; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    texts = []
    for row in (rows[0], rule, *rows[1:]):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        texts.append("| " + " | ".join(cells) + " |")
    return texts


def _plain(table: Table) -> dict[str, Any]:
    medians = {"images_per_second": table.medians(rate), "cpu_micros_per_image": table.medians(cpu)}
    return {**asdict(table), "medians": medians}


def _range(of: Callable[[Measured], float], runs: list[Measured]) -> str:
    return f"{min(map(of, runs)):.0f}..{max(map(of, runs)):.0f}"


def _ratio(value: float, to: float | None) -> str:
    return "-" if to is None else f"{value / to:.2f}"
