"""Draws how far chances can be believed: said beside what came true, and Brier scores beside plain guesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tula_core.plots.data import Reliability

_AREA = 160.0  # of the largest marker, in square points


def draw_chances(found: Reliability, scores: pd.DataFrame, title: str, path: Path) -> None:
    """Write a PNG with the share that came true over the chance, and the scores of several ways to guess.

    Parameters
    ----------
    scores
        One row for each group, named in the first column; each other column of numbers is one way to guess.
    title
        Above the picture.
    path
        File to write.
    """
    figure = Figure(figsize=(12, 4.6), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    _reliability(left, found)
    _scores(right, scores)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _reliability(axes: Axes, found: Reliability) -> None:
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.plot(found.chance, found.share, color="tab:blue", linewidth=0.8)
    axes.scatter(found.chance, found.share, s=_AREA * found.runs / found.runs.max(), color="tab:blue")
    for chance, share, runs in zip(found.chance, found.share, found.runs, strict=True):
        axes.annotate(f"{runs:.0f}", (chance, share), xytext=(5, -9), textcoords="offset points", fontsize="x-small")
    axes.set(
        xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="chance that was given", ylabel="share of runs (their number)"
    )


def _scores(axes: Axes, scores: pd.DataFrame) -> None:
    names = scores.iloc[:, 0].astype(str)
    guesses = list(scores.columns[1:])
    place, height = np.arange(len(names)), 0.8 / len(guesses)
    for number, guess in enumerate(guesses):
        axes.barh(place + (number - (len(guesses) - 1) / 2) * height, scores[guess], height=height, label=str(guess))
    axes.set_yticks(place, names)
    axes.invert_yaxis()
    axes.set(xlabel="Brier score, less is better")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(guesses), fontsize="small", frameon=False)
