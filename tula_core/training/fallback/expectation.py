"""Holding the evaluations of a run against the curve that its plan expects.

A run has fallen below its forecast where its metric, in widths of the lower half of the 90 % interval, lies

    w = (value - seen) / (value - low) > 1.75   at two evaluations in a row, or > 3 at one,

and where its latest rise, carried on, would not bring it back to ``low`` by the next evaluation. The evaluations of
the warm-up and of the first epoch are passed over, and so is the last one: nothing is left to train. Empirical: one
width is 1.645 standard deviations, so that a forecast which is normal, and off by the same at every epoch, goes beyond
1.75 widths in 0.2 of 100 runs. Simulated with the forecast's own distribution, no more than 2 of 100 runs of up to a
hundred epochs raise a false alarm: with errors that all epochs share, that each epoch has of its own, or that fade over
a few epochs, and with a long tail below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tula_core.records import Interval

TWICE, ONCE = 1.75, 3.0  # half widths of the interval below its value
_GAIN = 0.1  # share of the gap to the interval that weights below it must have closed to be worth going on from
_SAME_EPOCH = 1e-6

Point = tuple[float, float]
"""Epochs and metric of an evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """An evaluation at which a run had fallen below its forecast.

    Attributes
    ----------
    index
        Its place among the evaluations.
    epochs, seen
        When, and the metric.
    forecast
        What was expected then.
    """

    index: int
    epochs: float
    seen: float
    forecast: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """The metric that a plan expects after each epoch.

    Attributes
    ----------
    curve
        Epochs and forecast, ascending; at least one.
    higher_is_better
        Of the metric.
    judged_from
        Evaluations up to so many epochs are passed over: the warm-up.
    last
        The epochs of the whole run.
    """

    curve: tuple[tuple[float, Interval], ...]
    higher_is_better: bool
    judged_from: float
    last: float

    @classmethod
    def of(
        cls,
        curve: Sequence[Sequence[float | None]] | None,
        *,
        higher_is_better: bool,
        warmup_epochs: float,
        last: float,
    ) -> Expectation | None:
        """Return the expectation of ``[epochs, low, value, high]`` entries, None where none of them says anything.

        An entry with an unknown number, or without any room below its value, holds nothing to be held against.
        """
        known = []
        for entry in curve or ():
            if any(number is None or not math.isfinite(number) for number in entry):
                continue
            epochs, low, value, high = (float(number) for number in entry if number is not None)
            worst = low if higher_is_better else high
            if low <= value <= high and worst != value:
                known.append((epochs, Interval(value=value, low=low, high=high)))
        if not known:
            return None
        return cls(
            curve=tuple(sorted(known, key=lambda entry: entry[0])),
            higher_is_better=higher_is_better,
            judged_from=max(1.0, warmup_epochs),
            last=last,
        )

    def fall(self, points: Sequence[Point]) -> Fall | None:
        """Return the first evaluation at which the run had fallen, None where it has not.

        >>> curve = [[epoch, 0.78, 0.80, 0.82] for epoch in range(1, 6)]
        >>> held = Expectation.of(curve, higher_is_better=True, warmup_epochs=0.5, last=5)
        >>> held.fall([(1, 0.5), (2, 0.79), (3, 0.76), (4, 0.76)]).epochs
        4
        """
        before = 0.0
        for index, (epochs, seen) in enumerate(points):
            judged = self.judged_from + _SAME_EPOCH < epochs < self.last - _SAME_EPOCH
            widths = self.widths_below(epochs, seen) if judged else 0.0
            if (widths > ONCE or min(widths, before) > TWICE) and not self._rises(points[: index + 1]):
                found = self.at(epochs)
                assert found is not None
                return Fall(index=index, epochs=epochs, seen=seen, forecast=found)
            before = widths
        return None

    def good(self, points: Sequence[Point]) -> int | None:
        """Return the place of the latest evaluation whose weights are worth going on from, None where none is.

        Those are inside 1.75 widths, or below and yet better than all before by a tenth of the gap to the interval: the
        run learns, if too slowly. Weights that have collapsed do neither.
        """
        latest, best = None, -math.inf
        for index, (epochs, seen) in enumerate(points):
            signed = self._signed(seen)
            inside = self.widths_below(epochs, seen) <= TWICE
            if inside or (math.isfinite(best) and signed > best + _GAIN * max(0.0, self._bound(epochs) - best)):
                latest = index
            best = max(best, signed) if math.isfinite(signed) else best
        return latest

    def at(self, epochs: float) -> Interval | None:
        """Return what is expected after ``epochs``, linear between entries, None outside of them."""
        for (left, one), (right, other) in zip(self.curve, self.curve[1:] or self.curve, strict=False):
            if abs(epochs - left) <= _SAME_EPOCH:
                return one
            if abs(epochs - right) <= _SAME_EPOCH:
                return other
            if left < epochs < right:
                share = (epochs - left) / (right - left)
                return Interval(
                    **{
                        name: (1 - share) * getattr(one, name) + share * getattr(other, name)
                        for name in ("value", "low", "high")
                    }
                )
        return None

    def widths_below(self, epochs: float, seen: float) -> float:
        """Return (value - seen)/(value - low), mirrored where lower is better; 0 where nothing is expected."""
        found = self.at(epochs)
        if found is None:
            return 0.0
        if not math.isfinite(seen):
            return math.inf
        value, low = self._signed(found.value), self._bound(epochs)
        return (value - self._signed(seen)) / (value - low) if value > low else 0.0

    def _rises(self, points: Sequence[Point]) -> bool:
        """Return whether the latest rise, carried on, reaches the interval by the next evaluation."""
        if len(points) < 2 or not all(math.isfinite(seen) for _, seen in points[-2:]):
            return False
        (earlier, old), (now, new) = points[-2], points[-1]
        rise, following = self._signed(new) - self._signed(old), 2 * now - earlier
        return rise > 0 and self._signed(new) + rise >= self._bound(min(following, self.curve[-1][0]))

    def _bound(self, epochs: float) -> float:
        """Return the worst of the interval, signed so that higher is better; minus infinity where none is."""
        found = self.at(epochs)
        if found is None:
            return -math.inf
        return self._signed(found.low if self.higher_is_better else found.high)

    def _signed(self, metric: float | None) -> float:
        assert metric is not None
        return metric if self.higher_is_better else -metric
