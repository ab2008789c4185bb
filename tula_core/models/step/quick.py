"""The law of `tula_core.models.step.law` for many configurations: what depends on the placement is computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.law import index, parameters, slopes
from tula_core.models.step.time import Shapes, StepParameters, placement_terms

Array = NDArray[np.float64]

_OWN = [
    index(name)
    for name in (
        "exponent",
        "floor_sharpness",
        "overlap",
        "optimizer_s",
        "loader_s",
        "loader_slope_s",
        "loader_overlap",
    )
]  # the numbers that no placement's term holds


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Configurations of shape (n,) beside what the law says of their placements, computed once for each placement.

    Attributes
    ----------
    which
        The placement of each configuration, shape (n,).
    log_terms
        Logarithms of `PlacementTerms`, shape (4, placements).
    along
        Their slopes along directions of the fit's numbers, shape (4, directions, placements); None where not asked.
    """

    shapes: Shapes
    which: NDArray[np.intp]
    log_terms: Array
    along: Array | None

    @classmethod
    def of(cls, shapes: Shapes, theta: Array, directions: Array | None = None) -> Placed:
        """Return configurations with their placements, with slopes along the columns of ``directions`` (p, d)."""
        places, which = _placements(shapes)
        log_terms, moved = _log_terms(places, theta, slopes_too=directions is not None)
        along = None if directions is None else np.ascontiguousarray(np.swapaxes(moved @ directions, 1, 2))
        return cls(shapes=shapes, which=which, log_terms=log_terms, along=along)

    def part(self, block: slice) -> Placed:
        """Return some of the configurations."""
        return Placed(
            shapes=self.shapes.part(block), which=self.which[block], log_terms=self.log_terms, along=self.along
        )


def log_time_with_slopes(shapes: Shapes, theta: Array) -> tuple[Array, Array]:
    """Return ln(time) (n,) and its slopes (n, p): as `log_time` and `log_time_slopes`, quick for many configurations.

    What depends on the placement is computed once for each placement; the rest follows by the chain rule.
    """
    every = np.eye(len(theta))
    log_time, along = log_time_along(Placed.of(shapes, theta, every), theta, every)
    return log_time, along.T


def placed_log_time(placed: Placed, theta: Array) -> Array:
    """Return ln(time), shape (n,): as `log_time`, quick for many configurations."""
    return _chain(placed, parameters(theta)).total.log


def log_time_along(placed: Placed, theta: Array, directions: Array) -> tuple[Array, Array]:
    """Return ln(time) (n,) and its slopes along the columns of ``directions`` (p, d), shape (d, n).

    ``placed`` has to hold the slopes along the same directions.
    """
    assert placed.along is not None, "no slopes were asked for when the placements were computed"
    chain = _chain(placed, parameters(theta))
    found = directions[_OWN].T @ chain.by_own
    for weight, along in zip(chain.by_term, placed.along, strict=True):
        term = along.take(placed.which, axis=1)
        term *= weight
        found += term
    return chain.total.log, found


