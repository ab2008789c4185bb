"""Outcomes made by hand: what was forecast, and by which factor the truth differed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tula_core.history.methods import today
from tula_core.records import QUANTITIES, Interval, Outcome
from tula_core.records.corrections import BUILTIN, Correction, Corrections

PREDICTED = {
    "step_time_s": 0.02,
    "time_to_train_s": 100.0,
    "memory_bytes": 5e8,
    "epochs": 4.0,
    "accuracy": 0.9,
}


def make_correcting(quantity: str, log_bias: float) -> Corrections:
    """Return a version that learnt a bias of one quantity and no more."""
    learnt = Correction(log_bias=log_bias, log_sd=0.0, outcomes=9)
    return replace(BUILTIN, version=2, outcomes=9, jobs=3, by_quantity={quantity: learnt})


def make_outcome(job_id: str = "job-1", *, factors: dict[str, float] | None = None, **changes: Any) -> Outcome:
    unknown: dict[str, float | None] = dict.fromkeys(QUANTITIES)
    predicted = {**PREDICTED, **changes.pop("predicted", {})}
    truth = {name: value * (factors or {}).get(name, 1.0) for name, value in PREDICTED.items()}
    fields: dict[str, Any] = {
        "schema_version": 1,
        "job_id": job_id,
        "job_hash": "abcd",
        "job_name": "small",
        "workload": "digits-cnn",
        "hardware": "cpu-abc",
        "predictor": BUILTIN.label,
        "attempt": 1,
        "status": "FINISHED",
        "failure": None,
        "nodes": 1,
        "processes_per_node": 2,
        "local_batch": 32,
        "accumulation": 1,
        "mitigation": (),
        "learning_rate": 0.05,
        "learning_rate_reductions": 0,
        "target_reached": True,
        "predicted": {**unknown, **predicted},
        "predicted_low": {**unknown, **{name: 0.8 * value for name, value in predicted.items()}},
        "predicted_high": {**unknown, **{name: 1.2 * value for name, value in predicted.items()}},
        "actual": {**unknown, **truth},
        "curve": (),
        "run_folder": "/nowhere",
        "finished_at": "2026-03-01T10:00:00+00:00",
    }
    return Outcome(**{**fields, **changes})


def make_history(
    *factors: float, workloads: tuple[str, ...] = ("a", "b", "c"), repeat: int = 3, **changes: Any
) -> list[Outcome]:
    """Return ``repeat`` outcomes per workload whose step and training time are off by that workload's factor."""
    return [
        make_outcome(
            f"{workload}-{number}",
            workload=workload,
            factors={name: factor * (1 + 0.01 * number) for name in ("step_time_s", "time_to_train_s")},
            **changes,
        )
        for workload, factor in zip(workloads, factors, strict=True)
        for number in range(repeat)
    ]


def make_method_outcome(
    job_id: str,
    *,
    log_gap: float = 0.0,
    method: str = "growth",
    forecast: float = 0.9,
    common: float = 0.0,
    response: float = 0.15,
    **changes: Any,
) -> Outcome:
    """Return a run with a method that no pilot trained with, which left exp(log_gap) times the gap that was forecast.

    ``response`` is the rise of ln of the gap for one standard deviation of the card; ``common`` is the logarithm of a
    factor on the metric that has nothing to do with the method.
    """
    actual = math.exp(common) * (1.0 - (1.0 - forecast) * math.exp(log_gap))
    fields: dict[str, Any] = {
        "factors": {"accuracy": actual / PREDICTED["accuracy"]},
        "predicted": {"accuracy": forecast},
        "mitigation": (method,),
        "untried": {method: today(method)},
        "local_batch": 256,
        "reference_batch": 32,
        "higher_is_better": True,
        "metric_best": 1.0,
        "expected_end": Interval(value=forecast, low=0.98 * forecast, high=1.0 - 0.8 * (1.0 - forecast)),
        "target_reached": None,
        "method_response": response,
    }
    return make_outcome(job_id, **{**fields, **changes})


def make_method_history(*log_gaps: float, plain: bool = True, repeat: int = 1, **changes: Any) -> list[Outcome]:
    """Return runs of one workload for each number, with a method and, where ``plain``, as many without."""
    found = []
    for number, log_gap in enumerate(log_gaps):
        for again in range(repeat):
            place = {"workload": f"w{number:03}"}
            name = f"{number:03}-{again}"
            found.append(make_method_outcome(f"m-{name}", log_gap=log_gap, **place, **changes))
            if plain:
                common = {"accuracy": math.exp(changes.get("common", 0.0))}
                found.append(make_outcome(f"p-{name}", target_reached=None, factors=common, **place))
    return found
