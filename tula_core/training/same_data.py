"""Whether a run has the data that its plan was made for."""

from __future__ import annotations

from typing import Any

from tula_core.errors import InputError
from tula_core.workloads import Workload
from tula_core.workloads.trial import fixed_randomness, read_batch


def require_same_data(workload: Workload, samples: int, payload: dict[str, Any]) -> None:
    """Refuse data of another size or shape than planned for: the forecast would be held against something else."""
    if samples != payload["train_samples"]:
        raise InputError(
            f"plan: it was made for {payload['train_samples']} training samples, now there are {samples}. "
            "Its epochs, steps and cost do not hold: plan again."
        )
    planned = payload.get("sample_shape")
    if planned is None:
        return
    with fixed_randomness():
        inputs, _ = read_batch(workload, workload.train_set(), [0], "train_data")
    if list(inputs.shape[1:]) != list(planned):
        raise InputError(
            f"plan: it was made for samples of shape {tuple(planned)}, now they are {tuple(inputs.shape[1:])}. "
            "Its times, memory and cost do not hold: plan again."
        )
