"""The energy of a run: metered in the workers, put together over attempts in the parent, and the bill that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tula_core.engine.power.find import present_limit_w
from tula_core.errors import InputError
from tula_core.models.cost import billed_s, electricity_usd, hourly_price
from tula_core.models.power.energy import energy_j
from tula_core.models.power.node import fit_node_power
from tula_core.tracking.spent import attempt_energy, attempt_folder, attempt_seconds

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext
    from tula_core.training.run import Attempt

_LEAST_SHARE = 0.5  # of an attempt's time that has to be metered for the rest to be taken as alike
_SAME_W = 1.0


def check_power_limit(context: WorkerContext, wanted_w: float | None) -> str | None:
    """Return what to warn of where the present power limit cannot be read; None where nothing is to be said.

    Raises
    ------
    InputError
        The plan's row has another limit than the one in force: it is set by an administrator, never by Tula.
    """
    if wanted_w is None:
        return None
    present_w = present_limit_w(context)
    if present_w is None:
        return f"the row trains under a power limit of {wanted_w:g} W, but the present limit could not be read"
    if abs(present_w - wanted_w) > _SAME_W:
        raise InputError(
            f"power_limit_w: the row trains under {wanted_w:g} W, now {present_w:g} W is in force. Set it on each "
            f"accelerator with: sudo nvidia-smi --power-limit={wanted_w:g}, or choose a row without a limit."
        )
    return None


def with_energy(
    actual: Mapping[str, float | None], attempt: Attempt, final: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return a run's figures with its metered energy and the bill of each attempt by itself.

    Electricity that was not metered is billed by the power that the job states; the energy itself stays unknown then.
    The start of the processes is not metered: the mean power of an attempt is taken to hold for all of its time. An
    attempt that was metered for less than half of it makes the energy unknown, not small.
    """
    figures, cluster, nodes = dict(actual), attempt.plan.job.cluster, attempt.row.candidate.nodes
    folders = [attempt_folder(attempt.folder, number) for number in range(1, attempt.number)]
    earlier_s = [attempt_seconds(folder) for folder in folders]
    spans_s = [*earlier_s, max((figures["time_to_train_s"] or 0.0) - sum(earlier_s), 0.0)]
    told = [*(attempt_energy(folder) for folder in folders), _own(final) or attempt_energy(attempt.task_folder)]
    joules = [_whole(metered, span) for metered, span in zip(told, spans_s, strict=True) if span > 0]
    figures["energy_j"] = None if not joules or None in joules else float(sum(part or 0.0 for part in joules))
    price, electricity, cost = hourly_price(cluster), cluster.electricity_usd_per_kwh, figures["cost_usd"]
    if price is not None and cost is not None:
        apart = sum(float(billed_s(np.array(span), cluster.billing_seconds)) for span in spans_s)
        together = float(billed_s(np.array(sum(spans_s)), cluster.billing_seconds))
        cost += nodes * price * (apart - together) / 3600.0
    if electricity is not None:
        # Electricity that is not known is not free.
        energy = figures["energy_j"]
        drawn = _stated_j(attempt, sum(spans_s)) if energy is None else energy
        base = 0.0 if price is None else cost
        cost = None if drawn is None or base is None else base + float(electricity_usd(drawn, electricity))
    return {**figures, "cost_usd": cost}


def _stated_j(attempt: Attempt, seconds: float) -> float | None:
    """Return the joules by the job's own figures, None where it has none."""
    candidate = attempt.row.candidate
    power = fit_node_power((), (), attempt.plan.job.cluster)
    if not power.known:
        return None
    watts, _ = power.watts(np.array([float(candidate.processes_per_node)]), np.array([float(candidate.local_batch)]))
    return float(energy_j(np.array([float(candidate.nodes)]), np.array([seconds]), watts)[0])


def energy_source(final: Mapping[str, Any]) -> str | None:
    """Return the meters in words, None where there were none."""
    return str(final["energy"]["source"]) if final.get("energy") and final["energy"].get("source") else None


def _own(final: Mapping[str, Any]) -> tuple[float, float] | None:
    energy = final.get("energy") or {}
    return None if energy.get("total_j") is None else (float(energy["total_j"]), float(energy["seconds"]))


def _whole(metered: tuple[float, float] | None, span_s: float) -> float | None:
    if metered is None or metered[1] < _LEAST_SHARE * span_s:
        return None
    joules, seconds = metered
    return joules * max(span_s / seconds, 1.0)
