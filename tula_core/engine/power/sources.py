"""The small interface that every power meter has, and the energy of one source over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Covers = Literal["accelerators", "processors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySource:
    """A meter of this machine.

    Attributes
    ----------
    name
        In words, such as ``the NVML energy counter``.
    covers
        What it meters; sources that cover the same are alternatives, others add up.
    kind
        ``counter`` reads joules that only grow, ``power`` reads watts.
    read
        Returns the present joules or watts; raises ``OSError`` where it cannot.
    range_j
        At how many joules a counter starts again from zero; None where it never does.
    """

    name: str
    covers: Covers
    kind: Literal["counter", "power"]
    read: Callable[[], float]
    range_j: float | None = None


@dataclass(slots=True)
class Tally:
    """The joules of one source since its first reading; ``failed`` says why it reads no more."""

    source: EnergySource
    joules: float = 0.0
    failed: str | None = None
    _last: float | None = field(default=None)
    _last_s: float = field(default=0.0)

    def poll(self, now_s: float) -> None:
        """Take a reading at a time in seconds; a source that cannot be read is given up."""
        if self.failed is not None:
            return
        try:
            value = float(self.source.read())
        except (OSError, ValueError) as error:
            self.failed = str(error) or type(error).__name__
            return
        if not 0 <= value < float("inf"):
            self.failed = f"it read {value!r}"
        elif self._last is not None:
            self.joules += self._gained(value, now_s)
        self._last, self._last_s = value, now_s

    def _gained(self, value: float, now_s: float) -> float:
        """Return the joules since the reading before: a difference, or the trapezoid under two samples of power."""
        assert self._last is not None
        if self.source.kind == "power":
            return (self._last + value) / 2 * (now_s - self._last_s)
        if value >= self._last:
            return value - self._last
        if self.source.range_j is None:
            self.failed = "its counter went backwards"
            return 0.0
        return value + self.source.range_j - self._last
