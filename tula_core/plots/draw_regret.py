"""Draws what a choice loses by how much was measured, and how far a policy's own doubt tells that loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_SHOWN_PCT = (0.007, 150.0)
_LEAST_PCT = 0.01  # what is less is drawn here: a logarithm has no place for nothing


def draw_regret(curves: pd.DataFrame, stops: pd.DataFrame, title: str, path: Path) -> None:
    """Write a PNG with, for each choice, the mean loss of every policy and the loss beside what was expected.

    Parameters
    ----------
    curves
        Columns ``choice``, ``policy``, ``measurements`` and ``regret``, a share, the mean over all pairs.
    stops
        Columns ``choice``, ``regret``, ``expected_regret`` and ``settled``: where each pair's measuring ended.
    title
        Above the picture.
    path
        File to write.
    """
    choices = list(dict.fromkeys(curves["choice"]))
    figure = Figure(figsize=(12, 4.2 * len(choices)), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for row, choice in zip(figure.subplots(len(choices), 2, squeeze=False), choices, strict=True):
        _curves(row[0], curves[curves["choice"] == choice], str(choice))
        _stops(row[1], stops[stops["choice"] == choice])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _curves(axes: Axes, curves: pd.DataFrame, choice: str) -> None:
    for policy, part in curves.groupby("policy", sort=False):
        axes.plot(part["measurements"], 100 * part["regret"], marker="o", markersize=3, label=str(policy))
    axes.set(xlabel="measurements", ylabel=f"time lost, {choice}, %", ylim=(0, None))
    axes.legend(fontsize="small")


def _stops(axes: Axes, stops: pd.DataFrame) -> None:
    for settled, colour, label in ((True, "tab:blue", "settled"), (False, "tab:orange", "out of measurements")):
        part = stops[stops["settled"] == settled]
        told, lost = (np.maximum(100 * part[name], _LEAST_PCT) for name in ("expected_regret", "regret"))
        axes.scatter(told, lost, s=18, color=colour, label=label)
    axes.axline((1, 1), slope=1, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=_SHOWN_PCT, ylim=_SHOWN_PCT)
    axes.set(xlabel="expected loss at the end, %", ylabel="loss at the end, %")
    axes.legend(fontsize="small")
