"""Whether a run has the data that its plan was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tula_core.engine.context import WorkerContext
from tula_core.engine.same_data import SEED_IT, require_same_on_all
from tula_core.errors import InputError
from tula_core.records import DataSample
from tula_core.workloads import Workload
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.trial import read_batch


def require_same_data(context: WorkerContext, workload: Workload, samples: int, payload: Mapping[str, Any]) -> None:
    """Refuse data of another size, shape or order than planned for, and processes that opened different data.

    The forecast would be held against something else, and an attempt that goes on would train on what it has seen, or
    on what is held out. Inputs alone that differ are said: pictures are not decoded alike on every machine.
    """
    if samples != payload["train_samples"]:
        raise InputError(
            f"plan: it was made for {payload['train_samples']} training samples, now there are {samples}. "
            "Its epochs, steps and cost do not hold: plan again."
        )
    _require_shape(workload, payload.get("sample_shape"))
    planned = payload.get("data_sample") or {}
    if context.processes == 1 and not planned:
        return
    for role, found in require_same_on_all(context, workload).items():
        if role in planned:
            _require_planned(context, role, found, planned[role])


def _require_shape(workload: Workload, planned: Any) -> None:
    if planned is None:
        return
    with fixed_randomness():
        inputs, _ = read_batch(workload, workload.train_set(), [0], "train_data")
    if list(inputs.shape[1:]) != list(planned):
        raise InputError(
            f"plan: it was made for samples of shape {tuple(planned)}, now they are {tuple(inputs.shape[1:])}. "
            "Its times, memory and cost do not hold: plan again."
        )


def _require_planned(context: WorkerContext, role: str, found: DataSample, planned: Mapping[str, Any]) -> None:
    if found.items != planned["items"]:
        raise InputError(
            f"plan: it was made for {planned['items']} items of {role}, now there are {found.items}. "
            "What was found about its accuracy does not hold: plan again."
        )
    for read, targets, inputs in zip(found.read, found.targets, found.inputs, strict=True):
        if read not in planned["read"]:
            continue
        place = list(planned["read"]).index(read)
        if _differ(targets, planned["targets"][place]):
            raise InputError(
                f"plan: it was made for other {role}: of {read} items at the same places the targets are not the same, "
                f"so the items changed, or their order. Plan again. If you changed nothing: {SEED_IT}"
            )
        if _differ(inputs, planned["inputs"][place]):
            context.emit(
                "other_data",
                message=f"of {read} items of {role} the inputs are not those that the plan was made for: they or their "
                "transforms changed, or this machine reads them differently. If they changed, plan again",
            )
            return


def _differ(found: str | None, planned: str | None) -> bool:
    return None not in (found, planned) and found != planned
