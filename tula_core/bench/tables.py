"""Reading the CSV files of a folder, with one clear error where one is not what a kind needs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tula_core.errors import InputError

SECONDS = (1e-9, 1e9)
"""The least and the most that a measured time can be; beyond it a number is no time in seconds."""

_NAMES = (
    *("row_id", "model", "cluster", "task_id", "protocol", "benchmark", "submission_id", "family", "bench", "accel"),
    *("submitter", "dataset", "network", "optimizer"),
)
"""Columns of names: whatever stands there is a name, also an empty one, ``NA`` or ``001``."""

_MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What pandas reads as missing; here in columns of numbers alone."""


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return a CSV file as a frame that has at least ``columns``.

    Raises
    ------
    InputError
        The file is missing, unreadable or empty, or lacks a column.
    """
    try:
        missing = {column: list(_MISSING) for column in header_of(path) if column not in _NAMES}
        frame = pd.read_csv(path, dtype=dict.fromkeys(_NAMES, str), keep_default_na=False, na_values=missing)
    except FileNotFoundError:
        raise InputError(f"--data: {str(path.parent)!r} holds no {path.name}. Give the folder that has it.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--data: {str(path)!r} cannot be read as CSV ({error}). Mend or replace it.") from None
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise InputError(f"--data: {str(path)!r} lacks the column {', '.join(lacking)}. Give a file that has it.")
    if frame.empty:
        raise InputError(f"--data: {str(path)!r} has no rows. Give a file with measurements.")
    return frame


def read_tables(folder: Path, pattern: str, having: str | None = None) -> dict[str, pd.DataFrame]:
    """Return every CSV file of a folder that matches a pattern, by file name, sorted.

    With ``having`` only those whose header holds that column: what else lies beside them need not even be CSV.

    Raises
    ------
    InputError
        The folder is missing or has no such file.
    """
    if not folder.is_dir():
        raise InputError(f"--data: no folder {str(folder)!r}. Give a folder of CSV files.")
    paths = [path for path in sorted(folder.glob(pattern)) if having is None or having in header_of(path)]
    if not paths:
        which = pattern if having is None else f"{pattern} with a column {having}"
        raise InputError(f"--data: {str(folder)!r} holds no {which}. Give the folder that has such files.")
    return {path.name: read_table(path, ()) for path in paths}


def header_of(path: Path) -> list[str]:
    """Return the names of a CSV file's columns; none where it cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error):
        return []


def numbers(column: pd.Series) -> pd.Series[float]:
    """Return a column as numbers, nan where a cell holds none."""
    return pd.to_numeric(column, errors="coerce").astype(float)


def check_positive(frame: pd.DataFrame, columns: Sequence[str], source: str) -> None:
    """Refuse numbers that are not finite and above zero.

    Raises
    ------
    InputError
        Names the column and the first row at fault; ``frame`` may be some rows of a file, under the file's own index.
    """
    for name in columns:
        value = numbers(frame[name])
        refuse(frame, name, ~((value > 0) & (value < float("inf"))), source, "a number above 0")


def check_whole(frame: pd.DataFrame, columns: Sequence[str], source: str, least: int) -> None:
    """Refuse numbers that are not whole and at least ``least``; see `check_positive`."""
    for name in columns:
        value = numbers(frame[name])
        sound = (value >= least) & (value < float("inf")) & (value == value.round())
        refuse(frame, name, ~sound, source, f"a whole number from {least} upwards")


def check_seconds(frame: pd.DataFrame, columns: Sequence[str], source: str) -> None:
    """Refuse times outside `SECONDS`; see `check_positive`."""
    for name in columns:
        value = numbers(frame[name])
        allowed = f"seconds from {SECONDS[0]:g} to {SECONDS[1]:g}"
        refuse(frame, name, ~value.between(*SECONDS), source, allowed)


def refuse(frame: pd.DataFrame, name: str, bad: pd.Series, source: str, allowed: str) -> None:
    """Raise for the first row of ``bad``, if there is one.

    Raises
    ------
    InputError
        Names the column, the cell, what is allowed, and the row as the file counts it.
    """
    if not bad.any():
        return
    first = int(bad.to_numpy().argmax())
    cell = frame[name].iloc[first]
    got = cell.item() if hasattr(cell, "item") else cell
    raise InputError(
        f"--data: {source}: {name} must be {allowed}, got {got!r} in data row {int(frame.index[first]) + 1}. "
        "Mend that row or leave it out."
    )
