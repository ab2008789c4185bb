"""A learning rate and its interval from short runs at several rates with several seeds, or the reason to give none.

Each run starts from the initial weights of its seed and ends with a loss over held-out samples. What is compared is
always the same seed's start, batches and held-out samples at different rates, so that neither smoothing nor the luck of
one batch enters. Rates lie on one lattice, four to a decade; a decade at a time with one seed first, then ever finer
with all seeds. The rules are empirical; the two-way residuals are those of Tukey 1949, doi 10.2307/3001938.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

FEWEST_SEEDS, FEWEST_RATES = 2, 3
MOST_RATIO = 10.0  # of the interval's ends; wider, and the test has found nothing
_NEAR = 0.5  # of the best gain: rates with less do not say how sure the best is
_STEEPEST = 3.0  # of a rise against the one on the other side
_SMALLEST = 1e-6  # loss that is told apart, of the untrained network's
MOST_EXPONENT = 1 / 3  # of the length of a run, by which its best rate falls
_LEAST_GAIN = 0.02  # of the initial loss, or its natural logarithm
TAIL = 0.05  # of the 90 % interval
_MOST_BEYOND = 0.25  # chance that the best is at an end of what was tried
_DRAWS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class RateRange:
    """A rate with its 90 % interval; None where ``refused`` says why there is none."""

    rate: float | None
    low: float | None
    high: float | None
    refused: str = ""


def gains(losses: Array, initial: Array) -> Array:
    """Return how far each run's loss is from that of its untrained network: 0 where nothing was gained, else below.

    The difference of logarithms where no loss is negative, as a run's last losses count in proportion, down to a
    millionth of the first; else the plain difference. What is not finite or worse than untrained is no gain.

    Parameters
    ----------
    losses
        Shape ``(seeds, rates)``.
    initial
        Of the untrained networks, finite, shape ``(seeds,)``.
    """
    start = initial[:, None]
    kept = np.minimum(np.where(np.isfinite(losses), losses, start), start)
    if np.any(kept < 0) or np.any(start <= 0):
        return np.asarray(kept - start)
    return np.asarray(np.log(np.maximum(kept, _SMALLEST * start) / start))


def optimum(log_rates: Array, scores: Array) -> Array:
    """Return where each row's least score lies, by a parabola through it and its neighbours; an end stays an end.

    Shapes: ``(rates,)`` ascending, ``(rows, rates)``; the result is ``(rows,)``, between the neighbours' midpoints.
    """
    best = scores.argmin(axis=1)
    inner = np.clip(best, 1, max(scores.shape[1] - 2, 1))
    if scores.shape[1] < 3:
        return np.asarray(log_rates[best])
    rows = np.arange(len(scores))
    at, left, right = log_rates[inner], log_rates[inner - 1], log_rates[inner + 1]
    rise_left, rise_right = scores[rows, inner - 1] - scores[rows, inner], scores[rows, inner + 1] - scores[rows, inner]
    a, b = at - left, right - at
    # One wall, where runs diverge, says little of where between the neighbours the best is.
    rise_left, rise_right = np.minimum(rise_left, _STEEPEST * rise_right), np.minimum(rise_right, _STEEPEST * rise_left)
    # The vertex of the parabola through (-a, rise_left), (0, 0), (b, rise_right).
    below = 2.0 * (b * rise_left + a * rise_right)
    shift = (b * b * rise_left - a * a * rise_right) / np.where(below > 0, below, np.inf)
    return np.asarray(np.where(inner == best, at + np.clip(shift, -a / 2, b / 2), log_rates[best]))


def scatter(scores: Array) -> tuple[float, float]:
    """Return the standard deviation of one run's score and its degrees of freedom, from rates near the best.

    What is left of the scores once each seed's and each rate's mean is taken away: a seed that is better at every rate
    says nothing against the best one. Shape ``(seeds, rates)``.
    """
    means = scores.mean(axis=0)
    near = scores[:, means <= _NEAR * means.min()]
    seeds, rates = near.shape
    if rates < 2:
        return float(near.std(ddof=1)), float(seeds - 1)
    left = near - near.mean(axis=0) - near.mean(axis=1, keepdims=True) + near.mean()
    freedom = (seeds - 1) * (rates - 1)
    return float(np.sqrt(np.sum(left**2) / freedom)), float(freedom)


def likely_optima(log_rates: Array, scores: Array) -> Array:
    """Return optima of mean scores as other seeds might have given them, ascending, shape ``(draws,)``.

    A parametric bootstrap of the means with the scatter's own uncertainty; the same arguments give the same draws.
    """
    spread, freedom = scatter(scores)
    random = np.random.default_rng(0)
    scale = np.sqrt(freedom / random.chisquare(freedom, (_DRAWS, 1)))
    noise = random.standard_normal((_DRAWS, scores.shape[1])) * scale * spread / np.sqrt(len(scores))
    return np.sort(optimum(log_rates, scores.mean(axis=0) + noise))


def find_rate(
    rates: Sequence[float],
    losses: Sequence[Sequence[float]],
    initial: Sequence[float],
    *,
    longer: str = "Give probe.seconds more",
) -> RateRange:
    """Return the rate with its interval, or why there is none.

    Parameters
    ----------
    rates
        Ascending, shape ``(rates,)``.
    losses
        Over held-out samples after each run, NaN where it diverged; shape ``(seeds, rates)``.
    initial
        Of the untrained networks, shape ``(seeds,)``.
    longer
        The advice where longer runs would tell more, without a final full stop.
    """
    if not np.all(np.isfinite(initial)):
        return _refused("the loss of the untrained network is not finite. Mend the network, the loss or the data")
    if len(initial) < FEWEST_SEEDS or len(rates) < FEWEST_RATES:
        return _refused(f"there was not the time for two seeds at three rates. {longer}")
    log_rates, scores = np.log(np.asarray(rates)), gains(np.asarray(losses, dtype=float), np.asarray(initial))
    if not _gained(scores):
        return _refused(
            f"no rate from {rates[0]:.2g} to {rates[-1]:.2g} makes the loss over held-out samples fall for certain. "
            f"{longer}, so that runs are longer, or look into the data"
        )
    draws = likely_optima(log_rates, scores)
    best = float(np.median(draws))
    for end, chance in chances_of_ends(log_rates, draws):
        if chance > _MOST_BEYOND or int(scores.mean(axis=0).argmin()) == end % len(rates):
            where = "below" if end == 0 else "above"
            return _refused(f"the best rate may lie {where} {rates[end]:.2g}, which was the last tried. {longer}")
    low, high = _interval(log_rates, scores, draws)
    if high / low > MOST_RATIO:
        return _refused(
            f"the {len(initial)} seeds disagree: the best rate may be anything from {low:.2g} to {high:.2g}. "
            f"{longer}, so that runs are longer"
        )
    return RateRange(rate=float(np.exp(best)), low=low, high=high)


def for_longer_runs(found: RateRange, times: float) -> RateRange:
    """Return what was found in short runs, for runs ``times`` as long whose schedule is as much longer.

    The law is that of Bjorck et al. 2024, arXiv 2409.19913: the best rate is B D^-beta in the samples D of a run. Its
    exponent is empirical: reports go from none to about a third, so it is taken as even between the two, as an error
    that is independent of the test's own. A refusal stays one.
    """
    if found.rate is None or found.low is None or found.high is None or times <= 1:
        return found
    rate = found.rate * times ** (-MOST_EXPONENT / 2)
    wide = (0.5 - TAIL) * MOST_EXPONENT * np.log(times)
    below, above = np.hypot(np.log(found.rate / found.low), wide), np.hypot(np.log(found.high / found.rate), wide)
    return RateRange(rate=rate, low=float(rate * np.exp(-below)), high=float(rate * np.exp(above)))


def _refused(why: str) -> RateRange:
    return RateRange(rate=None, low=None, high=None, refused=why)


def _gained(scores: Array) -> bool:
    """Return whether the best rate's gain is above nothing by more than chance, one-sided at 5 %."""
    best = -scores[:, int(scores.mean(axis=0).argmin())]
    error = best.std(ddof=1) / np.sqrt(len(best))
    return bool(best.mean() - stats.t.ppf(1 - TAIL, len(best) - 1) * error > 0 and best.mean() > _LEAST_GAIN)


def chances_of_ends(log_rates: Array, draws: Array) -> list[tuple[int, float]]:
    """Return the chance that the best is at the first rate tried, and at the last."""
    return [(end, float(np.mean(draws == log_rates[end]))) for end in (0, -1)]


def _interval(log_rates: Array, scores: Array, draws: Array) -> tuple[float, float]:
    """Return the 90 % interval of the draws and what lies between the rates tried: half the way to the neighbours.

    To one with less than half of the best gain it is the whole way: where a rate begins to diverge was not seen.
    """
    means = scores.mean(axis=0)
    at = int(np.clip(means.argmin(), 1, len(means) - 2))
    shares = [1.0 if means[side] > _NEAR * means.min() else 0.5 for side in (at - 1, at + 1)]
    below, above = shares[0] * (log_rates[at] - log_rates[at - 1]), shares[1] * (log_rates[at + 1] - log_rates[at])
    low, high = np.quantile(draws, [TAIL, 1 - TAIL])
    for end, chance in chances_of_ends(log_rates, draws):
        if chance > TAIL:  # what lies beyond was not tried
            below, above = (2 * below, above) if end == 0 else (below, 2 * above)
    return float(np.exp(low - below)), float(np.exp(high + above))
