"""The knee of a Pareto front: where more money stops buying time."""

from __future__ import annotations

import math

import numpy as np

from tula_core.search.pareto import Numbers

LEAST_SAVING = 0.10
"""The walk along the front stops where the next doubling of expense saves less than this share of the time."""
FEWEST_FOR_KNEEDLE = 5


def saving_of_next_doubling(expenses: Numbers, times_s: Numbers, index: int) -> float:
    """Return the share of time that doubling the expense saves from point ``index`` of a front on.

    1 - t(2c) / t(c), where c is the point's expense and t(c) the front, interpolated linearly in log expense and log
    time. Where the front ends before 2c, its last point (c', t') is normalised to a doubling:
    1 - (t'/t)^(1 / log2(c'/c)). This is the marginal-gain rule (c) of the project's notes on knee detection, made
    independent of how densely the front is sampled.

    Parameters
    ----------
    expenses
        Strictly rising and positive, shape ``(n,)``, in USD or node-hours.
    times_s
        Strictly falling and positive, shape ``(n,)``, in seconds.
    index
        A point that is not the last.
    """
    cost, time = np.log2(expenses), np.log2(times_s)
    reach = cost[-1] - cost[index]
    fall = (
        float(np.interp(cost[index] + 1, cost, time)) - time[index] if reach >= 1 else (time[-1] - time[index]) / reach
    )
    return float(1 - math.exp2(fall))


def knee_index(expenses: Numbers, times_s: Numbers) -> int:
    """Return the first point of a front from which the next doubling of expense saves less than `LEAST_SAVING`.

    The front is walked from its cheapest point; where every doubling pays, the answer is its fastest point.
    Arguments are those of `saving_of_next_doubling`, with at least one point.
    """
    last = len(expenses) - 1
    return next((i for i in range(last) if saving_of_next_doubling(expenses, times_s, i) < LEAST_SAVING), last)


def kneedle_index(expenses: Numbers, times_s: Numbers) -> int | None:
    """Return the knee by Kneedle in log-log axes, shown beside the rule above and never decisive.

    Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCSW 2011, with sensitivity 1. Its answer moves with the
    range that was searched, which is why it does not decide. None where the front has fewer than five points, where its
    times are constant within rounding, or where Kneedle finds no knee, as on a straight line.
    """
    if len(expenses) < FEWEST_FOR_KNEEDLE or times_s[0] <= times_s[-1] * (1 + 1e-9):
        return None
    from kneed import KneeLocator  # here, because it loads matplotlib where that is installed

    x = np.log(expenses)
    found = KneeLocator(x, np.log(times_s), S=1.0, curve="convex", direction="decreasing").knee
    return None if found is None else int(np.argmin(np.abs(x - found)))
