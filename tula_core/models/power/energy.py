"""Energy from the power of a node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def energy_j(nodes: Array, wall_s: Array, power_watts: Array | float) -> Array:
    """Return nodes x mean power of a node x seconds: J = integral of P dt at constant power.

    Parameters
    ----------
    nodes
        Nodes that run for the whole time.
    wall_s
        Seconds from launch to end.
    power_watts
        Mean power of one node.
    """
    return np.asarray(nodes * wall_s * power_watts)
