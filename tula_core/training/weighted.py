"""The mean of windows of different length."""

from __future__ import annotations

from collections.abc import Sequence

_WINDOWS_TO_SPARE = 4  # from which the neighbours of the longest may be left out as well


def mean_without_a_pause(windows: Sequence[tuple[float, float]]) -> float:
    """Return the weighted mean, the largest value counted only as far as another window confirms it.

    One pause of the machine, perhaps across the end of a window, is no longer seen; all that recurs is, however often
    the windows between are faster.

    Parameters
    ----------
    windows
        Pairs of value and weight in the order of time, at least one; weights above zero.

    >>> mean_without_a_pause([(0.1, 20.0), (0.1, 1.0), (5.0, 1.0), (0.1, 8.0)])
    0.1
    >>> round(mean_without_a_pause([(0.1, 6.0), (1.0, 4.0)] * 5), 3)
    0.46
    """
    worst = max(range(len(windows)), key=lambda index: windows[index][0])
    reach = 1 if len(windows) >= _WINDOWS_TO_SPARE else 0
    others = [value for index, (value, _) in enumerate(windows) if abs(index - worst) > reach]
    most = max(others, default=windows[worst][0])
    return sum(min(value, most) * weight for value, weight in windows) / sum(weight for _, weight in windows)
