"""Reading the CSV files of a folder, with one clear error where one is not what a kind needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tula_core.errors import InputError


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return a CSV file as a frame that has at least ``columns``.

    Raises
    ------
    InputError
        The file is missing, unreadable or empty, or lacks a column.
    """
    try:
        frame = pd.read_csv(path)
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


def read_tables(folder: Path, pattern: str) -> dict[str, pd.DataFrame]:
    """Return every CSV file of a folder that matches a pattern, by file name, sorted.

    Raises
    ------
    InputError
        The folder is missing or has no such file.
    """
    if not folder.is_dir():
        raise InputError(f"--data: no folder {str(folder)!r}. Give a folder of CSV files.")
    found = {path.name: read_table(path, ()) for path in sorted(folder.glob(pattern))}
    if not found:
        raise InputError(f"--data: {str(folder)!r} holds no {pattern}. Give the folder that has such files.")
    return found


def check_positive(frame: pd.DataFrame, columns: Sequence[str], source: str) -> None:
    """Refuse numbers that are not finite and above zero.

    Raises
    ------
    InputError
        Names the column and the first row at fault.
    """
    for name in columns:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        bad = ~((numbers > 0) & (numbers < float("inf")))
        if bad.any():
            first = int(bad.to_numpy().argmax())
            raise InputError(
                f"--data: {source}: {name} must be a number above 0, got {frame[name].iloc[first]!r} in "
                f"data row {first + 1}. Mend that row or leave it out."
            )
