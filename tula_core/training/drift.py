"""Saying, while a run goes on, that it takes longer than its plan allowed for."""

from __future__ import annotations

from tula_core.engine.cold_start import cold_steps
from tula_core.records import Interval, Row
from tula_core.training.step_times import EARLY_STEPS
from tula_core.training.weighted import mean_without_a_pause

_AGAIN = 1.25  # so many times slower than when it was last said


def beside_steps_s(row: Row) -> float | None:
    """Return the seconds that a row's forecast has for each epoch beside its steps, None where it does not tell.

    Start-up is among them, so what is left for an evaluation is no less than was forecast for it.
    """
    total, steps, step, epochs = (row[name].value for name in ("time_to_train_s", "steps", "step_time_s", "epochs"))
    if total is None or steps is None or step is None or not epochs:
        return None
    return max(0.0, total - steps * step) / epochs


class DriftAlarm:
    """Holds each epoch against the forecast: the mean of its steps, and the sum with its evaluation.

    Parameters
    ----------
    forecast
        Seconds of a step as the plan has them, with the 90 % interval.
    beside_s
        Seconds of an epoch beside its steps as the plan has them, None where it has none.
    """

    def __init__(self, forecast: Interval, beside_s: float | None = None) -> None:
        self._forecast = forecast
        self._beside_s = beside_s
        self._windows: list[tuple[float, float]] = []
        self._cold = True
        self._said_s = 0.0
        self._said_epoch_s = 0.0

    def add(self, seconds: float, steps: int) -> None:
        """Take what the steps between two reports took together; a step back, after a divergence, is passed over."""
        if steps > 0 and seconds > 0:
            self._windows.append((seconds / steps, float(steps)))

    def end_epoch(self, epoch: float, seconds_left: float | None, evaluation_s: float = 0.0) -> str | None:
        """Return a warning where the epoch took longer than the forecast's interval; said anew when it worsens.

        The mean step counts, as in a bill; a cold start or one pause is no drift.
        """
        windows, self._windows = self._warm(), []
        value, low, high = self._forecast.value, self._forecast.low, self._forecast.high
        if not windows or value is None or low is None or high is None:
            return None
        now_s = mean_without_a_pause(windows)
        left = f"; as the recent steps were, {seconds_left:.3g} s are left" if seconds_left else ""
        if now_s <= high:
            return self._slow_epoch(epoch, now_s, sum(steps for _, steps in windows), evaluation_s, left)
        if now_s <= _AGAIN * self._said_s:
            return None
        self._said_s = now_s
        return (
            f"in epoch {epoch:.0f} a step takes {1e3 * now_s:.3g} ms, the plan forecast {1e3 * value:.3g} ms "
            f"({1e3 * low:.3g} to {1e3 * high:.3g}): where it stays so, the run costs more than planned{left}"
        )

    def _slow_epoch(self, epoch: float, step_s: float, steps: float, evaluation_s: float, left: str) -> str | None:
        assert self._forecast.high is not None
        if self._beside_s is None:
            return None
        took_s, allowed_s = steps * step_s + evaluation_s, steps * self._forecast.high + self._beside_s
        if took_s <= max(allowed_s, _AGAIN * self._said_epoch_s):
            return None
        self._said_epoch_s = took_s
        return (
            f"epoch {epoch:.0f} takes {took_s:.3g} s, of which its evaluation {evaluation_s:.3g} s, and the plan "
            f"allowed at most {allowed_s:.3g} s: where it stays so, the run costs more than planned{left}"
        )

    def _warm(self) -> list[tuple[float, float]]:
        """Return the epoch's windows; without the cold ones where they are the attempt's first."""
        if not self._cold or not self._windows:
            return self._windows
        self._cold, seen, early = False, 0.0, 0
        for _, steps in self._windows:
            seen += steps
            early += seen <= EARLY_STEPS
        return self._windows[min(early, cold_steps([value for value, _ in self._windows])) :]
