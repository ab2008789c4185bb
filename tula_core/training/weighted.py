"""The middle of windows of different length."""

from __future__ import annotations

from collections.abc import Iterable


def weighted_median(windows: Iterable[tuple[float, float]]) -> float:
    """Return the value that half of the weight lies at or below.

    Parameters
    ----------
    windows
        Pairs of value and weight, at least one; weights above zero.

    >>> weighted_median([(5.0, 1.0), (0.1, 20.0), (0.2, 2.0)])
    0.1
    """
    ordered = sorted(windows)
    half, seen = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return ordered[-1][0]
