"""`Fitted`: a step-time law that was fitted, and what it predicts: universal kriging around its mode.

Rasmussen and Williams 2006, section 2.7, eq. 2.41 and 2.42.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from tula_core.models.blocks import in_blocks
from tula_core.models.step.misfit import (
    FoundAmplitudes,
    covariance,
    cross_covariance,
    joint_covariance,
    octaves,
    same,
)
from tula_core.models.step.quick import Placed, log_time_along, placed_log_time
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

OUTLYING_ROWS = 10.0
"""So many rows without any outlying one are taken for granted when the next one's chance is counted."""

_BLOCK = 2048  # configurations at once: what a core keeps near itself


@dataclass(frozen=True, kw_only=True, slots=True)
class _Carried:
    """What the measurements say of configurations.

    The mean of ln(time) (n,), what they explain of the misfit (m, n), what they leave of the law's slopes along some
    directions (d, n), the variance of each configuration that it shares with none (n,), the doubt of the misfit's
    amplitudes (n,).
    """

    mean: Array
    white: Array
    apart: Array
    alone: Array
    doubt: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """The measurements made independent by ``inverse``, that of their factor, (m, m).

    Their residuals (m,), and the law's slopes at them along some directions (m, d).
    """

    inverse: Array
    residual: Array
    slopes: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A fitted law: the mode and covariance of its numbers, and what kriging needs of the measurements."""

    mode: Array
    covariance: Array
    amplitudes: FoundAmplitudes
    places: Array
    outlying: Array
    contradicting: Array
    residual: Array
    slopes: Array
    factor: Array

    def predict(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return the mean of ln(time) and its variance (the law's and the misfit's, noise left out), shapes (n,)."""
        # The square of slopes times a root is their form in the covariance.
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        placed, seen_by = Placed.of(shapes, self.mode, root), self._seen(root)
        shared = np.exp(2.0 * self.amplitudes.log_sd[:-1]).sum()

        def both(block: slice) -> tuple[Array, Array]:
            seen = self._carried(placed.part(block), root, seen_by)
            return seen.mean, shared + seen.alone + seen.doubt - _squares(seen.white) + _squares(seen.apart)

        mean, variance = _joined(in_blocks(both, len(shapes.nodes), _BLOCK))
        return mean, np.maximum(variance, 0.0)

    def mean(self, shapes: Shapes) -> Array:
        """Return the mean of ln(time), shape (n,), as `predict` and several times faster."""
        placed, inverse = Placed.of(shapes, self.mode), self._inverse()
        pull = inverse.T @ (inverse @ self.residual)

        def one(block: slice) -> tuple[Array]:
            part = placed.part(block)
            places = octaves(part.shapes)
            cross = covariance(self.places, places, self.amplitudes.log_sd)
            if self.outlying.any():
                cross = cross + self._outlying_cross(same(self.places, places))
            return (placed_log_time(part, self.mode) + pull @ cross,)

        return _joined(in_blocks(one, len(shapes.nodes), _BLOCK))[0]

    def joint(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return the mean of ln(time), shape (n,), and its covariance (n, n), whose diagonal is that of `predict`.

        Rasmussen and Williams 2006, eq. 2.42: what configurations share of the law's error and of the misfit's they
        are wrong about together.
        """
        every = np.eye(len(self.mode))
        seen = self._carried(Placed.of(shapes, self.mode, every), every, self._seen(every))
        shared = joint_covariance(octaves(shapes), self.places, self.amplitudes)
        explained = seen.white.T @ seen.white - seen.apart.T @ self.covariance @ seen.apart
        return seen.mean, shared + np.diag(seen.alone) - explained

    def _inverse(self) -> Array:
        """Return the inverse of the factor: a product with it is many times faster than to solve for a few rows."""
        return np.asarray(solve_triangular(self.factor, np.eye(len(self.factor)), lower=True, check_finite=False))

    def _seen(self, directions: Array) -> _Seen:
        """Return the measurements without what they share, for slopes along the columns of ``directions``."""
        inverse = self._inverse()
        return _Seen(inverse=inverse, residual=inverse @ self.residual, slopes=inverse @ self.slopes @ directions)

    def _carried(self, placed: Placed, directions: Array, seen: _Seen) -> _Carried:
        """Return what the measurements say of configurations, with slopes along the columns of ``directions``."""
        places = octaves(placed.shapes)
        log_time, slopes = log_time_along(placed, self.mode, directions)
        cross, doubt = cross_covariance(self.places, places, self.amplitudes)
        alone = np.zeros(len(places))
        if self.outlying.any() or self.contradicting.any():
            alike = same(self.places, places)
            cross, alone = cross + self._outlying_cross(alike), self._alone(alike)
        white = seen.inverse @ cross
        return _Carried(
            mean=log_time + seen.residual @ white,
            white=white,
            apart=slopes - seen.slopes.T @ white,
            alone=alone,
            doubt=doubt,
        )

    def _outlying_cross(self, alike: NDArray[np.bool_]) -> Array:
        """Return what a configuration shares with rows that were measured at it and lie off, shape (m, n)."""
        there = np.where(alike, self.outlying[:, None], 0.0).max(axis=0)
        return np.asarray(alike * np.sqrt(there) * np.sqrt(self.outlying)[:, None])

    def _alone(self, alike: NDArray[np.bool_]) -> Array:
        """Return the variance of each configuration that it shares with none, shape (n,)."""
        # A configuration that was not measured may be off as often as measured ones were.
        chance = self.outlying.sum() / (len(self.outlying) + OUTLYING_ROWS)
        # What contradicts itself where it was measured is as doubtful there, and in the mean elsewhere.
        everywhere = self.contradicting.sum() / (len(self.contradicting) + OUTLYING_ROWS)
        own = [np.where(alike, each[:, None], 0.0).max(axis=0) for each in (self.outlying, self.contradicting)]
        return np.asarray(np.where(alike.any(axis=0), own[0] + own[1], chance + everywhere))

    @property
    def noise_variance(self) -> float:
        """Expected variance of ln(measured mean) from one time to the next."""
        return float(np.exp(2.0 * (self.amplitudes.log_sd[-1] + self.amplitudes.sd[-1] ** 2)))


def _squares(columns: Array) -> Array:
    return np.asarray(np.einsum("dn,dn->n", columns, columns))


def _joined(blocks: Sequence[tuple[Array, ...]]) -> list[Array]:
    """Return the columns of blocks one after the other."""
    return [np.concatenate(columns) for columns in zip(*blocks, strict=True)]
