"""Reading measured epochs by batch size and power limit, and which of their rows may be known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.tables import check_positive, check_seconds, numbers, read_table, read_tables
from tula_core.models.power.rows import MeasuredRows, PowerRows

GROUP = ("gpu", "dataset", "network", "optimizer")
ASKED = (*GROUP, "batch_size", "power_limit")
ANSWERS = ("time_per_epoch", "average_power")


def read_epochs(folder: Path) -> pd.DataFrame:
    """Return every row of ``power_<gpu>.csv`` with its gpu and whether it is known; answers of others may be missing.

    Raises
    ------
    InputError
        No such file, a missing column, or an impossible number in what may be known.
    """
    frames = []
    for name in read_tables(folder, "power_*.csv"):
        frame = read_table(folder / name, (*ASKED[1:], *ANSWERS))
        check_positive(frame, ("batch_size", "power_limit"), name)
        frame = frame.assign(gpu=name.removeprefix("power_").removesuffix(".csv"))
        frame = frame.assign(known=known_rows(frame))
        known = frame[frame.known]
        check_seconds(known, ANSWERS[:1], f"{name}, among the rows that are known")
        check_positive(known, ANSWERS[1:], f"{name}, among the rows that are known")
        frame = frame.assign(**{answer: _sound(frame[answer]) for answer in ANSWERS})
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _sound(answers: pd.Series) -> pd.Series:
    """Return answers as numbers, nan where one is no finite number above 0."""
    value = numbers(answers)
    return value.where((value > 0.0) & np.isfinite(value))


def known_rows(frame: pd.DataFrame) -> pd.Series:
    """Return which rows may be known: smallest, middle and largest batch at the lowest and the highest limit.

    Of each group of data set, network and optimizer; the middle is the lower one where the number of sizes is even.
    """
    known = pd.Series(False, index=frame.index)
    for _, group in frame.groupby(list(GROUP[1:]), sort=False, dropna=False):
        sizes = np.sort(group.batch_size.unique())
        chosen = group.batch_size.isin([sizes[0], sizes[(len(sizes) - 1) // 2], sizes[-1]])
        ends = group.power_limit.isin([group.power_limit.min(), group.power_limit.max()])
        known[group.index] = chosen & ends
    return known


def works(frame: pd.DataFrame) -> np.ndarray:
    """Return the number of each row's (data set, network, optimizer) within one gpu's rows, by first appearance."""
    return np.asarray(frame.groupby(list(GROUP[1:]), sort=False, dropna=False).ngroup(), dtype=int)


def rows_of(frame: pd.DataFrame, work: np.ndarray) -> PowerRows:
    """Return the rows of one gpu as the models take them."""
    return PowerRows(
        work=work,
        batch=frame.batch_size.to_numpy(float),
        limit_w=frame.power_limit.to_numpy(float),
    )


def measured_of(frame: pd.DataFrame, work: np.ndarray) -> MeasuredRows:
    """Return measured rows of one gpu as the models take them."""
    return MeasuredRows(
        asked=rows_of(frame, work),
        time_s=frame.time_per_epoch.to_numpy(float),
        power_w=frame.average_power.to_numpy(float),
    )


def errors_pct(frame: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the absolute error in per cent of time, power and energy of each row."""
    energy, forecast = frame[list(ANSWERS)].prod(axis=1), predicted[["time_s", "power_w"]].prod(axis=1)
    pairs: Sequence[tuple[str, pd.Series, pd.Series]] = (
        ("time", frame.time_per_epoch, predicted.time_s),
        ("power", frame.average_power, predicted.power_w),
        ("energy", energy, forecast),
    )
    return pd.DataFrame({name: 100 * (guess / truth - 1).abs() for name, truth, guess in pairs})
