"""Node hours and money from nodes, time, price and billing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError
from tula_core.job import Cluster

Array = NDArray[np.float64]


def hourly_price(cluster: Cluster) -> float | None:
    """Return the USD of a node's hour that forecasts and outcomes count: the firm price, else the spot price."""
    return cluster.price_per_node_hour or cluster.spot_price_per_node_hour


def node_hours(nodes: Array, wall_s: Array) -> Array:
    """Return nodes x seconds / 3600: what is used, before billing rounds it up."""
    return np.asarray(nodes * wall_s / 3600.0)


def billed_s(wall_s: Array, billing_s: float) -> Array:
    """Return the seconds that are billed: the next multiple of the billing quantum, of each node.

    A quantum below a second is still exact to a part in 10^9, so that 60.0000000001 s are not billed as two minutes.

    Raises
    ------
    InputError
        The quantum is not positive.
    """
    if not billing_s > 0:
        raise InputError(f"cluster.billing_seconds: must be above 0, got {billing_s!r}. Leave it out for 1 second.")
    return np.asarray(np.ceil(wall_s / billing_s * (1.0 - 1e-9)) * billing_s)


def cost_usd(nodes: Array, wall_s: Array, price_per_node_hour: float, billing_s: float) -> Array:
    """Return nodes x price x billed seconds / 3600.

    Parameters
    ----------
    nodes
        Nodes that are paid for from launch to end.
    wall_s
        Seconds from launch to end, start-up included.
    price_per_node_hour
        USD.
    billing_s
        Quantum to which each node's time is rounded up.
    """
    return node_hours(nodes, billed_s(wall_s, billing_s)) * price_per_node_hour
