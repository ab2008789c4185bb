"""Predicts a tiny table: y is said to be x, with an interval of a factor of two."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tula_core.bench.kind import Kind, Table
from tula_core.bench.tables import check_positive, read_table


def _predict(folder: Path) -> pd.DataFrame:
    frame = read_table(folder / "tiny.csv", ("id", "x"))
    check_positive(frame, ("x",), "tiny.csv")
    return pd.DataFrame({"id": frame["id"], "y": frame["x"], "low": frame["x"] / 2, "high": frame["x"] * 2})


def _score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    pairs = _pairs(folder, predictions)
    if pairs is None:
        return None
    error = (pairs["predicted"] / pairs["actual"] - 1).abs().mean() * 100
    return [Table(title="Errors", frame=pd.DataFrame({"mape_pct": [error]}), note="One row each.")]


def _leave_out(folder: Path) -> list[Table]:
    return [Table(title="Left out", frame=pd.DataFrame({"mape_pct": [50.0]}))]


def _pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    frame = read_table(folder / "tiny.csv", ("id", "x"))
    if "y" not in frame:
        return None
    return pd.DataFrame(
        {
            "quantity": "y",
            "group": "all",
            "actual": frame["y"],
            "predicted": predictions["y"],
            "low": predictions["low"],
            "high": predictions["high"],
        }
    )


KIND = Kind(
    name="tiny",
    summary="y from x.",
    columns=("id", "y", "low", "high"),
    source="made up.",
    predict=_predict,
    score=_score,
    leave_out=_leave_out,
    learn=lambda folder: {"mean": float(len(list(folder.iterdir())))},
    priors="models/tiny/priors.json",
    pairs=_pairs,
)
