"""The clock of an accelerator under a power limit: what it draws at a clock, and the clock that a budget allows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CORNER = 6.0  # how sharply the voltage leaves its floor; empirical
_SLOWEST = 0.1  # of the full clock: what the slowest state of recent accelerators is near
_HALVINGS = 20  # of the bracket of ln(clock): exact to two millionths
_LEAST_SHARE = 0.02  # of the highest limit: a controller never starves the chip of all dynamic power


def dynamic_share(clock: Array, voltage_floor: Array) -> Array:
    """Return dynamic power relative to that at the full clock: f V(f)^2 / V(1)^2, V(f) = max(floor, f) rounded off.

    P = C V^2 f of switched CMOS logic (Chandrakasan, Sheng, Brodersen, "Low-power CMOS digital design", JSSC 1992,
    eq. 1). That the voltage follows the clock above a floor is empirical: power then falls with the cube of the clock
    at first, and only in proportion to it below the floor.

    Parameters
    ----------
    clock
        f, relative to the full clock, in (0, 1].
    voltage_floor
        Lowest voltage relative to that at the full clock, in (0, 1).
    """
    voltage = (voltage_floor**_CORNER + clock**_CORNER) ** (1 / _CORNER)
    return np.asarray(clock * voltage**2 / (voltage_floor**_CORNER + 1.0) ** (2 / _CORNER))


def power_budget_w(limit_w: Array, demand_w: Array, static_w: Array, sharpness: Array, top_w: Array | float) -> Array:
    """Return the mean power that a limit allows: static + (room^-n + (demand - static)^-n)^(-1/n).

    room = limit - static. A smooth minimum of limit and demand, because power fluctuates: the limit cuts its peaks
    while the mean is still below it. Empirical.

    Parameters
    ----------
    limit_w, demand_w
        Power limit, and mean power at the full clock.
    static_w
        What is drawn whatever the clock does.
    sharpness
        n > 0; large for a steady load.
    top_w
        The highest limit, the scale below which no room can fall.
    """
    room = np.maximum(limit_w - static_w, _LEAST_SHARE * top_w)
    wanted = np.maximum(demand_w - static_w, 1e-9 * top_w)
    least = np.minimum(room, wanted)
    return np.asarray(
        static_w + least * ((least / room) ** sharpness + (least / wanted) ** sharpness) ** (-1 / sharpness)
    )


def clock_within(power_w: Callable[[Array], Array], budget_w: Array) -> Array:
    """Return the highest relative clock at which power keeps a budget, at least the slowest there is.

    Parameters
    ----------
    power_w
        Mean power at a clock, of the budget's shape; rises with the clock.
    budget_w
        The power allowed.
    """
    low, high = np.full_like(budget_w, np.log(_SLOWEST)), np.zeros_like(budget_w)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = power_w(np.exp(middle)) > budget_w
        high, low = np.where(over, middle, high), np.where(over, low, middle)
    # The upper end: where the full clock keeps the budget it is the answer, exactly.
    return np.asarray(np.exp(high))
