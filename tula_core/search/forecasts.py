"""`Forecasts`: a large grid forecast at once as arrays, with rows made only of the candidates that are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tula_core.records import Candidate, Row
from tula_core.search.constraints import Judged
from tula_core.search.forecaster import Forecaster
from tula_core.search.objective import NOISE
from tula_core.search.space import key

Numbers = NDArray[np.float64]

NEAR = 2 * NOISE
"""Candidates that no other beats by more than this share in both time and expense are near the front."""
MOST_STAGED = 1500
"""Up to this many candidates with stages are forecast beforehand: a second or two."""
MOST_NEAR = 512
"""At most this many candidates are judged on the way to a front of those that keep every limit."""


class Forecasts:
    """Forecasts of the candidates of a grid, and of any other, as `Forecaster.forecast` gives them.

    Candidates that go through stages take many times longer than others: they are forecast beforehand only where there
    are few of them, and else where they are asked for.

    Parameters
    ----------
    predictor
        What forecasts.
    grid
        Candidates, in the order of the table.
    """

    def __init__(self, predictor: Forecaster, grid: Sequence[Candidate]) -> None:
        self._predictor = predictor
        staged = sum(candidate.stages is not None for candidate in grid)
        every = staged <= MOST_STAGED
        self._known = [candidate for candidate in grid if every or candidate.stages is None]
        self._complete = len(self._known) == len(grid)
        self._place = {key(candidate): place for place, candidate in enumerate(self._known)}
        self._columns = predictor.forecast_columns(self._known)

    def forecast(self, candidates: Sequence[Candidate], /) -> list[Row]:
        """Return one row for each candidate, in their order."""
        places = [self._place_of(candidate) for candidate in candidates]
        others = [candidate for candidate, place in zip(candidates, places, strict=True) if place is None]
        made = iter(self._columns.rows([place for place in places if place is not None]))
        asked = iter(self._predictor.forecast(others) if others else ())
        return [next(asked if place is None else made) for place in places]

    def near_front(
        self, evaluate: Callable[[Sequence[Candidate]], list[Judged]], expenses: Sequence[str]
    ) -> list[Judged]:
        """Return judged candidates: the fronts of those forecast beforehand that keep every limit, and what is near.

        One front is that of the values, one that of the means: an objective compares means, to which a forecast that is
        less sure adds more.

        Of each the front of all is judged first; what breaks a limit is left out, and the front of the rest is looked
        at, until every candidate near it keeps every limit or `MOST_NEAR` were judged. Those that were left out are
        returned too: a plan says why they are.

        Parameters
        ----------
        evaluate
            Forecasts and judges candidates, in order.
        expenses
            Quantities that are weighed against time, two fronts for each.
        """
        judged: dict[int, Judged] = {}
        for expense in expenses:
            for of in (self._columns.values, self._columns.expected):
                self._look(evaluate, of("time_to_train_s"), of(expense), judged)
                if not any(item.row.feasible for item in judged.values()):
                    break
        return list(judged.values())

    def _look(
        self,
        evaluate: Callable[[Sequence[Candidate]], list[Judged]],
        times: Numbers,
        spent: Numbers,
        judged: dict[int, Judged],
    ) -> None:
        most = len(judged) + MOST_NEAR
        left = np.flatnonzero(self._columns.feasible & (times > 0) & (spent > 0))
        while True:
            left = left[[place not in judged or judged[place].row.feasible for place in left.tolist()]]
            near = left[near_the_front(times[left], spent[left])].tolist()
            fresh = [place for place in near if place not in judged][: most - len(judged)]
            if not fresh:
                break
            found = evaluate([self._known[place] for place in fresh])
            judged |= dict(zip(fresh, found, strict=True))

    @property
    def complete(self) -> bool:
        """Whether the whole grid was forecast beforehand, so that `near_front` has the front of all of it."""
        return self._complete

    def _place_of(self, candidate: Candidate) -> int | None:
        place = self._place.get(key(candidate))
        return place if place is not None and self._known[place] == candidate else None


def near_the_front(times_s: Numbers, expenses: Numbers) -> NDArray[np.intp]:
    """Return the indices of points that no other beats by more than `NEAR` on both axes, the best placed first.

    A point is the better placed the less time one that costs no more would save.

    Parameters
    ----------
    times_s, expenses
        Positive, shape ``(n,)``.
    """
    order = np.argsort(expenses, kind="stable")
    fastest = np.concatenate([[np.inf], np.minimum.accumulate(times_s[order])])
    far, beside = (
        fastest[np.searchsorted(expenses[order], expenses / factor, side="right")] for factor in (1.0 + NEAR, 1.0)
    )
    near = np.flatnonzero(times_s <= far * (1.0 + NEAR))
    return near[np.argsort(times_s[near] / beside[near], kind="stable")]
