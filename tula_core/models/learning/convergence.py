"""Equations of learning, all pure: samples, steps and accuracy by batch size.

S is optimizer steps, E samples to the same point of learning, B the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.learning.work import log_relative_work

Array = NDArray[np.float64]

_CAP_SHARPNESS = 4.0


def examples_to_target(batch: Array, least_examples: float, critical_batch: float) -> Array:
    """Return E(B) = E_min (1 + B/B_crit), linear in B; McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11.

    Parameters
    ----------
    batch
        Global batch in samples, positive.
    least_examples
        E_min, samples needed as B goes to 0.
    critical_batch
        B_crit = E_min/S_min, samples, positive.
    """
    return np.asarray(least_examples * (1.0 + batch / critical_batch))


def steps_to_target(batch: Array, least_steps: float, critical_batch: float) -> Array:
    """Return S(B) = S_min (1 + B_crit/B); McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11.

    With `examples_to_target` it obeys (S/S_min - 1)(E/E_min - 1) = 1, and E = B S.
    """
    return np.asarray(least_steps * (1.0 + critical_batch / batch))


def effective_steps(
    samples: Array,
    batch: Array,
    critical_batch: Array | float,
    sharpness: Array | float = 1.0,
    growth: Array | float = 1.0,
) -> Array:
    """Return E/(B_crit r(B)): steps of a batch so large that noise plays no part which learn as much.

    r(B) = E(B)/E_min is `tula_core.models.learning.work.log_relative_work`. At sharpness = growth = 1 this is
    E/(B + B_crit), S_min of S(B) = S_min (1 + B_crit/B) (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11).
    """
    return np.asarray(samples * np.exp(-log_handicap(batch, critical_batch, sharpness, growth)))


def log_handicap(
    batch: Array,
    critical_batch: Array | float,
    sharpness: Array | float,
    growth: Array | float,
    log_raised: Array | float = 0.0,
) -> Array:
    """Return ln(B_crit r(B)), ln(B + B_crit) at sharpness = growth = 1: samples for one effective step.

    Parameters
    ----------
    log_raised
        ln of a factor on B_crit that leaves the work of small batches as it is: r is that of the raised B_crit.
    """
    log_critical = np.log(np.asarray(critical_batch, dtype=float))
    relative = log_relative_work(np.log(batch), log_critical + log_raised, np.asarray(sharpness), np.asarray(growth))
    return np.asarray(log_critical + relative)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Parameters of `log_gap`; numbers, or arrays that broadcast.

    ``log_scale`` is ln of the reducible gap at ``pivot_steps`` effective steps with the rate at its peak; ``power`` the
    exponent c; ``critical_batch``, ``sharpness`` and ``growth`` are those of `log_handicap`; ``anneal`` -ln(rho) >= 0,
    the gain of bringing the rate down; ``floor`` the gap that training cannot remove; ``chance_gap`` that of a guess.
    """

    log_scale: Array
    power: Array
    critical_batch: Array
    sharpness: Array
    growth: Array
    anneal: Array
    floor: Array
    pivot_steps: float
    chance_gap: float


def reducible_log_gap(curve: Curve, log_effective_steps: Array, annealing: Array) -> Array:
    """Return ln a - c ln(x/x_pivot) - anneal h, before the cap at chance.

    Power-law learning curves: Hestness et al. 2017, arXiv 1712.00409, eq. 1; the annealing term is empirical: the gap
    falls by the factor rho = exp(-anneal) as the rate comes down from its peak (h = 0) to nothing (h = 1).
    """
    return np.asarray(
        curve.log_scale - curve.power * (log_effective_steps - np.log(curve.pivot_steps)) - curve.anneal * annealing
    )


def total_gap(reducible_log: Array, floor: Array, chance_gap: float) -> Array:
    """Return floor + soft minimum(reducible gap, chance gap - floor): never above chance, never below the floor.

    The irreducible term is that of Hestness et al. 2017, arXiv 1712.00409, eq. 1.
    """
    room = np.maximum(chance_gap - floor, 1e-12)
    power = _CAP_SHARPNESS
    ratio = np.exp(np.clip(power * (reducible_log - np.log(room)), -700.0, 700.0))
    return np.asarray(floor + room * (ratio / (1.0 + ratio)) ** (1.0 / power))


def reducible_log_of(gap: Array, floor: Array, chance_gap: float) -> Array:
    """Return the ln of the reducible gap at which `total_gap` is ``gap``: its inverse.

    -inf where ``gap`` is at or below the floor (never reached), +inf at or above chance (reached at once).
    """
    room = np.maximum(chance_gap - floor, 1e-12)
    share = np.clip((gap - floor) / room, 0.0, 1.0) ** _CAP_SHARPNESS
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(room) + (np.log(share) - np.log1p(-share)) / _CAP_SHARPNESS)
