"""From the numbers that a fit moves to the parameters of the equations, and the slopes of ln(time) by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.time import Shapes, StepParameters, StepParts, step_parts

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
