"""Learning-rate schedules as pure functions of the share of the run that is done.

Training, pilots and the accuracy model use these same functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError, nearest
from tula_core.registry import Registry

Array = NDArray[np.float64]


def constant(fraction: Array) -> Array:
    """Return 1 at every time."""
    return np.ones_like(fraction)


def linear(fraction: Array) -> Array:
    """Return 1 - f."""
    return 1.0 - fraction


def cosine(fraction: Array) -> Array:
    """Return (1 + cos(pi f))/2; Loshchilov and Hutter 2017, arXiv 1608.03983, eq. 5 with one cycle and eta_min = 0."""
    return np.asarray(0.5 * (1.0 + np.cos(np.pi * fraction)))


def step(fraction: Array) -> Array:
    """Return 1, a tenth from half of the run on, a hundredth from three quarters on (He et al. 2016, 1512.03385)."""
    return np.where(fraction < 0.5, 1.0, np.where(fraction < 0.75, 0.1, 0.01))


TRAPEZOID_STABLE = 0.6
"""Share of a trapezoid's length at its peak."""


def trapezoid(fraction: Array) -> Array:
    """Return 1 up to 60 % of the run, then a straight line down to 0; Haegele et al. 2024, arXiv 2405.18392, fig. 2."""
    return np.asarray(np.minimum(1.0, (1.0 - fraction) / (1.0 - TRAPEZOID_STABLE)))


SCHEDULES = Registry(
    "recipe.schedule",
    ("constant", constant),
    ("linear", linear),
    ("cosine", cosine),
    ("step", step),
    ("trapezoid", trapezoid),
)

_OF_ONE: Mapping[str, Callable[[float], float]] = {
    "constant": lambda fraction: 1.0,
    "linear": lambda fraction: 1.0 - fraction,
    "cosine": lambda fraction: 0.5 * (1.0 + math.cos(math.pi * fraction)),
    "step": lambda fraction: 1.0 if fraction < 0.5 else 0.1 if fraction < 0.75 else 0.01,
    "trapezoid": lambda fraction: min(1.0, (1.0 - fraction) / (1.0 - TRAPEZOID_STABLE)),
}
# The same equations for one number: training asks at every step, when the caches hold nothing of numpy.


def pilot_schedule(schedule: str) -> Literal["constant", "trapezoid"]:
    """Return the schedule of a short pilot of a recipe.

    Time and annealing act on the learning curve at once under a cosine, and a fit cannot tell them apart. A trapezoid
    shows time alone first, then annealing alone within a short time.
    """
    return "constant" if schedule == "constant" else "trapezoid"


@overload
def schedule_factor(schedule: str, fraction: float) -> float: ...
@overload
def schedule_factor(schedule: str, fraction: Array) -> Array: ...
def schedule_factor(schedule: str, fraction: float | Array) -> float | Array:
    """Return learning rate / peak learning rate after ``fraction`` of the run.

    Parameters
    ----------
    schedule
        A name in `SCHEDULES`.
    fraction
        Share of the planned samples that is done; clipped to [0, 1].

    Raises
    ------
    InputError
        The schedule is unknown or a fraction is not a number.

    >>> schedule_factor("cosine", 0.5)
    0.5
    """
    if isinstance(fraction, float | int) and schedule in _OF_ONE and not math.isnan(fraction):
        # One number at a time this is asked at every step, by the shortest way.
        return round(_OF_ONE[schedule](0.0 if fraction < 0.0 else 1.0 if fraction > 1.0 else float(fraction)), 15)
    if schedule not in SCHEDULES:
        raise InputError(f"recipe.schedule: {schedule!r} is unknown. {nearest(schedule, SCHEDULES)}")
    if np.isnan(fraction).any():
        raise InputError("fraction: is not a number. Give the share of the run that is done, 0 to 1.")
    return SCHEDULES[schedule](np.clip(fraction, 0.0, 1.0))


def annealing(schedule: str, fraction: Array) -> Array:
    """Return the annealing progress h = 1 - lr(f)/lr_peak: 0 at the peak, 1 when the rate has come down to nothing."""
    return 1.0 - schedule_factor(schedule, fraction)
