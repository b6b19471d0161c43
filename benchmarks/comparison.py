"""Tables and plots of the worker benchmark: feedline compared with torch, and the goal of each number."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import report

# With larger values on a linear axis, bars near 1 would look the same.
WIDEST_LINEAR = 50


@dataclass(frozen=True)
class Quantity:
    """A measured number, and whether less or more is better."""

    name: str
    unit: str
    better: Literal["less", "more"] = "less"


@dataclass(frozen=True)
class Goal:
    """The limit for the ratio of feedline's number to torch's, or for feedline's number itself."""

    limit: float
    of: Literal["ratio", "value"] = "ratio"


@dataclass(frozen=True)
class Row:
    """All measurements of one quantity in one case; a list is empty if nothing was measured."""

    workload: str
    case: str
    quantity: Quantity
    torch: list[float]
    feedline: list[float]
    goal: Goal | None
    others: list[float]

    @property
    def label(self) -> str:
        return f"{self.case}: {self.quantity.name}, {self.quantity.unit}"

    @property
    def ratio(self) -> float | None:
        return median(self.feedline) / median(self.torch) if self.torch and self.feedline else None

    @property
    def reached(self) -> str:
        if self.goal is None or not self.feedline:
            return "-"
        if self.goal.of == "value":
            if max(self.feedline) <= self.goal.limit:
                return "yes"
            return "median only" if median(self.feedline) <= self.goal.limit else "no"
        if self.ratio is None:
            return "-"
        less = self.quantity.better == "less"
        return "yes" if (self.ratio <= self.goal.limit if less else self.ratio >= self.goal.limit) else "no"


def lines(workload: str, rows: Sequence[Row], names: tuple[str, str]) -> list[str]:
    """A heading, the table in Markdown, and a warning if other processes used the machine."""
    theirs, ours = names
    head = [theirs, "min..max", ours, "min..max", f"{ours} / {theirs}", "goal", "reached", "others, cores"]
    cells = [["measured", *head]]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
        shown = [*_shown(row.torch), *_shown(row.feedline), ratio, _goal(row), row.reached]
        cells.append([row.label, *shown, f"{median(row.others):.2f}"])
    text = [f"### {workload}", "", *report.aligned(cells)]
    if max(median(row.others) for row in rows) > report.QUIET_CORES:
        text += ["", "- not a quiet machine: see the last column, and measure again when nothing else runs"]
    return text


def write(
    folder: Path, tables: dict[str, list[Row]], machine: dict[str, Any], names: tuple[str, str]
) -> list[Path]:
    """Writes report.json, report.md and, if matplotlib is installed, report.png."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "report.json", folder / "report.md"]
    whole = {**machine, "rows": [_plain(row) for rows in tables.values() for row in rows]}
    written[0].write_text(json.dumps(whole, indent=1) + "\n")

    text = report.opening("Workers: feedline.torch.DataLoader compared with torch's", machine)
    for workload, rows in tables.items():
        text += ["", *lines(workload, rows, names)]
    written[1].write_text("\n".join(text) + "\n")

    try:
        written += draw(folder / "report.png", tables, names)
    except ModuleNotFoundError as error:
        print(f"no plot, {error}", file=sys.stderr)
    return written


def draw(path: Path, tables: dict[str, list[Row]], names: tuple[str, str]) -> list[Path]:
    """Bars for each workload: how many times better than torch, or the number, and marks at the goals."""
    panels = {workload: [row for row in rows if row.feedline] for workload, rows in tables.items()}
    panels = {workload: rows for workload, rows in panels.items() if rows}
    if not panels:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [0.9 + 0.32 * len(rows) for rows in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(11, sum(heights)), squeeze=False, height_ratios=heights
    )
    for (workload, rows), panel in zip(panels.items(), axes[:, 0], strict=True):
        bars = {row.label: _times_better(row, median(row.feedline)) for row in rows}
        spans = [[_times_better(row, value) for value in row.feedline] for row in rows]
        report.draw_bars(panel, bars, spans, [report.OUR_COLOUR] * len(rows), "%.2f")
        for place, row in enumerate(rows):
            if row.goal is not None:
                mark = row.goal.limit
                if row.goal.of == "ratio" and row.quantity.better == "less":
                    mark = 1 / mark
                panel.plot([mark, mark], [place - 0.4, place + 0.4], color="#292524", linewidth=2)
        what = "ms, less is better"
        if any(row.torch for row in rows):
            what = f"times better than {names[0]}, more is better"
            if max(bars.values()) > WIDEST_LINEAR:
                panel.set_xscale("log")
                panel.set_xlim(left=0.1)
                panel.xaxis.set_major_formatter("{x:g}")
            panel.axvline(1.0, color="#64748b", linewidth=1, linestyle=":")
        panel.set_title(f"{workload}: {what}; the mark is the goal", fontsize=9)
        panel.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return [path]


def _times_better(row: Row, value: float) -> float:
    """How many times better than torch a value of feedline is; the value itself if torch has none."""
    if not row.torch:
        return value
    theirs = median(row.torch)
    return theirs / value if row.quantity.better == "less" else value / theirs


def _goal(row: Row) -> str:
    if row.goal is None:
        return "-"
    if row.goal.of == "value":
        return f"<= {row.goal.limit:g} {row.quantity.unit}"
    return f"{'<=' if row.quantity.better == 'less' else '>='} {row.goal.limit:.3g}"


def _shown(values: list[float]) -> tuple[str, str]:
    if not values:
        return "-", "-"
    return _number(median(values)), f"{_number(min(values))}..{_number(max(values))}"


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def _plain(row: Row) -> dict[str, Any]:
    medians = {name: median(values) for name in ("torch", "feedline") if (values := getattr(row, name))}
    return {**asdict(row), "medians": medians, "ratio": row.ratio, "reached": row.reached}