@dataclass(frozen=True, kw_only=True, slots=True)
class _SoftMaximum:
    """ln `soft_maximum` of two logarithms, the share of the first in it, and its slope by ln(p - 1), each (n,)."""

    log: Array
    share: Array
    sharper: Array

    @classmethod
    def of(cls, first: Array, second: Array, sharpness: Array | float) -> _SoftMaximum:
        large = np.maximum(first, second)
        one, other = sharpness * (first - large), sharpness * (second - large)
        left, right = np.exp(one), np.exp(other)
        share = left / (left + right)
        log_sum = np.log(left + right) / sharpness
        lever = (share * one + (1.0 - share) * other) / sharpness - log_sum
        return cls(log=large + log_sum, share=share, sharper=(sharpness - 1.0) / sharpness * lever)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chain:
    """The soft maxima of a step one within the other: a micro-batch, the last one with its network, all with loading.

    ``rest`` is the step without its loader, ``repeated`` and ``last`` the shares in it of the micro-batches before the
    last one and of the last one with what its network adds, ``optimizer`` that of the optimizer; each (n,).
    """

    placed: Placed
    parameters: StepParameters
    micro: _SoftMaximum
    sent: _SoftMaximum
    total: _SoftMaximum
    repeated: Array
    last: Array
    optimizer: Array
    loader: Array

    @property
    def by_term(self) -> Array:
        """Slopes of ln(time) by the logarithms of the placement's terms, shape (4, n)."""
        by_last = self.total.share * self.last
        by_micro = self._by_micro
        return np.stack(
            [
                by_micro * self.micro.share,
                by_micro * (1.0 - self.micro.share),
                by_last * self.sent.share,
                by_last * (1.0 - self.sent.share),
            ]
        )

    @property
    def by_own(self) -> Array:
        """Slopes of ln(time) by the numbers in `_OWN` that no placement's term holds, shape (7, n)."""
        p, shapes = self.parameters, self.placed.shapes
        loads = (1.0 - self.total.share) * shapes.accumulation / np.maximum(self.loader, 1e-300)
        return np.stack(
            [
                self._by_micro * (1.0 - self.micro.share) * np.log(shapes.local_batch),
                self._by_micro * self.micro.sharper,
                self.total.share * self.last * self.sent.sharper,
                self.total.share * self.optimizer,
                loads * p.loader_s,
                loads * p.loader_slope_s * shapes.local_batch,
                self.total.sharper,
            ]
        )

    @property
    def _by_micro(self) -> Array:
        return self.total.share * (self.repeated + self.last * self.sent.share)


def _chain(placed: Placed, p: StepParameters) -> _Chain:
    """Return the parts of a step from the terms of its placement, see `step_parts`."""
    shapes = placed.shapes
    floor, slope, waiting, network = placed.log_terms[:, placed.which]
    micro = _SoftMaximum.of(floor, slope + p.exponent * np.log(shapes.local_batch), p.floor_sharpness)
    sent = _SoftMaximum.of(micro.log + waiting, network, p.overlap)
    repeated, last = (shapes.accumulation - 1.0) * np.exp(micro.log), np.exp(sent.log)
    rest = repeated + last + p.optimizer_s
    loader = shapes.accumulation * (p.loader_s + p.loader_slope_s * shapes.local_batch)
    return _Chain(
        placed=placed,
        parameters=p,
        micro=micro,
        sent=sent,
        total=_SoftMaximum.of(np.log(rest), np.log(np.maximum(loader, 1e-300)), p.loader_overlap),
        repeated=repeated / rest,
        last=last / rest,
        optimizer=p.optimizer_s / rest,
        loader=loader,
    )


def _placements(shapes: Shapes) -> tuple[Shapes, NDArray[np.intp]]:
    """Return the different placements, with one sample each, and which of them every configuration has."""
    key = (shapes.nodes * 2.0**20 + shapes.processes_per_node) * 2.0**20 + shapes.fewest
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    one = np.ones(len(first))
    places = Shapes(
        nodes=shapes.nodes[first],
        processes_per_node=shapes.processes_per_node[first],
        fewest_per_node=shapes.fewest[first],
        local_batch=one,
        accumulation=one,
    )
    return places, which


def _log_terms(places: Shapes, theta: Array, *, slopes_too: bool) -> tuple[Array, Array]:
    """Return the logarithms of the placements' terms, shape (4, u), and their slopes, shape (4, u, p) or (4, u, 0)."""

    def log_terms(sets: Array) -> Array:
        terms = placement_terms(places, parameters(sets))
        columns = (terms.floor, terms.slope, terms.waiting, terms.network)
        alike = np.broadcast_arrays(*columns)
        return np.concatenate([np.log(np.clip(each, 1e-300, 1e300)) for each in alike], axis=-1)

    moved = slopes(log_terms, theta) if slopes_too else np.zeros((4 * len(places.nodes), 0))
    return log_terms(theta).reshape(4, -1), moved.reshape(4, len(places.nodes), -1)
