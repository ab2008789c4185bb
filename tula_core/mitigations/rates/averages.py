"""A running mean whose memory is counted in samples, so that it forgets alike at every batch size."""

from __future__ import annotations

from collections.abc import Mapping


class RunningMean:
    """Exponential mean without the bias of its start.

    After weight w the past keeps ``keep`` to the power w; value = m/n with m <- k m + (1 - k) x, n <- k n + (1 - k)
    (Kingma and Ba 2015, arXiv 1412.6980, section 3, for the correction).

    Parameters
    ----------
    keep
        Share of the past kept after a weight of 1, in [0, 1).
    """

    def __init__(self, keep: float) -> None:
        assert 0 <= keep < 1, keep
        self._keep = keep
        self._sum = 0.0
        self._weight = 0.0

    def add(self, number: float, weight: float) -> None:
        """Take a number that stands for ``weight`` units."""
        keep = self._keep**weight
        self._sum = keep * self._sum + (1.0 - keep) * number
        self._weight = keep * self._weight + (1.0 - keep)

    @property
    def value(self) -> float:
        """The mean, 0.0 before the first number."""
        return self._sum / self._weight if self._weight > 0 else 0.0

    def state(self) -> dict[str, float]:
        """Return what the mean is made of."""
        return {"sum": self._sum, "weight": self._weight}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take up what `state` gave."""
        self._sum, self._weight = state["sum"], state["weight"]
