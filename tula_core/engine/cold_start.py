"""Telling the first steps of a process, which load, compile and tune, from the steady ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_COLD = 2.0  # times a steady step; what a shared machine does to single steps is less, or is not at the very start


def cold_steps(durations_s: Sequence[float], steady_s: float | None = None) -> int:
    """Return how many leading steps were cold: each took more than twice a steady one.

    Parameters
    ----------
    durations_s
        Seconds of steps from the first on.
    steady_s
        Seconds of a steady step; None takes the median of the steps after the one that is judged.

    >>> cold_steps([5.0, 2.0, 0.1, 0.1, 0.1]), cold_steps([0.1, 0.11, 0.3, 0.1]), cold_steps([5.0])
    (2, 0, 0)
    """
    for count, duration in enumerate(durations_s):
        later = durations_s[count + 1 :]
        if steady_s is None and not later:
            return count
        if duration <= _COLD * (statistics.median(later) if steady_s is None else steady_s):
            return count
    return len(durations_s)


def cold_excess_s(durations_s: Sequence[float], steady_s: float) -> float:
    """Return the seconds that the leading cold steps took beyond as many steady ones: start-up, paid once.

    >>> round(cold_excess_s([5.0, 2.0, 0.1, 0.1], 0.1), 9)
    6.8
    """
    return sum(duration - steady_s for duration in durations_s[: cold_steps(durations_s, steady_s)])
