"""The energy of a run: metered in the workers, put together over attempts in the parent, and the bill that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tula_core.engine.power.find import present_limit_w
from tula_core.errors import InputError
from tula_core.models.cost import billed_s, electricity_usd, hourly_price
from tula_core.models.power.energy import energy_j
from tula_core.models.power.node import fit_node_power
from tula_core.tracking.spent import (
    attempt_folder,
    attempt_layout,
    part_energy,
    part_folder,
    part_seconds,
    parts_of,
)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One launch of a run: how many nodes for how long, and what meters read, in how many seconds."""

    nodes: int
    processes_per_node: int
    seconds: float
    metered: tuple[float, float] | None


def with_energy(
    actual: Mapping[str, float | None], attempt: Attempt, final: Mapping[str, Any], spans_s: Sequence[float] = ()
) -> dict[str, float | None]:
    """Return a run's figures with its metered energy and the bill of each launch by itself.

    Electricity that was not metered is billed by the power that the job states; the energy itself stays unknown then.
    The start of the processes is not metered: the mean power of a launch is taken to hold for all of its time. A launch
    that was metered for less than half of it makes the energy unknown, not small.

    Parameters
    ----------
    spans_s
        Seconds of this attempt's launches before its last, where it had several.
    """
    figures, cluster = dict(actual), attempt.plan.job.cluster
    parts = [part for part in _parts(attempt, final, spans_s, figures["time_to_train_s"] or 0.0) if part.seconds > 0]
    joules = [_whole(part.metered, part.seconds) for part in parts]
    figures["energy_j"] = None if not joules or None in joules else float(sum(part or 0.0 for part in joules))
    price, electricity, cost = hourly_price(cluster), cluster.electricity_usd_per_kwh, figures["cost_usd"]
    if price is not None and cost is not None:
        cost += price * _rounding_s(parts, cluster.billing_seconds) / 3600.0
    if electricity is not None:
        # Electricity that is not known is not free.
        energy = figures["energy_j"]
        drawn = _stated_j(attempt, parts) if energy is None else energy
        base = 0.0 if price is None else cost
        cost = None if drawn is None or base is None else base + float(electricity_usd(drawn, electricity))
    return {**figures, "cost_usd": cost}


def _parts(attempt: Attempt, final: Mapping[str, Any], spans_s: Sequence[float], total_s: float) -> list[_Part]:
    """Return the launches of all attempts; what the earlier ones leave of ``total_s`` is the last one's."""
    earlier = [
        (part, part_seconds(part))
        for number in range(1, attempt.number)
        for part in parts_of(attempt_folder(attempt.folder, number))
    ]
    earlier += [(part_folder(attempt.task_folder, number), span) for number, span in enumerate(spans_s, start=1)]
    last = part_folder(attempt.task_folder, len(spans_s) + 1)
    rest_s = max(total_s - sum(span for _, span in earlier), 0.0)
    candidate = attempt.row.candidate
    found = []
    for folder, span in [*earlier, (last, rest_s)]:
        layout = attempt_layout(folder) or (candidate.nodes, candidate.processes_per_node)
        metered = (_own(final) if folder == last else None) or part_energy(folder)
        found.append(_Part(nodes=layout[0], processes_per_node=layout[1], seconds=span, metered=metered))
    return found


def _rounding_s(parts: Sequence[_Part], quantum_s: float) -> float:
    """Return the node-seconds that are billed because each launch is rounded up by itself."""
    together: dict[int, float] = {}
    for part in parts:
        together[part.nodes] = together.get(part.nodes, 0.0) + part.seconds
    apart = sum(part.nodes * float(billed_s(np.array(part.seconds), quantum_s)) for part in parts)
    return apart - sum(nodes * float(billed_s(np.array(span), quantum_s)) for nodes, span in together.items())


def _stated_j(attempt: Attempt, parts: Sequence[_Part]) -> float | None:
    """Return the joules by the job's own figures, None where it has none."""
    power = fit_node_power((), (), attempt.plan.job.cluster)
    if not power.known:
        return None
    local_batch = np.full(len(parts), float(attempt.row.candidate.local_batch))
    watts, _ = power.watts(np.array([float(part.processes_per_node) for part in parts]), local_batch)
    nodes, seconds = (np.array([float(getattr(part, name)) for part in parts]) for name in ("nodes", "seconds"))
    return float(energy_j(nodes, seconds, watts).sum())


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
