"""The benchmark's tables as Markdown and CSV, and its picture: what is drawn, and the drawing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.benchmarks.generalization_bars import Bar
from tests.benchmarks.generalization_summary import Average, Cell, Cells, Gap

_HEAD = (
    "method", "test accuracy %", "minus small, points", "steps", "samples", "seconds", "training accuracy %",
    "batch", "rate", "notes",
)  # fmt: skip
_COLUMNS = (
    "job", "method", "batch", "learning_rate", "seeds", "accuracy_pct", "accuracy_error", "minus_small",
    "minus_small_error", "train_accuracy_pct", "steps", "samples", "seconds", "diverged", "rate_halved", "rate_at_edge",
)  # fmt: skip


def job_table(found: Cells, job: str) -> str:
    """Return one job's table in Markdown."""
    rows = [_line(cell) for (name, _), cell in found.items() if name == job]
    return _markdown(_HEAD, rows)


def _line(cell: Cell) -> list[str]:
    return [
        cell.row.title,
        str(cell.accuracy),
        "" if cell.to_small is None or cell.batch == cell.bench.small_batch else str(cell.to_small),
        f"{cell.steps:.0f}",
        f"{cell.samples:.0f}",
        "" if cell.seconds is None else f"{cell.seconds:.1f}",
        str(cell.train_accuracy),
        str(cell.batch),
        f"{cell.rate:g}",
        notes(cell),
    ]


def notes(cell: Cell) -> str:
    """Return what a reader has to know of a cell before believing it."""
    seeds = len(cell.by_seed)
    told = [
        f"{cell.diverged} of {seeds} diverged" if cell.diverged else "",
        f"rate halved after divergence in {cell.reduced} of {seeds}" if cell.reduced else "",
        "rate at the edge of its grid" if cell.at_edge else "",
    ]
    return "; ".join(text for text in told if text)


def gap_lines(made: Sequence[Gap]) -> list[str]:
    """Return how wide each gap is, and whether it stands out of the noise."""
    return [f"{gap.bench.name}, {gap.base.title}: {gap.points} points below small batch{_doubt(gap)}" for gap in made]


def _doubt(gap: Gap) -> str:
    if gap.points.mean <= 0:
        return "; there is no gap to close"
    unsure = gap.points.error is None or gap.points.mean < 2 * gap.points.error
    return "; within two standard errors of no gap, so shares of it mean little" if unsure else ""


def gap_table(made: Sequence[Gap], titles: Mapping[str, str]) -> str:
    """Return the shares that each row of ``titles`` (by name) closed of each gap, in Markdown."""
    head = ("method", *(f"{gap.bench.name}, of the gap from {gap.base.name}" for gap in made))
    names = [name for name in titles if any(name in gap.closed for gap in made)]
    return _markdown(head, [[titles[name], *(_share(gap, name) for gap in made)] for name in names])


def _share(gap: Gap, name: str) -> str:
    if name not in gap.closed:
        return ""
    share = gap.closed[name]
    return "no gap" if share is None else f"{100 * share:.0f} %"


def average_table(made: Sequence[Average]) -> str:
    """Return the means over jobs in Markdown."""
    head = ("method", "test accuracy %", "minus small", "minus plain", "minus best tuned", "share of small's steps")
    rows = [
        [
            item.row.title,
            f"{item.accuracy:.2f}",
            *("" if value is None else f"{value:+.2f}" for value in (item.minus_small, item.minus_plain)),
            "" if item.minus_tuned is None else f"{item.minus_tuned:+.2f}",
            "" if item.steps_share is None else f"{100 * item.steps_share:.0f} %",
        ]
        for item in made
    ]
    return _markdown(head, rows)


def bar_table(made: Sequence[Bar]) -> str:
    """Return the bars in Markdown."""
    said = {True: "met", False: "MISSED", None: "not measured"}
    return _markdown(("bar", "found", "verdict"), [[bar.text, bar.found, said[bar.met]] for bar in made])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_csv(found: Cells) -> str:
    """Return all cells, one a line, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for cell in found.values():
        to_small = (cell.to_small.mean, cell.to_small.error) if cell.to_small is not None else (None, None)
        writer.writerow(
            [cell.bench.name, cell.row.name, cell.batch, cell.rate, len(cell.by_seed), cell.accuracy.mean,
             cell.accuracy.error, *to_small, cell.train_accuracy.mean, cell.steps, cell.samples, cell.seconds,
             cell.diverged, cell.reduced, cell.at_edge]
        )  # fmt: skip
    return text.getvalue()


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """What one panel shows: each row's accuracy with its standard error, its steps, and the small batch's accuracy."""

    titles: tuple[str, ...]
    steps: tuple[float, ...]
    accuracy_pct: tuple[float, ...]
    error: tuple[float, ...]
    small_pct: float | None


def points(found: Cells, job: str) -> Points:
    """Return what is drawn of a job."""
    own = [cell for (name, _), cell in found.items() if name == job]
    small = [cell.accuracy.mean for cell in own if cell.row.name == "small"]
    return Points(
        titles=tuple(cell.row.name for cell in own),
        steps=tuple(cell.steps for cell in own),
        accuracy_pct=tuple(cell.accuracy.mean for cell in own),
        error=tuple(cell.accuracy.error or 0.0 for cell in own),
        small_pct=small[0] if small else None,
    )


def draw(panels: dict[str, Points], title: str, path: Path) -> None:
    """Write a PNG with a panel for each job."""
    figure = Figure(figsize=(5.2 * max(len(panels), 1), 4.6), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, (job, shown) in zip(
        figure.subplots(1, max(len(panels), 1), squeeze=False)[0], panels.items(), strict=True
    ):
        _panel(axes, job, shown)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axes: Axes, job: str, shown: Points) -> None:
    places = range(len(shown.titles))
    axes.errorbar(shown.accuracy_pct, places, xerr=shown.error, fmt="o", capsize=3)
    if shown.small_pct is not None:
        axes.axvline(shown.small_pct, color="black", linewidth=0.6, linestyle=":")
    labels = [f"{title}, {steps:.0f} steps" for title, steps in zip(shown.titles, shown.steps, strict=True)]
    axes.set_yticks(places, labels, fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="test accuracy, %", title=job)
    axes.grid(axis="x", linewidth=0.3)
