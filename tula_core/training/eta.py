"""How long a run still takes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from tula_core.training.weighted import mean_without_a_pause

_FEWEST, _MOST = 3, 50  # windows of progress that an estimate rests on; the first of an attempt is a cold start


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


class Remaining:
    """The seconds to the end of a run, from its own recent speed and what its evaluations took.

    Parameters
    ----------
    total_samples, epoch_samples
        Training samples of the run and of one epoch, which ends with an evaluation.
    takeovers
        The samples at which other processes take over, which have to be started first.
    """

    def __init__(self, total_samples: int, epoch_samples: int, takeovers: Sequence[int] = ()) -> None:
        self._total = total_samples
        self._epoch = epoch_samples
        self._takeovers = tuple(takeovers)
        self._start_s = 0.0
        self._seconds: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._samples: int | None = None
        self._evaluation_s = 0.0

    def evaluated(self, seconds: float) -> None:
        """Take what an evaluation took."""
        self._evaluation_s = seconds

    def started(self, seconds: float) -> None:
        """Take what the start of processes took, from their launch until they were ready."""
        self._start_s = seconds

    def after(self, samples: int, samples_per_s: float) -> float | None:
        """Take a window's speed and return the seconds left after ``samples``; None while it is too early to say.

        The recent samples are reckoned with as slow as they were on average; one pause of the machine does not rule it.
        """
        if self._samples is not None and samples > self._samples:
            # A mean of rates would count the slow windows less than their seconds.
            each_s = 1.0 / samples_per_s if samples_per_s > 0 else math.inf
            self._seconds.append((each_s, float(samples - self._samples)))
        self._samples = samples
        if len(self._seconds) < _FEWEST:
            return None
        left = max(0, self._total - samples)
        each_s = mean_without_a_pause(self._seconds)
        steps_s = seconds_left(samples, left, 1.0 / each_s if each_s > 0 else math.inf)
        if steps_s is None:
            return None
        starts = sum(samples < takeover for takeover in self._takeovers)
        return steps_s + math.ceil(left / self._epoch) * self._evaluation_s + starts * self._start_s
