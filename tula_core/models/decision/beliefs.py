"""From a step-time model to beliefs about what a choice is made of: step time x steps to train.

The number of steps by batch size is a law here and no forecast: a probe decides what to time next before it knows more.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tula_core.models.decision.information import Belief
from tula_core.models.learning.convergence import steps_to_target
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

_OCTAVES = {"local_batch": 3.0, "processes_per_node": 2.0, "nodes": 2.0, "accumulation": 3.0}
"""Doublings over which the error of a forecast is still shared to 1/e; what is measured depends little on them."""


class StepTimes(Protocol):
    """What is asked of a step-time model."""

    def predict(self, shapes: Shapes, /) -> tuple[Array, Array]:
        """Return mean seconds of a step and their log standard deviation, each of shape (n,)."""
        ...


def log_steps(global_batch: Array, critical_batch: float) -> Array:
    """Return the logarithm of the steps to a target, up to a constant, by the law of `steps_to_target`.

    Without a target the epochs are given and steps fall as 1/B for ever; the law then stands for the accuracy that ever
    larger batches lose.

    Parameters
    ----------
    global_batch
        B, samples of one step, shape (n,).
    critical_batch
        B_crit, samples.
    """
    return np.asarray(np.log(steps_to_target(global_batch, 1.0, critical_batch)))


def step_belief(model: StepTimes, shapes: Shapes, log_weight: Array) -> Belief:
    """Return the belief about ln(step time) + ``log_weight`` of each configuration, shape (n,).

    The least log standard deviation among them is taken as what no measurement takes away, the drift between measuring
    and training, and left out. Errors of two configurations are correlated as exp(-distance), by the octaves between
    them; empirical, as a model tells how sure it is of each but not of both.
    """
    mean_s, log_sd = model.predict(shapes)
    open_sd = np.sqrt(np.maximum(log_sd**2 - log_sd.min() ** 2, 0.0))
    return Belief(mean=np.log(mean_s) + log_weight, covariance=_correlation(shapes) * np.outer(open_sd, open_sd))


def _correlation(shapes: Shapes) -> Array:
    distance = np.zeros((len(shapes.nodes), len(shapes.nodes)))
    for name, octaves in _OCTAVES.items():
        column = np.log2(getattr(shapes, name))
        distance += np.abs(column[:, None] - column[None, :]) / octaves
    return np.exp(-distance)
