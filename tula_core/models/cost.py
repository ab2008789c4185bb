"""Money, node-hours and carbon from nodes, time, energy, prices and billing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError
from tula_core.job import Cluster

Array = NDArray[np.float64]

JOULES_PER_KWH = 3.6e6


def hourly_price(cluster: Cluster) -> float | None:
    """Return the USD of a node's hour that forecasts and outcomes count: the firm price, else the spot price."""
    return cluster.price_per_node_hour or cluster.spot_price_per_node_hour


def on_spot(cluster: Cluster) -> bool:
    """Return whether forecasts count spot nodes: where only a spot price is given."""
    return cluster.price_per_node_hour is None and cluster.spot_price_per_node_hour is not None


def has_price(cluster: Cluster) -> bool:
    """Return whether a run on this cluster costs anything that can be counted: node-hours or electricity."""
    return hourly_price(cluster) is not None or cluster.electricity_usd_per_kwh is not None


def node_hours(nodes: Array, wall_s: Array) -> Array:
    """Return nodes x seconds / 3600: what is used, before billing rounds it up."""
    return np.asarray(nodes * wall_s / 3600.0)


def billed_s(wall_s: Array, billing_s: float, attempts: Array | float = 1.0) -> Array:
    """Return the seconds that are billed: the next multiple of the billing quantum, of each node and attempt.

    The end of each attempt before the last falls anywhere in a quantum, and adds half of one on average. A quantum
    below a second is still exact to a part in 10^9, so that 60.0000000001 s are not billed as two minutes.

    Parameters
    ----------
    wall_s
        Seconds from launch to end, all attempts together.
    billing_s
        Quantum to which a node's time is rounded up.
    attempts
        How often the nodes are taken, expected, at least 1.

    Raises
    ------
    InputError
        The quantum is not positive.
    """
    if not billing_s > 0:
        raise InputError(f"cluster.billing_seconds: must be above 0, got {billing_s!r}. Leave it out for 1 second.")
    last = np.ceil(wall_s / billing_s * (1.0 - 1e-9)) * billing_s
    return np.asarray(last + (np.maximum(attempts, 1.0) - 1.0) * billing_s / 2.0)


def cost_usd(
    nodes: Array, wall_s: Array, price_per_node_hour: float, billing_s: float, attempts: Array | float = 1.0
) -> Array:
    """Return nodes x price x billed seconds / 3600.

    Parameters
    ----------
    nodes
        Nodes that are paid for from launch to end.
    wall_s
        Seconds from launch to end, start-up included.
    price_per_node_hour
        USD.
    billing_s, attempts
        See `billed_s`.
    """
    return node_hours(nodes, billed_s(wall_s, billing_s, attempts)) * price_per_node_hour


def electricity_usd(energy_j: Array | float, usd_per_kwh: float) -> Array:
    """Return joules / 3.6e6 x USD per kWh."""
    return np.asarray(np.asarray(energy_j) / JOULES_PER_KWH * usd_per_kwh)


def carbon_g(energy_j: Array | float, g_per_kwh: float) -> Array:
    """Return joules / 3.6e6 x grams of CO2 equivalent per kWh, the grid's intensity as the job states it."""
    return np.asarray(np.asarray(energy_j) / JOULES_PER_KWH * g_per_kwh)


def bill_usd(
    cluster: Cluster, nodes: Array, wall_s: Array, energy_j: Array | None, attempts: Array | float = 1.0
) -> Array | None:
    """Return node-hours at their price plus electricity at its own; None where a price is not given or energy unknown.

    Electricity is paid by who owns the machine: a job that gives its price and no price of a node-hour counts nothing
    else.
    """
    price, electricity = hourly_price(cluster), cluster.electricity_usd_per_kwh
    if (price is None and electricity is None) or (electricity is not None and energy_j is None):
        return None
    bill = np.zeros_like(np.asarray(wall_s, dtype=float) * nodes)
    if price is not None:
        bill = bill + cost_usd(nodes, wall_s, price, cluster.billing_seconds, attempts)
    if electricity is not None and energy_j is not None:
        bill = bill + electricity_usd(energy_j, electricity)
    return bill
