"""`Columns`: the forecasts of many candidates as arrays, from which rows are made where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.asked import CandidateColumns, Places
from tula_core.models.decision.chances import expected_each
from tula_core.models.feasibility import Codes, Feasibility, Verdict
from tula_core.models.forecasting import Band
from tula_core.records.candidate import QUANTITIES, UNKNOWN, Interval, Row

_WHOLE = frozenset({"epochs", "steps", "memory_bytes"})
_REPEATING = frozenset({"epochs", "memory_bytes", "accuracy"})  # the same for many candidates


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Forecasts in the order of the candidates, arrays of shape (n,).

    Attributes
    ----------
    bands
        By the names of `tula_core.records.QUANTITIES`, those alone of which something is known; NaN where nothing is.
    known
        Where a quantity of ``bands`` is known.
    measured
        Where the very step was timed.
    verdict
        Codes of `Verdict`.
    """

    asked: CandidateColumns
    bands: Mapping[str, Band]
    known: Mapping[str, NDArray[np.bool_]]
    measured: NDArray[np.bool_]
    verdict: Codes
    rules: Feasibility

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Where nothing stands against a candidate."""
        return np.asarray(self.verdict == Verdict.FEASIBLE)

    def values(self, quantity: str) -> NDArray[np.float64]:
        """Return the values of one quantity, NaN where it is unknown."""
        band = self.bands.get(quantity)
        return np.full(self.asked.count, np.nan) if band is None else band.value

    def expected(self, quantity: str) -> NDArray[np.float64]:
        """Return the means of one positive quantity, NaN where it is unknown."""
        band = self.bands.get(quantity)
        return self.values(quantity) if band is None else expected_each(band.value, band.low, band.high)

    def row(self, place: int) -> Row:
        """Return the row of one candidate."""
        return self.rows([place])[0]

    def rows(self, places: Sequence[int] | Places | None = None) -> list[Row]:
        """Return the rows at some places, of all candidates where none are named."""
        wanted = np.arange(self.asked.count) if places is None else np.asarray(places, dtype=np.intp)
        columns = [self._intervals(name, wanted) for name in QUANTITIES]
        candidates = [self.asked.candidate(place) for place in wanted.tolist()]
        forecasts = [dict(zip(QUANTITIES, intervals, strict=True)) for intervals in zip(*columns, strict=True)]
        verdicts, measured = self.verdict[wanted].tolist(), self.measured[wanted].tolist()
        return [
            Row(
                candidate=candidate,
                feasible=verdict == Verdict.FEASIBLE,
                infeasible_because=self.rules.because(verdict, candidate, forecast["memory_bytes"].high),
                measured=timed,
                forecast=forecast,
            )
            for candidate, verdict, timed, forecast in zip(candidates, verdicts, measured, forecasts, strict=True)
        ]

    def _intervals(self, name: str, places: Places) -> list[Interval]:
        band = self.bands.get(name)
        if band is None:
            return [UNKNOWN] * len(places)
        kind = int if name in _WHOLE else float
        found = band.take(places)
        triples = zip(found.value.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
        known = self.known[name][places].tolist()
        if name not in _REPEATING:
            return [_interval(kind, *each) if sure else UNKNOWN for each, sure in zip(triples, known, strict=True)]
        made: dict[tuple[float, float, float], Interval] = {}
        intervals = []
        for each, sure in zip(triples, known, strict=True):
            if sure and each not in made:
                made[each] = _interval(kind, *each)
            intervals.append(made[each] if sure else UNKNOWN)
        return intervals


class ColumnsBuilder:
    """Collects bands of some candidates after others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.bands: dict[str, Band] = {}
        self.known: dict[str, NDArray[np.bool_]] = {}

    def put(self, places: Places, bands: Mapping[str, Band]) -> None:
        """Write the bands of the candidates at some places."""
        for name, band in bands.items():
            if name not in self.bands:
                empty = (np.full(self._count, np.nan) for _ in range(3))
                self.bands[name] = Band(**dict(zip(("value", "low", "high"), empty, strict=True)))
                self.known[name] = np.zeros(self._count, dtype=np.bool_)
            own = self.bands[name]
            own.value[places], own.low[places], own.high[places] = band.value, band.low, band.high
            self.known[name][places] = True

    def high(self, name: str) -> NDArray[np.float64]:
        """Return the upper end of a quantity, NaN where it is unknown."""
        return self.bands[name].high if name in self.bands else np.full(self._count, np.nan)


def _interval(kind: type[int] | type[float], value: float, low: float, high: float) -> Interval:
    return Interval(value=kind(value), low=kind(low), high=kind(high))
