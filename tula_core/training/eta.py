"""How long a run still takes."""

from __future__ import annotations

import math


def seconds_left(samples_done: int, samples_left: int, samples_per_s: float) -> float | None:
    """Return the seconds until the last sample, None while nothing can be said: no work done or no finite rate.

    >>> seconds_left(0, 1000, 10.0) is None
    True
    >>> seconds_left(500, 1000, 10.0)
    100.0
    """
    if samples_done <= 0 or not math.isfinite(samples_per_s) or samples_per_s <= 0:
        return None
    return max(0, samples_left) / samples_per_s
