"""`Kind`: one kind of backtest, and the tables it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

PAIR_COLUMNS = ("quantity", "group", "actual", "predicted", "low", "high")
"""A prediction beside what was measured; ``low`` and ``high`` are empty where no interval was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A titled table of a report; ``note`` says in a sentence how its figures came about."""

    title: str
    frame: pd.DataFrame
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of measured data.

    Parameters
    ----------
    name
        As the command line has it.
    summary
        One line: what is predicted from what.
    columns
        Columns of the written CSV, in their order.
    source
        The public repository that holds such data, with its licence.
    predict
        Folder to predictions with ``columns``; reads only what the kind may know. Deterministic.
    score
        Folder and predictions to tables of errors and coverage beside plain laws; None is returned where the folder
        holds no answers.
    leave_out
        Folder to tables of the same errors when priors were learnt without the cluster, benchmark or network that is
        predicted.
    learn
        Folder to the plain values of the priors file that the models load: what was learnt and nothing else.
    priors
        Where the package keeps those values, None where the kind needs none.
    pairs
        Folder and predictions to a frame of `PAIR_COLUMNS` for pictures of errors and coverage; None is returned where
        the folder holds no answers.
    picture
        Draws a picture of its own instead, where what is predicted is no quantity: folder, predictions and the file to
        write; False is returned, and nothing written, where the folder holds no answers.
    """

    name: str
    summary: str
    columns: tuple[str, ...]
    source: str
    predict: Callable[[Path], pd.DataFrame]
    score: Callable[[Path, pd.DataFrame], list[Table] | None]
    leave_out: Callable[[Path], list[Table]]
    learn: Callable[[Path], dict[str, object]] | None = None
    priors: str | None = None
    pairs: Callable[[Path, pd.DataFrame], pd.DataFrame | None] | None = None
    picture: Callable[[Path, pd.DataFrame, Path], bool] | None = None
