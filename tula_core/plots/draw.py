"""Draws the pictures of a backtest with matplotlib, without a display."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tula_core.plots.data import coverage, error_curve

_HEIGHT = 3.6
_PANELS = 3


def draw_backtest(pairs: pd.DataFrame, title: str, path: Path) -> None:
    """Write a PNG with, for each quantity, predicted over actual, the spread of errors and the coverage.

    Parameters
    ----------
    pairs
        Columns of `tula_core.bench.kind.PAIR_COLUMNS`.
    title
        Above the picture.
    path
        File to write.
    """
    quantities = list(dict.fromkeys(pairs["quantity"]))
    figure = Figure(figsize=(12, _HEIGHT * len(quantities) + 0.5), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(len(quantities), _PANELS, squeeze=False)
    for row, quantity in zip(axes, quantities, strict=True):
        chosen = pairs[pairs["quantity"] == quantity]
        _scatter(row[0], chosen, quantity)
        _errors(row[1], chosen, quantity)
        _coverage(row[2], chosen, quantity)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _scatter(axes: Axes, pairs: pd.DataFrame, quantity: str) -> None:
    for group, part in pairs.groupby("group"):
        axes.scatter(part["actual"], part["predicted"], s=4, alpha=0.5, label=str(group))
    if 1 < pairs["group"].nunique() <= 10:
        axes.legend(loc="upper left", fontsize="xx-small", markerscale=2)
    ends = [float(pairs["actual"].min()), float(pairs["actual"].max())]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel=f"measured {quantity}", ylabel=f"predicted {quantity}")


def _errors(axes: Axes, pairs: pd.DataFrame, quantity: str) -> None:
    for _, part in pairs.groupby("group"):
        curve = error_curve(part["actual"].to_numpy(float), part["predicted"].to_numpy(float))
        axes.plot(np.maximum(curve.error_pct, 0.1), curve.share, color="tab:grey", linewidth=0.6, alpha=0.6)
    curve = error_curve(pairs["actual"].to_numpy(float), pairs["predicted"].to_numpy(float))
    axes.plot(
        np.maximum(curve.error_pct, 0.1), curve.share, color="tab:blue", label=f"all, median {curve.median_pct:.1f} %"
    )
    axes.set(xscale="log", xlim=(0.1, 200), ylim=(0, 1), xlabel=f"error of {quantity}, % at most", ylabel="share")
    axes.legend(loc="upper left", fontsize="small")


def _coverage(axes: Axes, pairs: pd.DataFrame, quantity: str) -> None:
    known = pairs.dropna(subset=["low", "high"])
    if known.empty:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no interval given", ha="center", va="center", transform=axes.transAxes)
        return
    for _, part in known.groupby("group"):
        axes.plot(*_coverage_line(part), color="tab:grey", linewidth=0.6, alpha=0.6)
    axes.plot(*_coverage_line(known), color="tab:blue", label="all")
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.axvline(0.9, color="black", linewidth=0.5, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"stated confidence of {quantity}", ylabel="measured values inside")
    axes.legend(loc="upper left", fontsize="small")


def _coverage_line(pairs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    columns = (pairs[name].to_numpy(float) for name in ("actual", "predicted", "low", "high"))
    found = coverage(*columns)
    return found.stated, found.observed
