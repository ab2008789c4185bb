"""Saying, while a run goes on, that its steps take longer than its plan allowed for."""

from __future__ import annotations

from tula_core.records import Interval
from tula_core.training.weighted import weighted_median

_AGAIN = 1.25  # so many times slower than when it was last said


class DriftAlarm:
    """Holds the steps of each epoch against the forecast's interval.

    Parameters
    ----------
    forecast
        Seconds of a step as the plan has them, with the 90 % interval.
    """

    def __init__(self, forecast: Interval) -> None:
        self._forecast = forecast
        self._windows: list[tuple[float, float]] = []
        self._said_s = 0.0

    def add(self, seconds: float, steps: int) -> None:
        """Take what the steps between two reports took together; a step back, after a divergence, is passed over."""
        if steps > 0 and seconds > 0:
            self._windows.append((seconds / steps, float(steps)))

    def end_epoch(self, epoch: float, seconds_left: float | None) -> str | None:
        """Return a warning where the epoch's steps were slower than the forecast's interval; said anew when it worsens.

        The middle step of the epoch counts: a cold start, a tail or one pause is no drift.
        """
        windows, self._windows = self._windows, []
        value, low, high = self._forecast.value, self._forecast.low, self._forecast.high
        if not windows or value is None or low is None or high is None:
            return None
        now_s = weighted_median(windows)
        if now_s <= max(high, _AGAIN * self._said_s):
            return None
        self._said_s = now_s
        left = "" if seconds_left is None else f"; at this speed {seconds_left:.3g} s are left"
        return (
            f"in epoch {epoch:.0f} a step takes {1e3 * now_s:.3g} ms, the plan forecast {1e3 * value:.3g} ms "
            f"({1e3 * low:.3g} to {1e3 * high:.3g}): the run takes longer and costs more than planned{left}"
        )
