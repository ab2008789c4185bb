"""The energy of a run: metered in the workers, put together over attempts in the parent, and the bill that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tula_core.engine.power.find import present_limit_w
from tula_core.engine.power.meter import Energy
from tula_core.errors import InputError
from tula_core.tracking.bill import Launch, launches, launches_usd, metered_j
from tula_core.tracking.spent import attempt_layout, part_energy, part_folder

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext
    from tula_core.training.run import Attempt

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
    actual: Mapping[str, float | None], attempt: Attempt, final: Mapping[str, Any], spans_s: Sequence[float] = ()
) -> dict[str, float | None]:
    """Return a run's figures with its metered energy and the bill of each launch by itself.

    Parameters
    ----------
    spans_s
        Seconds of this attempt's launches before its last, where it had several.
    """
    run = _launches(attempt, final, spans_s, actual["time_to_train_s"] or 0.0)
    cost = launches_usd(run, attempt.plan.job.cluster, attempt.row.candidate.local_batch)
    return {**actual, "energy_j": metered_j(run), "cost_usd": cost}


def _launches(attempt: Attempt, final: Mapping[str, Any], spans_s: Sequence[float], total_s: float) -> list[Launch]:
    """Return the launches of all attempts; what the earlier ones leave of ``total_s`` is the last one's."""
    candidate = attempt.row.candidate
    usual = (candidate.nodes, candidate.processes_per_node)
    found = launches(attempt.folder, attempt.number - 1, *usual)
    folders = [part_folder(attempt.task_folder, number) for number in range(1, len(spans_s) + 2)]
    rest_s = max(total_s - sum(launch.seconds for launch in found) - sum(spans_s), 0.0)
    for folder, span in zip(folders, [*spans_s, rest_s], strict=True):
        layout = attempt_layout(folder) or usual
        metered = (_own(final) if folder == folders[-1] else None) or part_energy(folder)
        found.append(Launch(nodes=layout[0], processes_per_node=layout[1], seconds=span, metered=metered))
    return found


def energy_source(final: Mapping[str, Any]) -> str | None:
    """Return the meters in words, with what is wrong between them, None where there were none."""
    energy = final.get("energy") or {}
    if not energy.get("source"):
        return None
    fault = meters_fault(energy)
    return str(energy["source"]) if fault is None else f"{energy['source']} ({fault})"


def meters_fault(energy: Mapping[str, Any] | None) -> str | None:
    """Return what to warn of where two meters of a run disagree, None where they do not or nothing was metered."""
    if not energy or energy.get("seconds") is None:
        return None
    counter_j, integrated_j = energy.get("counter_j"), energy.get("integrated_j")
    return Energy(seconds=energy["seconds"], counter_j=counter_j, integrated_j=integrated_j).disagreement


def _own(final: Mapping[str, Any]) -> tuple[float, float] | None:
    energy = final.get("energy") or {}
    return None if energy.get("total_j") is None else (float(energy["total_j"]), float(energy["seconds"]))
