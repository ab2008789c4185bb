"""Finds which folders hold which kind of measured data, by what is in them and not by what they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tula_core.bench import KINDS
from tula_core.bench.tables import header_of
from tula_core.errors import InputError


def find_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each kind, looked for in ``root`` and in its folders; kinds without data stay away.

    Raises
    ------
    InputError
        There is no such folder, or no data of any kind in it.
    """
    if not root.is_dir():
        raise InputError(f"--data: no folder {str(root)!r}. Give a folder with measured data.")
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    found = {}
    for kind in KINDS:
        holds = _SIGNS[kind]
        folder = next((folder for folder in folders if holds(folder)), None)
        if folder is not None:
            found[kind] = folder
    if not found:
        raise InputError(
            f"--data: {str(root)!r} and its folders hold no measured data of the kinds {', '.join(KINDS)}."
        )
    return found


def folder_of(root: Path, kind: str) -> Path:
    """Return the folder of a kind: ``root``, or one in it where that alone holds such data."""
    holds = _SIGNS[kind]
    if not root.is_dir() or holds(root):
        return root
    return next((path for path in sorted(root.iterdir()) if path.is_dir() and holds(path)), root)


def _with_column(folder: Path, pattern: str, column: str) -> bool:
    return any(column in header_of(path) for path in sorted(folder.glob(pattern)))


_SIGNS: Mapping[str, Callable[[Path], bool]] = {
    "step-time": lambda folder: _with_column(folder, "*.csv", "split_p1"),
    "epochs": lambda folder: (folder / "rcp_tasks.csv").is_file(),
    "scaling": lambda folder: (folder / "scaling_tasks.csv").is_file(),
    "energy": lambda folder: _with_column(folder, "power_*.csv", "power_limit"),
    "reach": lambda folder: _with_column(folder, "epochs_to_target.csv", "target_epoch"),
    "active": lambda folder: _with_column(folder, "*.csv", "split_p1"),
}
