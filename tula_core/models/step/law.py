"""From the numbers that a fit moves to the parameters of the equations, and the slopes of ln(time) by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.time import Shapes, StepParameters, StepParts, placement_terms, step_parts

Array = NDArray[np.float64]

TIMES = (
    "floor_s",
    "slope_s",
    "inside_fixed_s",
    "inside_size_s",
    "between_fixed_s",
    "between_size_s",
    "optimizer_s",
    "loader_s",
    "loader_slope_s",
)
"""Parameters in seconds: the fit moves their logarithms."""

SHARP = ("floor_sharpness", "overlap", "loader_overlap")
"""Parameters that are at least 1: the fit moves ln(p - 1)."""

POSITIVE = ("saturation", "straggling")
"""Parameters above 0 without a unit: the fit moves their logarithms."""

NAMES = tuple(StepParameters.__dataclass_fields__)
"""The order of the fit's numbers."""

_LOG = np.array([name in TIMES or name in SHARP or name in POSITIVE for name in NAMES])
_PLUS = np.array([1.0 if name in SHARP else 0.0 for name in NAMES])
_WIDTH = 1e-4


def index(name: str) -> int:
    """Return the place of a parameter."""
    return NAMES.index(name)


def parameters(theta: Array) -> StepParameters:
    """Return the parameters of the equations for the fit's numbers, shape (p,), or for m sets of them, shape (m, p)."""
    bounded = np.clip(theta, -300.0, 300.0)
    values = np.where(_LOG, np.exp(np.where(_LOG, bounded, 0.0)), bounded) + _PLUS
    if theta.ndim == 1:
        return StepParameters(**dict(zip(NAMES, values.tolist(), strict=True)))
    return StepParameters(**{name: values[:, place, None] for place, name in enumerate(NAMES)})


def parts(shapes: Shapes, theta: Array) -> StepParts:
    """Return the parts of a step for the fit's numbers, each of shape (n,) or (m, n)."""
    return step_parts(shapes, parameters(theta))


def log_total(found: StepParts) -> Array:
    """Return ln(seconds) of a step from its parts, bounded where a search strays."""
    return np.log(np.clip(found.total, 1e-300, 1e300))


def log_time(shapes: Shapes, theta: Array) -> Array:
    """Return ln(seconds) of a step, shape (n,) or (m, n)."""
    return log_total(parts(shapes, theta))


def slopes(function: Callable[[Array], Array], theta: Array) -> Array:
    """Return central differences by theta of a function from (m, p) to (m, n), shape (n, p)."""
    moves = _WIDTH * np.eye(len(theta))
    both = function(np.concatenate([theta + moves, theta - moves]))
    return np.asarray((both[: len(theta)] - both[len(theta) :]).T / (2 * _WIDTH))


def log_time_slopes(shapes: Shapes, theta: Array) -> Array:
    """Return the slopes of ln(time) by the fit's numbers, shape (n, p)."""
    return slopes(lambda sets: log_time(shapes, sets), theta)


def log_time_with_slopes(shapes: Shapes, theta: Array) -> tuple[Array, Array]:
    """Return ln(time) (n,) and its slopes (n, p): as `log_time` and `log_time_slopes`, quick for many configurations.

    What depends on the placement is computed once for each placement; the rest follows by the chain rule.
    """
    p = parameters(theta)
    places, which = _placements(shapes)
    (floor, slope, waiting, network), moved = _log_terms(places, theta)
    log_batch, more = np.log(shapes.local_batch), shapes.accumulation - 1.0
    scaled = slope[which] + p.exponent * log_batch
    micro, share, sharper = _log_soft_maximum(floor[which], scaled, p.floor_sharpness)
    by_micro = share[:, None] * moved[0][which] + (1.0 - share)[:, None] * moved[1][which]
    by_micro[:, index("exponent")] += (1.0 - share) * log_batch
    by_micro[:, index("floor_sharpness")] += sharper
    last, share, sharper = _log_soft_maximum(micro + waiting[which], network[which], p.overlap)
    by_last = share[:, None] * (by_micro + moved[2][which]) + (1.0 - share)[:, None] * moved[3][which]
    by_last[:, index("overlap")] += sharper
    rest = more * np.exp(micro) + np.exp(last) + p.optimizer_s
    by_rest = (more * np.exp(micro) / rest)[:, None] * by_micro + (np.exp(last) / rest)[:, None] * by_last
    by_rest[:, index("optimizer_s")] += p.optimizer_s / rest
    loader = shapes.accumulation * (p.loader_s + p.loader_slope_s * shapes.local_batch)
    total, share, sharper = _log_soft_maximum(np.log(rest), np.log(np.maximum(loader, 1e-300)), p.loader_overlap)
    found = share[:, None] * by_rest
    loads = (1.0 - share) * shapes.accumulation / np.maximum(loader, 1e-300)
    found[:, index("loader_s")] += loads * p.loader_s
    found[:, index("loader_slope_s")] += loads * p.loader_slope_s * shapes.local_batch
    found[:, index("loader_overlap")] += sharper
    return total, found


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


def _log_terms(places: Shapes, theta: Array) -> tuple[Array, Array]:
    """Return the logarithms of the placements' terms, shape (4, u), and their slopes, shape (4, u, p)."""

    def log_terms(sets: Array) -> Array:
        terms = placement_terms(places, parameters(sets))
        columns = (terms.floor, terms.slope, terms.waiting, terms.network)
        alike = np.broadcast_arrays(*columns)
        return np.concatenate([np.log(np.clip(each, 1e-300, 1e300)) for each in alike], axis=-1)

    count = len(places.nodes)
    return log_terms(theta).reshape(4, count), slopes(log_terms, theta).reshape(4, count, len(theta))


def _log_soft_maximum(first: Array, second: Array, sharpness: Array | float) -> tuple[Array, Array, Array]:
    """Return ln `soft_maximum` of two logarithms, the share of the first in it, and its slope by ln(p - 1)."""
    large = np.maximum(first, second)
    left, right = np.exp(sharpness * (first - large)), np.exp(sharpness * (second - large))
    share = left / (left + right)
    log_sum = np.log(left + right)
    lever = share * (first - large) + (1.0 - share) * (second - large) - log_sum / sharpness
    return large + log_sum / sharpness, share, (sharpness - 1.0) / sharpness * lever
