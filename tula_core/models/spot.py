"""Time on spot nodes that may be taken away: restarts from checkpoints, expected and drawn.

A job needs all its nodes, so the loss of one stops it: with n nodes it is stopped at the rate n x that of one. It then
waits for another node, starts, and goes on from its last checkpoint. The start may be interrupted like any other work;
while it waits nothing is lost by another interruption.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]

_MOST_EXPONENT = 50.0  # e^50 segments are for ever already, and stay finite
_HOPELESS = 7.0  # e^7 is a thousand tries for each segment
_FEW = 10.0
_MOST_MEAN = 1e6  # interruptions from which their number is as good as certain


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """How a run is interrupted; arrays of shape (n,).

    Attributes
    ----------
    rate_per_s
        Of the whole job: nodes x rate of one node.
    segment_s
        From one checkpoint to the next, the writing of one included.
    restart_s
        From the launch of the processes to the first new step.
    wait_s
        From an interruption until another node is there.
    """

    rate_per_s: Array
    segment_s: Array
    restart_s: Array
    wait_s: Array = field(default_factory=lambda: np.zeros(1))

    def paid(self, nodes: Array) -> Interruptions:
        """Return the same with the waits that are paid for: of n nodes the absent one costs nothing."""
        return replace(self, wait_s=self.wait_s * (1.0 - 1.0 / nodes))

    def part(self, block: slice) -> Interruptions:
        """Return the same for a part of the runs."""
        return Interruptions(**{name: getattr(self, name)[block] for name in Interruptions.__slots__})

    @property
    def hopeless(self) -> NDArray[np.bool_]:
        """Where hardly any start and segment are left alone, so that a run would not end, shape (n,)."""
        return np.asarray(self.rate_per_s * (self.segment_s + self.restart_s) > _HOPELESS)


def expected_time_s(run_s: Array, with_rate: Interruptions) -> Array:
    """Return the expected seconds of a run that takes ``run_s`` when nothing interrupts it.

    E[T] = sum over segments of e^(L R) (e^(L s) - 1) / L: the mean of a Poisson process of rate L that has to leave a
    segment of s seconds alone, every failure costing a restart of R that may fail too (J. T. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006: the total wall-clock time for
    exponential interrupts), and a wait W for each of the L x that expected interruptions. The last segment may be
    shorter. L = 0 gives ``run_s``, exactly.

    Parameters
    ----------
    run_s
        Seconds from launch to end, checkpoints included; shape (..., n).
    """
    return np.asarray(_busy_s(run_s, with_rate) + expected_interruptions(run_s, with_rate) * with_rate.wait_s)


def expected_interruptions(run_s: Array, with_rate: Interruptions) -> Array:
    """Return the expected number of interruptions, L x E[T] without waits: starts are interrupted like other work."""
    return np.asarray(with_rate.rate_per_s * _busy_s(run_s, with_rate))


def interruptions_of(time_s: Array, with_rate: Interruptions) -> Array:
    """Return the expected number of interruptions of a run that took ``time_s`` in all, L x time / (1 + L W)."""
    return np.asarray(with_rate.rate_per_s * time_s / (1.0 + with_rate.rate_per_s * with_rate.wait_s))


def drawn_time_s(run_s: Array, with_rate: Interruptions, chance: Array, within: Array) -> Array:
    """Return draws of the seconds of a run, with the mean of `expected_time_s`.

    The number of interruptions is Poisson's, and each loses a wait, a restart and a uniform part of a segment, their
    sum being taken as normal; what is lost again during restarts is a factor that gives the exact mean.

    Parameters
    ----------
    run_s
        Uninterrupted seconds, shape (draws, n).
    chance, within
        Draws that are uniform in (0, 1), and standard normal; shape (draws, 1) each, the same for every configuration,
        so that comparisons are not blurred by chance.
    """
    mean = np.minimum(with_rate.rate_per_s * run_s, _MOST_MEAN)
    count = poisson_quantile(mean, chance)
    each_s = with_rate.restart_s + with_rate.segment_s / 2
    lost_s = np.maximum(count * each_s + np.sqrt(count / 12) * with_rate.segment_s * within, 0.0)
    wanted_s = _busy_s(run_s, with_rate) - run_s
    usual_s = np.maximum(mean * each_s, 1e-300)
    waited_s = count * with_rate.wait_s * expected_interruptions(run_s, with_rate) / np.maximum(mean, 1e-300)
    return np.asarray(run_s + np.where(mean > 0, lost_s * wanted_s / usual_s + waited_s, 0.0))


def poisson_quantile(mean: Array, chance: Array) -> Array:
    """Return the smallest k with P(N <= k) >= chance, exactly up to a mean of ten.

    Above it by the expansion of Cornish and Fisher (Abramowitz and Stegun, 26.2.49) to the skewness: mean +
    sqrt(mean) z + (z^2 - 1)/6, rounded. Many times faster than an inverse of the incomplete gamma function.
    """
    small = np.minimum(mean, _FEW)
    term = np.exp(-small)
    below, count, k = term.copy(), np.zeros_like(term), 0
    while (missing := below < chance).any() and k < 20 * _FEW:
        k += 1
        count += missing
        term = term * small / k
        below += term
    z = ndtri(chance)
    return np.where(mean <= _FEW, count, np.maximum(np.round(mean + np.sqrt(mean) * z + (z**2 - 1) / 6), 0.0))


def _busy_s(run_s: Array, with_rate: Interruptions) -> Array:
    """Return the expected seconds in which nodes are there: starts and work, lost work included."""
    whole = np.floor(run_s / with_rate.segment_s)
    rest_s = np.maximum(run_s - whole * with_rate.segment_s, 0.0)
    segments_s = whole * _segment_s(with_rate.segment_s, with_rate) + _segment_s(rest_s, with_rate)
    return np.asarray(np.where(with_rate.rate_per_s > 0, np.maximum(segments_s, run_s), run_s))


def _segment_s(seconds: Array, with_rate: Interruptions) -> Array:
    expected = np.clip(with_rate.rate_per_s * seconds, 1e-12, _MOST_EXPONENT)
    restarts = np.minimum(with_rate.rate_per_s * with_rate.restart_s, _MOST_EXPONENT)
    return np.asarray(np.exp(restarts) * seconds * np.expm1(expected) / expected)
