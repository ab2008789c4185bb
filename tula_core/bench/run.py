"""Runs one kind of backtest and writes what it predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tula_core.bench import load_kind
from tula_core.bench.kind import Table
from tula_core.errors import InputError
from tula_core.home import write_atomic


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """What one kind predicted, and its tables; ``tables`` is empty where the folder holds no answers."""

    kind: str
    predictions: pd.DataFrame
    tables: Sequence[Table]
    warning: str = ""


_UNSOUND = (ValueError, TypeError, LookupError, ArithmeticError)
"""What answers that are no measurements raise; predictions never depend on them."""


def run_bench(name: str, folder: Path, *, leave_out: bool = False, out: Path | None = None) -> BenchResult:
    """Predict a folder of measured data.

    Parameters
    ----------
    name
        One of `tula_core.bench.KINDS`.
    folder
        Holds the CSV files; nothing else in it is read.
    leave_out
        Also learn the priors anew without each cluster, benchmark or network, and report those errors.
    out
        The CSV file for the predictions, written before any answer is looked at.

    Returns
    -------
    BenchResult
        ``warning`` says why the answers could not be compared with, where they could not.

    Raises
    ------
    InputError
        Unknown kind, or a file that is missing, unreadable, empty, without a column or with an impossible number.
    """
    kind = load_kind(name)
    if not folder.is_dir():
        raise InputError(f"--data: no folder {str(folder)!r}. Give the folder with the CSV files of {name}.")
    predictions = kind.predict(folder)
    assert tuple(predictions.columns) == kind.columns, f"{name} predicted {list(predictions.columns)}"
    if out is not None:
        write_predictions(predictions, out)
    tables: list[Table] = []
    try:
        tables += kind.score(folder, predictions) or ()
        if leave_out:
            tables += kind.leave_out(folder)
    except _UNSOUND as error:
        warning = f"The answers in {folder} cannot all be compared with: {error} The predictions stand."
        return BenchResult(kind=name, predictions=predictions, tables=tables, warning=warning)
    return BenchResult(kind=name, predictions=predictions, tables=tables)


def write_predictions(predictions: pd.DataFrame, path: Path) -> None:
    """Write predictions as CSV, atomically; the same numbers give the same bytes."""
    write_atomic(path, predictions.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def draw(result: BenchResult, folder: Path, plots: Path) -> Path | None:
    """Draw errors and coverage into the folder ``plots``; None where there are no answers to compare with."""
    kind, path = load_kind(result.kind), plots / f"{result.kind}.png"
    try:
        if kind.picture is not None:
            return path if kind.picture(folder, result.predictions, path) else None
        pairs = kind.pairs(folder, result.predictions) if kind.pairs is not None else None
    except _UNSOUND:
        return None  # the same answers could not be scored, and were warned of there
    if pairs is None or pairs.empty:
        return None
    from tula_core.plots.draw import draw_backtest

    draw_backtest(pairs, f"tula bench {result.kind}", path)
    return path
