"""How much wider the intervals of what was left out must be to hold what they promise."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq

Array = NDArray[np.float64]

_PROMISE = 0.9
_MOST = 3.0


def widening(predictions: pd.DataFrame, rows: pd.DataFrame) -> float:
    """Return the factor on the log width of intervals with which they hold 90 % of the measured rows.

    The share is the mean over protocols and pairs, so that pairs with many rows count no more than others.

    Parameters
    ----------
    predictions
        Of pairs whose clusters were left out when the priors were learnt, with columns ``low`` and ``high``.
    rows
        What was measured.
    """
    joined = predictions.merge(rows, on="row_id", validate="many_to_one")
    low, high = np.log(joined["low"].to_numpy()), np.log(joined["high"].to_numpy())
    away = np.abs(np.log(joined["step_time_s"].to_numpy(float)) - 0.5 * (low + high)) / (0.5 * (high - low))
    groups = [away[places] for places in joined.groupby(["protocol", "cluster", "model"]).indices.values()]

    def excess(factor: float) -> float:
        # A ramp for a step: a row on the brink counts in part, so that the share has no jumps.
        inside = [np.clip((factor - group) / (0.1 * factor) + 0.5, 0.0, 1.0).mean() for group in groups]
        return float(np.mean(inside)) - _PROMISE

    if excess(1.0) >= 0.0 or excess(_MOST) <= 0.0:
        return 1.0 if excess(1.0) >= 0.0 else _MOST
    return float(brentq(excess, 1.0, _MOST, xtol=1e-4))
