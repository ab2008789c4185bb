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


class StepTimes(Protocol):
    """What is asked of a step-time model."""

    def joint(self, shapes: Shapes, /) -> tuple[Array, Array]:
        """Return the mean of ln(seconds) of a step, shape (n,), and the covariance of what measuring tells, (n, n)."""
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

    Errors go together as the model's own posterior has them: what two configurations owe to the same law, placement or
    batch they are wrong about alike, and what a configuration has of its own tells nothing of its neighbours, so that
    among many one may always be better than forecast. What no measurement takes away, the drift between measuring and
    training, is not among them.
    """
    mean, covariance = model.joint(shapes)
    return Belief(mean=mean + log_weight, covariance=covariance)
