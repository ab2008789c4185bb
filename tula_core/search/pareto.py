"""The Pareto front of time and expense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def pareto_front(times_s: Numbers, expenses: Numbers, preference: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
    """Return the indices of the points that no other point dominates, from the cheapest on.

    A point dominates another if it is no worse on both axes and better on one. Along the result expenses rise strictly
    and times fall strictly; of points that agree on both axes one is kept.

    Parameters
    ----------
    times_s
        Time to train in seconds, shape ``(n,)``, finite.
    expenses
        Cost in USD or node-hours, shape ``(n,)``, finite.
    preference
        Rank of each point, shape ``(n,)``; of equal points the one with the lowest rank is kept. By default the first.
    """
    assert np.isfinite(times_s).all() and np.isfinite(expenses).all(), "the front takes finite points only"
    rank = np.arange(len(times_s)) if preference is None else preference
    order = np.lexsort((rank, times_s, expenses))
    fastest_before = np.minimum.accumulate(np.concatenate(([np.inf], times_s[order])))[:-1]
    return order[times_s[order] < fastest_before]
