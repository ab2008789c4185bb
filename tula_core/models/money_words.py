"""The sentences that say what a forecast of cost and energy takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

from tula_core.job import Cluster, Job
from tula_core.models.cost import has_price, hourly_price, on_spot
from tula_core.records.power import MOST_DISAGREEMENT, STILL_SHARE, PowerUse
from tula_core.records.profile import Profile


def of_money(profile: Profile, job: Job) -> Iterator[str]:
    """Yield every assumption behind cost and energy, as plain sentences without a final full stop."""
    yield from _of_cost(job.cluster)
    yield from _of_power(profile, job.cluster)
    if job.cluster.electricity_usd_per_kwh is not None and not profile.power and job.cluster.power_watts is None:
        yield "electricity has a price and energy is unknown: so is the cost, node time is shown"
    if job.cluster.power_limits_w is not None:
        yield from _of_limits(profile, job.cluster)


def _of_cost(cluster: Cluster) -> Iterator[str]:
    if not has_price(cluster):
        yield "no price is given: cost is unknown, node time is shown"
    if cluster.electricity_usd_per_kwh is not None:
        beside = "" if hourly_price(cluster) is None else " beside the node time"
        yield f"electricity at {cluster.electricity_usd_per_kwh:g} USD per kWh is part of the cost{beside}"
    per_hour = cluster.spot_interruptions_per_hour
    if on_spot(cluster) and per_hour is None:
        yield "only a spot price is given: cost uses it and counts no interruption"
    elif on_spot(cluster):
        yield (
            f"spot nodes are taken away {per_hour:g} times per node and hour; the whole run then restarts from its "
            "last checkpoint. The time is a usual run's, its interval holds the waits for another node; node time, "
            "cost and energy are means over runs, without the waits of the absent node"
        )
    if cluster.spot_price_per_node_hour is not None and per_hour and cluster.spot_restart_seconds is None:
        yield "a spot node that is taken away is replaced at once: cluster.spot_restart_seconds sets how long it takes"


def _of_power(profile: Profile, cluster: Cluster) -> Iterator[str]:
    if profile.power:
        sources = " and ".join(dict.fromkeys(use.source for use in profile.power))
        yield f"power was measured by {sources}: what else the machine draws is not in the energy"
        if cluster.power_watts is not None:
            yield f"cluster.power_watts of {cluster.power_watts:g} W is not used where power was measured"
        yield from _of_disagreement(profile.power)
    elif cluster.power_watts is None:
        yield "no power meter could be read and power_watts is not given: energy is unknown"
    elif cluster.idle_power_watts is None:
        yield f"energy takes a node to draw {cluster.power_watts:g} W all the time, as the job says: no meter was read"
    else:
        yield (
            f"energy takes a node to draw {cluster.idle_power_watts:g} W idle and {cluster.power_watts:g} W with "
            "all its processes at work, as the job says: no meter was read"
        )


def _of_disagreement(power: tuple[PowerUse, ...]) -> Iterator[str]:
    worst = max(power, key=lambda use: use.disagreement or 0.0)
    if (worst.disagreement or 0.0) > MOST_DISAGREEMENT:
        assert worst.counter_w is not None and worst.integrated_w is not None
        still = worst.counter_w < STILL_SHARE * worst.integrated_w
        used = "the counter stands still and the samples are used" if still else "the counter is used"
        yield (
            f"two power meters disagree by up to {100 * (worst.disagreement or 0.0):.0f} %: the energy counter says "
            f"{worst.counter_w:.0f} W, samples of power say {worst.integrated_w:.0f} W; {used}"
        )


def _of_limits(profile: Profile, cluster: Cluster) -> Iterator[str]:
    if not any(use.limit_w is not None for use in profile.power):
        top = max(cluster.power_limits_w or (0.0,))
        yield f"the accelerator's present power limit could not be read: it is taken to be {top:g} W, the highest given"
    yield (
        "time and power under a power limit were not measured: they rest on a law of clock and power learnt from other "
        "devices, with its uncertainty"
    )
