"""What search asks of a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tula_core.records import Candidate, ExpectedPoint, Row


class ForecastTable(Protocol):
    """Forecasts of candidates as arrays in their order, of which rows are made where they are wanted."""

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Where nothing stands against a candidate, whatever the job's limits are, shape (n,)."""
        ...

    def values(self, quantity: str, /) -> NDArray[np.float64]:
        """Return the values of one of `tula_core.records.QUANTITIES`, NaN where it is unknown, shape (n,)."""
        ...

    def expected(self, quantity: str, /) -> NDArray[np.float64]:
        """Return the means of a positive quantity, NaN where it is unknown, shape (n,)."""
        ...

    def rows(self, places: Sequence[int], /) -> list[Row]:
        """Return the rows at some places."""
        ...


class Forecasting(Protocol):
    """What gives rows for candidates."""

    def forecast(self, candidates: Sequence[Candidate], /) -> list[Row]:
        """Return one row per candidate, in order; only what is physically impossible comes back infeasible."""
        ...


class Forecaster(Forecasting, Protocol):
    """The fitted models behind one interface; search imports none of them."""

    @property
    def label(self) -> str:
        """Name and version, as a plan shows it."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Every assumption behind the forecasts, a sentence each."""
        ...

    def forecast_columns(self, candidates: Sequence[Candidate], /) -> ForecastTable:
        """Return what `forecast` does as arrays, many times faster where few rows are made of them."""
        ...

    def max_local_batch(
        self,
        nodes: int,
        processes_per_node: int,
        limit_bytes: int,
        precision: str | None = None,
        mitigation: Sequence[str] = (),
        /,
    ) -> int | None:
        """Return the largest local batch whose upper memory bound fits the limit; None where memory is unknown.

        ``precision`` is another than the recipe's, None for that; what the methods of ``mitigation`` keep counts.
        """
        ...

    def reach_probability(self, candidate: Candidate, /) -> float | None:
        """Return the chance that the job's target is reached within its epochs; None where it cannot be said."""
        ...

    def keeping_probability(self, candidate: Candidate, reference: Candidate, slack: float, /) -> float | None:
        """Return the chance that a metric is at most ``slack`` worse than the reference's; None where unknown."""
        ...

    def expected_curve(self, candidate: Candidate, /) -> Sequence[ExpectedPoint] | None:
        """Return the metric expected at the end of each epoch, None where it is unknown."""
        ...

    def on_spot(self, candidate: Candidate, /) -> Row | None:
        """Return the forecast on spot nodes, interruptions counted; None where they cannot be compared."""
        ...
