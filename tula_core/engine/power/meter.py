"""`PowerMeter`: reads all sources of a machine in the background and tells the energy of any window."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tula_core.engine.power.sources import Covers, EnergySource, Tally
from tula_core.records.power import MOST_DISAGREEMENT, STILL_SHARE

_STILL_S = 1.0  # counters are updated every 20 to 100 ms
PERIOD_S = 0.1
"""Power is sampled ten times a second, and counters are read before they can start again from zero twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """The joules of one window.

    Attributes
    ----------
    total_j
        Of all that is metered, each part by its best source; None where a part could not be read.
    source
        The sources of ``total_j``, in words; empty where there is none.
    accelerators_j, counter_j, integrated_j
        Of the accelerators: by their best source, by their counter, by samples of their power.
    """

    seconds: float
    total_j: float | None = None
    source: str = ""
    accelerators_j: float | None = None
    counter_j: float | None = None
    integrated_j: float | None = None

    @property
    def disagreement(self) -> str | None:
        """What to say where counter and samples differ by more than 10 %, None where they agree or one is missing."""
        counter_j, integrated_j = self.counter_j, self.integrated_j
        if counter_j is None or integrated_j is None:
            return None
        if abs(integrated_j - counter_j) <= MOST_DISAGREEMENT * counter_j:
            return None
        if not counter_j and self.seconds < _STILL_S:
            return None  # counters are updated now and then
        still = stands_still(counter_j, integrated_j, self.seconds)
        return (
            f"two power meters disagree: the energy counter says {counter_j:.0f} J in {self.seconds:.0f} s, "
            f"samples of power say {integrated_j:.0f} J; "
            + ("the counter stands still and the samples are used" if still else "the counter is used")
        )


def stands_still(counter_j: float, integrated_j: float | None, seconds: float) -> bool:
    """Return whether a counter hardly moved over a window in which samples of power saw energy flow.

    Without samples it stands still where it did not move at all: a machine that is on always draws something.
    """
    if seconds < _STILL_S:
        return False
    return counter_j <= 0 if integrated_j is None else counter_j < STILL_SHARE * integrated_j


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """The state of the tallies at one moment: joules by source, None where it could not be read."""

    at_s: float
    joules: tuple[float | None, ...]


class PowerMeter:
    """Meters one machine from `start` to `close`; without sources it does nothing and knows nothing."""

    def __init__(self, sources: Sequence[EnergySource], note: str = "") -> None:
        self.note = note
        self._tallies = [Tally(source) for source in sources]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sources(self) -> tuple[EnergySource, ...]:
        """What is read."""
        return tuple(tally.source for tally in self._tallies)

    def start(self, period_s: float = PERIOD_S) -> None:
        """Begin to read in the background."""
        if not self._tallies or self._thread is not None:
            return
        self.mark()
        self._thread = threading.Thread(target=self._poll, args=(period_s,), name="power meter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def mark(self, now_s: float | None = None) -> Mark:
        """Read every source and return the tallies; two marks make a window."""
        with self._lock:
            at_s = time.monotonic() if now_s is None else now_s
            for tally in self._tallies:
                tally.poll(at_s)
            return Mark(at_s=at_s, joules=tuple(t.joules if t.failed is None else None for t in self._tallies))

    def between(self, begin: Mark, end: Mark) -> Energy:
        """Return the energy of the window between two marks; adjacent windows add up exactly."""
        gained = [
            None if one is None or other is None else other - one
            for one, other in zip(begin.joules, end.joules, strict=True)
        ]
        seconds = end.at_s - begin.at_s
        parts = [
            self._best(covers, gained, seconds) for covers in dict.fromkeys(t.source.covers for t in self._tallies)
        ]
        known = [part for part in parts if part is not None]
        whole = bool(parts) and len(known) == len(parts)
        accelerators = self._best("accelerators", gained, seconds)
        return Energy(
            seconds=seconds,
            total_j=sum(joules for joules, _ in known) if whole else None,
            source=" and ".join(name for _, name in known) if whole else "",
            accelerators_j=None if accelerators is None else accelerators[0],
            counter_j=self._of("counter", gained),
            integrated_j=self._of("power", gained),
        )

    def _best(self, covers: Covers, gained: Sequence[float | None], seconds: float) -> tuple[float, str] | None:
        """Return joules and name of the best source of one part: a counter that moves before samples of power."""
        counter, samples = self._read("counter", covers, gained), self._read("power", covers, gained)
        if counter is None or stands_still(counter[0], None if samples is None else samples[0], seconds):
            return samples
        return counter

    def _of(self, kind: str, gained: Sequence[float | None]) -> float | None:
        read = self._read(kind, "accelerators", gained)
        return None if read is None else read[0]

    def _read(self, kind: str, covers: Covers, gained: Sequence[float | None]) -> tuple[float, str] | None:
        """Return joules and name of the first source of a kind that could be read."""
        for tally, joules in zip(self._tallies, gained, strict=True):
            if tally.source.covers == covers and tally.source.kind == kind and joules is not None:
                return joules, tally.source.name
        return None

    def _poll(self, period_s: float) -> None:
        while not self._ended.wait(period_s):
            self.mark()
