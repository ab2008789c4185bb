"""Energy and money of the launches of a run: one reckoning for every end of it, told by itself or found later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tula_core.job import Cluster
from tula_core.models.cost import cost_usd, electricity_usd, hourly_price
from tula_core.models.power.energy import energy_j
from tula_core.models.power.node import fit_node_power
from tula_core.tracking.spent import attempt_folder, attempt_layout, part_energy, part_seconds, parts_of

_LEAST_SHARE = 0.5  # of a launch's time that has to be metered for the rest to be taken as alike


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch of a run: how many nodes for how long, and what meters read, joules in seconds."""

    nodes: int
    processes_per_node: int
    seconds: float
    metered: tuple[float, float] | None


def launches(run_folder: Path, attempts: int, nodes: int, processes_per_node: int) -> list[Launch]:
    """Return the launches of the first ``attempts`` attempts, from what their workers left.

    Parameters
    ----------
    nodes, processes_per_node
        What a launch had that says nothing of it.
    """
    found = []
    for number in range(1, attempts + 1):
        for part in parts_of(attempt_folder(run_folder, number)):
            layout = attempt_layout(part) or (nodes, processes_per_node)
            found.append(
                Launch(
                    nodes=int(layout[0]),
                    processes_per_node=int(layout[1]),
                    seconds=part_seconds(part),
                    metered=part_energy(part),
                )
            )
    return found


def metered_j(run: Sequence[Launch]) -> float | None:
    """Return the metered joules of all launches, None where one was metered for less than half of its time.

    The start of the processes is not metered: the mean power of a launch is taken to hold for all of its time.
    """
    joules = [_whole(launch) for launch in run if launch.seconds > 0]
    return None if not joules or None in joules else float(sum(part or 0.0 for part in joules))


def launches_usd(run: Sequence[Launch], cluster: Cluster, local_batch: int) -> float | None:
    """Return what the launches cost, each rounded up by itself, None where a price or the energy is unknown.

    Electricity that was not metered is billed by the power that the job states; what is not known is not free.
    """
    price, electricity = hourly_price(cluster), cluster.electricity_usd_per_kwh
    used = [launch for launch in run if launch.seconds > 0]
    if price is None and electricity is None:
        return None
    bill = 0.0
    if price is not None:
        nodes, seconds = np.array([launch.nodes for launch in used]), np.array([launch.seconds for launch in used])
        bill += float(cost_usd(nodes, seconds, price, cluster.billing_seconds).sum())
    if electricity is not None:
        metered = metered_j(used)
        drawn = _stated_j(used, cluster, local_batch) if metered is None else metered
        if drawn is None:
            return None
        bill += float(electricity_usd(drawn, electricity))
    return bill


def _whole(launch: Launch) -> float | None:
    if launch.metered is None or launch.metered[1] < _LEAST_SHARE * launch.seconds:
        return None
    joules, seconds = launch.metered
    return joules * max(launch.seconds / seconds, 1.0)


def _stated_j(used: Sequence[Launch], cluster: Cluster, local_batch: int) -> float | None:
    """Return the joules by the job's own figures, None where it has none."""
    power = fit_node_power((), (), cluster)
    if not power.known:
        return None
    processes = np.array([float(launch.processes_per_node) for launch in used])
    watts, _ = power.watts(processes, np.full(len(used), float(local_batch)))
    nodes, seconds = (np.array([float(getattr(launch, name)) for launch in used]) for name in ("nodes", "seconds"))
    return float(energy_j(nodes, seconds, watts).sum())
