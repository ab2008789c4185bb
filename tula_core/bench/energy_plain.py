"""Plain laws that the power model is compared with, from the same known rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tula_core.bench.energy_data import ANSWERS, GROUP


def log_linear(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ln(time) and ln(power) linear in ln(batch) and ln(limit), least squares for each group."""
    found = pd.DataFrame(index=frame.index, columns=["time_s", "power_w"], dtype=float)
    for _, group in frame.groupby(list(GROUP), sort=False, dropna=False):
        columns = np.stack([np.ones(len(group)), np.log(group.batch_size), np.log(group.power_limit)], axis=1)
        told = group.known.to_numpy()
        if not told.any():
            continue
        for name, answer in zip(found.columns, ANSWERS, strict=True):
            weights, *_ = np.linalg.lstsq(columns[told], np.log(group.loc[told, answer].to_numpy(float)), rcond=None)
            found.loc[group.index, name] = np.exp(columns @ weights)
    return found


def nearest_row(frame: pd.DataFrame) -> pd.DataFrame:
    """Return time and power of the nearest known row of the group, by octaves of batch size and then of limit.

    Power is scaled with the limit, at most to it.
    """
    found = pd.DataFrame(index=frame.index, columns=["time_s", "power_w"], dtype=float)
    for _, group in frame.groupby(list(GROUP), sort=False, dropna=False):
        told = group[group.known]
        if told.empty:
            continue
        batch = np.abs(np.log2(group.batch_size.to_numpy())[:, None] - np.log2(told.batch_size.to_numpy()))
        limit = np.abs(np.log2(group.power_limit.to_numpy())[:, None] - np.log2(told.power_limit.to_numpy()))
        chosen = told.iloc[(1e3 * batch + limit).argmin(axis=1)]
        found.loc[group.index, "time_s"] = chosen.time_per_epoch.to_numpy(float)
        power = chosen.average_power.to_numpy(float)
        scaled = power * group.power_limit.to_numpy(float) / chosen.power_limit.to_numpy(float)
        found.loc[group.index, "power_w"] = np.minimum(scaled, np.maximum(power, group.power_limit))
    return found
