"""What a measurement is worth to a choice: expected regret, and how much of it measuring takes away.

The choice is the candidate with the least objective value, a time or a cost. Beliefs are about its logarithm, so that
every gain is a share: 0.01 is one per cent. A belief is a joint normal distribution with ``mean`` of shape (n,) and
``covariance`` of shape (n, n), and holds only what measuring can find out, not what changes between measuring and the
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tula_core.models.inference.fitting import standard_draws

Array = NDArray[np.float64]

DRAWS = 512
_NODES = 64
_QUANTILES = ndtri((np.arange(_NODES) + 0.5) / _NODES)
_REACH = 2.5  # standard deviations, just beyond the outermost of the quantiles
_FAR_REACH = 4.0  # what a draw hardly exceeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Belief:
    """Joint normal belief about the logarithm of each candidate's objective value."""

    mean: Array
    covariance: Array

    @classmethod
    def independent(cls, mean: Sequence[float] | Array, sd: Sequence[float] | Array) -> Belief:
        """Return a belief in which measuring one candidate says nothing of another."""
        return cls(mean=np.asarray(mean, dtype=float), covariance=np.diag(np.asarray(sd, dtype=float) ** 2))

    @property
    def best(self) -> int:
        """The candidate that would be chosen now; of equal ones the first."""
        return int(self.mean.argmin())

    def of(self, members: Sequence[int] | NDArray[np.intp]) -> Belief:
        """Return the belief about some of the candidates."""
        chosen = np.asarray(members, dtype=np.intp)
        return Belief(mean=self.mean[chosen], covariance=self.covariance[np.ix_(chosen, chosen)])


def contenders(belief: Belief, reach: float = _REACH) -> NDArray[np.intp]:
    """Return the candidates that can be the best if each moves by up to ``reach`` standard deviations.

    The rest cannot change a choice; they are left out to save time.
    """
    moved = reach * np.sqrt(np.maximum(np.diag(belief.covariance), 0.0))
    return np.flatnonzero(belief.mean - moved <= np.min(belief.mean + moved))


def expected_regret(belief: Belief, seed: int = 0) -> float:
    """Return E[X_best - min_i X_i], the value of knowing everything: at least that of any measurement.

    Raiffa and Schlaifer 1961, Applied Statistical Decision Theory, section 4.5 (expected value of perfect information),
    for a loss that is linear in the logarithm. Computed with the same `DRAWS` draws for the same arguments.
    """
    near = belief.of(contenders(belief, reach=_FAR_REACH))
    values, vectors = np.linalg.eigh(near.covariance)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    drawn = near.mean + standard_draws(DRAWS, len(near.mean), seed) @ root.T
    return float(np.mean(drawn[:, near.best] - drawn.min(axis=1)))


def knowledge_gradient(belief: Belief, options: Sequence[int] | NDArray[np.intp], noise_sd: float | Array) -> Array:
    """Return by how much measuring each option once lowers the expected objective of the choice, shape (options,).

    min_i mu_i - E[min_i (mu_i + s_i(j) Z)] with s(j) = C_j / sqrt(C_jj + noise^2): Frazier, Powell and Dayanik 2009,
    INFORMS J. Computing 21(4), sections 2 and 3, for a minimum. Their sum over the envelope of lines is replaced by the
    mean over 64 quantiles of Z, so that a gain which shows in less than one case in 64 counts as none.

    Parameters
    ----------
    options
        Candidates that can be measured.
    noise_sd
        Standard deviation of one measurement's logarithm, one for all or of shape (options,).
    """
    chosen = np.asarray(options, dtype=np.intp)
    near = contenders(belief)
    total = np.sqrt(np.maximum(belief.covariance[chosen, chosen] + np.square(noise_sd), 1e-300))
    moves = belief.covariance[np.ix_(chosen, near)] / total[:, None]
    least = np.min(belief.mean[near] + moves[:, None, :] * _QUANTILES[None, :, None], axis=2).mean(axis=1)
    return np.asarray(np.maximum(belief.mean.min() - least, 0.0))


def gain_of_all(belief: Belief, options: Sequence[int], noise_sd: float, seed: int = 0) -> float:
    """Return by how much measuring all ``options`` together lowers the expected objective of the choice.

    The same as `knowledge_gradient` for a set: mu moves by C_S (C_SS + noise^2)^(-1/2) Z. Gains do not add up: two
    measurements may tell the same, and two may be needed to change the choice at all.
    """
    chosen = np.asarray(options, dtype=np.intp)
    columns = belief.covariance[:, chosen]
    inner = belief.covariance[np.ix_(chosen, chosen)] + noise_sd**2 * np.eye(len(chosen))
    values, vectors = np.linalg.eigh(inner)
    root = vectors / np.sqrt(np.maximum(values, 1e-300))
    moved = belief.mean + standard_draws(DRAWS, len(chosen), seed) @ (columns @ root).T
    return float(max(belief.mean.min() - moved.min(axis=1).mean(), 0.0))


def measured(belief: Belief, option: int, log_value: float, noise_sd: float) -> Belief:
    """Return the belief after ``option`` was measured: the normal posterior (Frazier et al. 2009, section 2)."""
    column = belief.covariance[:, option]
    total = max(float(column[option]) + noise_sd**2, 1e-300)
    return Belief(
        mean=belief.mean + column * ((log_value - belief.mean[option]) / total),
        covariance=belief.covariance - np.outer(column, column) / total,
    )
