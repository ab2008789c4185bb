"""Which learning rate to try next, and what the runs so far show.

Rates lie on one lattice, four to a decade, so that two tests of one job try the same ones. The first pass goes a
decade at a time with one seed, and on until the best is between two others; then all seeds try ever finer places around
it, and further ones as long as the best may be at an end. The order is empirical; the result is that of `find_rate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tula_core.models.learning.rate_range import (
    FEWEST_RATES,
    FEWEST_SEEDS,
    TAIL,
    Array,
    RateRange,
    chances_of_ends,
    find_rate,
    gains,
    likely_optima,
)

PER_DECADE = 4
LOWEST, HIGHEST = -7 * PER_DECADE, 2 * PER_DECADE  # 1e-7 to 100; beyond lies a fault, and no rate
_FIRST_SGD, _FIRST_ADAPTIVE = (-12, -8, -4, 0), (-16, -12, -8, -4)
_MIDDLE = 2  # lattice steps between rates of the second pass
_WIDEST = 3 * PER_DECADE  # of the block that all seeds try


def rate_at(index: int) -> float:
    """Return the rate at a place of the lattice.

    >>> [round(rate_at(index), 4) for index in (-4, -3, -2, -1, 0)]
    [0.1, 0.1778, 0.3162, 0.5623, 1.0]
    """
    return float(10.0 ** (index / PER_DECADE))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """The runs so far: losses by place of the lattice, one for each seed in order; and the untrained networks'."""

    losses: Mapping[int, Sequence[float]]
    initial: Sequence[float]
    seeds: int

    def complete(self, seeds: int | None = None) -> list[int]:
        """Return the places that so many seeds have tried, by default all, ascending."""
        return sorted(index for index, tried in self.losses.items() if len(tried) >= (seeds or self.seeds))

    @property
    def seeds_used(self) -> int:
        """How many seeds the result rests on: fewer than all where the time ended before all had tried enough rates."""
        enough = (count for count in range(self.seeds, FEWEST_SEEDS, -1) if len(self.complete(count)) >= FEWEST_RATES)
        return next(enough, min(FEWEST_SEEDS, self.seeds))

    def table(self) -> tuple[list[float], list[list[float]]]:
        """Return the rates that the seeds used have tried, ascending, and their losses, one list for each seed."""
        places = self.complete(self.seeds_used)
        return [rate_at(index) for index in places], [
            [self.losses[index][seed] for index in places] for seed in range(self.seeds_used)
        ]

    def result(self, longer: str = "Give probe.seconds more") -> RateRange:
        """Return what they show; ``longer`` as `find_rate` takes it."""
        rates, losses = self.table()
        return find_rate(rates, losses, list(self.initial)[: self.seeds_used], longer=longer)

    def scores(self, places: Sequence[int], seeds: int) -> Array:
        """Return the gains of the first ``seeds`` at ``places``, shape ``(seeds, places)``."""
        losses = np.array([[self.losses[index][seed] for index in places] for seed in range(seeds)])
        return gains(losses, np.asarray(self.initial[:seeds]))


def next_place(trials: Trials, *, adaptive: bool) -> int | None:
    """Return the place of the lattice to try next, with the first seed that has not tried it; None when done.

    Parameters
    ----------
    adaptive
        Whether the optimizer is of Adam's kind, whose rates lie lower.
    """
    first = _FIRST_ADAPTIVE if adaptive else _FIRST_SGD
    waiting = next((index for index in first if index not in trials.losses), None)
    if waiting is not None:
        return waiting
    if not np.all(np.isfinite(trials.initial)):
        return None
    coarse = sorted(index for index in trials.losses if index % PER_DECADE == 0)
    single = trials.scores(coarse, 1)[0]
    centre = coarse[int(single.argmin())]
    if not trials.complete() and (outer := _outer(coarse, centre, PER_DECADE)) is not None:
        return outer
    if single.min() >= 0.0:
        return None
    return _finer(trials, centre)


def _outer(tried: Sequence[int], best: int, step: int) -> int | None:
    """Return the place beyond an end of what was tried where the best is that end; None elsewhere."""
    if best == tried[-1] and best + step <= HIGHEST:
        return best + step
    return best - step if best == tried[0] and best - step >= LOWEST else None


def _finer(trials: Trials, centre: int) -> int | None:
    """Return the next place of the passes in which all seeds take part; two of them go first, should the time end."""
    for step in (_MIDDLE, 1):
        for seeds in dict.fromkeys((min(FEWEST_SEEDS, trials.seeds), trials.seeds)):
            if (index := _beside_best(trials, centre, step, seeds)) is not None:
                return index
    complete = trials.complete()
    if complete[-1] - complete[0] >= _WIDEST:
        return None
    log_rates = np.log([rate_at(index) for index in complete])
    draws = likely_optima(log_rates, trials.scores(complete, trials.seeds))
    for end, chance in chances_of_ends(log_rates, draws):
        index = complete[end] + (-1 if end == 0 else 1)
        if chance > TAIL and LOWEST <= index <= HIGHEST:
            return index
    return None


def _beside_best(trials: Trials, centre: int, step: int, seeds: int) -> int | None:
    """Return a place, ``step`` from the best of the first ``seeds`` seeds, that they have not all tried."""
    complete = trials.complete(seeds)
    if centre not in complete:
        return centre
    places = [index for index in complete if (index - centre) % step == 0]
    best = places[int(trials.scores(places, seeds).mean(axis=0).argmin())]
    beside = (index for index in (best - step, best + step) if index not in complete and LOWEST <= index <= HIGHEST)
    return next(beside, None)
