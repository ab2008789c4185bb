"""The step time of training with methods against lost accuracy, from that of plain steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

UNNOTICED = 0.05
"""A step whose methods add no more than this share is as good as measured."""
_SURENESS = 0.5  # sd of ln(cost) over itself: what a method really costs depends on network and device


class PlainSteps(Protocol):
    """What forecasts plain steps."""

    def predict(self, shapes: Shapes, /) -> tuple[Array, Array]:
        """Return mean seconds of a steady step and their log standard deviation, each of shape (n,)."""
        ...

    def seconds(self, shapes: Shapes, /) -> Array:
        """Return the seconds of `predict` alone, shape (n,)."""
        ...


def predict_with_methods(steps: PlainSteps, shapes: Shapes, cost: float) -> tuple[Array, Array]:
    """Return mean seconds of a step and their log sd: step + (cost - 1) x the step of one process.

    What more processes add to a step is communication, which a method repeats in no known way and which stays as it
    is. The standard deviation of ln(cost) is half of ln(cost). Empirical.

    Parameters
    ----------
    cost
        Computation of a step over that of a plain one; 1 gives the plain step, exactly.
    """
    seconds, log_sd = steps.predict(shapes)
    if cost == 1.0:
        return seconds, log_sd
    computed_s = _computed_s(steps, shapes, seconds)
    total = seconds + (cost - 1.0) * computed_s
    return total, np.hypot(log_sd, _SURENESS * abs(math.log(cost)) * cost * computed_s / total)


def seconds_with_methods(steps: PlainSteps, shapes: Shapes, cost: float) -> Array:
    """Return the seconds of `predict_with_methods` alone, shape (n,)."""
    seconds = steps.seconds(shapes)
    return seconds if cost == 1.0 else seconds + (cost - 1.0) * _computed_s(steps, shapes, seconds)


def _computed_s(steps: PlainSteps, shapes: Shapes, seconds: Array) -> Array:
    """Return how much of a step is computation: what one process takes, at most all of it."""
    one = np.ones_like(shapes.nodes)
    alone = dataclasses.replace(shapes, nodes=one, processes_per_node=one)
    return np.minimum(steps.seconds(alone), seconds)
