"""Small plans and outcomes, made by hand."""

from __future__ import annotations

from typing import Any

from tula_core.job import Job
from tula_core.records import QUANTITIES, Candidate, Interval, Outcome, Plan, PlanProbe, Row
from tula_core.records.corrections import BUILTIN

PREDICTED = {
    "step_time_s": 0.02,
    "time_to_train_s": 100.0,
    "node_hours": 100.0 / 3600,
    "memory_bytes": 5e8,
    "epochs": 4.0,
    "steps": 5000.0,
    "accuracy": 0.9,
}
ACTUAL = {**PREDICTED, "step_time_s": 0.025, "time_to_train_s": 125.0, "accuracy": 0.88}


def make_row(*, nodes: int = 1, feasible: bool = True, **values: float | None) -> Row:
    predicted = {**PREDICTED, **values}
    forecast = {
        name: Interval(value=value, low=0.8 * value, high=1.2 * value)
        for name, value in predicted.items()
        if value is not None
    }
    return Row(
        candidate=Candidate(nodes=nodes, processes_per_node=2, local_batch=32),
        feasible=feasible,
        infeasible_because=None if feasible else "memory: needs 20 GiB, limit is 16 GiB",
        measured=True,
        forecast=forecast,
    )


def make_plan(*rows: Row, name: str = "small", price: float | None = None) -> Plan:
    table = rows or (make_row(), make_row(nodes=2, feasible=False))
    cluster: dict[str, Any] = {"nodes": 2, "processes_per_node": 2, "price_per_node_hour": price, "billing_seconds": 60}
    return Plan(
        job=Job.from_mapping({"name": name, "workload": "digits-cnn", "cluster": cluster}),
        hardware={"fingerprint": "cpu-abc"},
        predictor=BUILTIN.label,
        probe=PlanProbe(seconds=12.5, cost_usd=None, cached=False),
        table=table,
        pareto=(0,),
        knee=0,
        choice_index=0,
        reason="one node is enough",
        assumptions=("no price",),
        facts={"train_samples": 1000},
    )


def make_outcome(job_id: str = "job-1", *, attempt: int = 1, name: str = "small", **changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "job_id": job_id,
        "job_hash": "abcd",
        "job_name": name,
        "workload": "digits-cnn",
        "hardware": "cpu-abc",
        "predictor": BUILTIN.label,
        "attempt": attempt,
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
        "predicted": {**dict.fromkeys(QUANTITIES), **PREDICTED},
        "predicted_low": {**dict.fromkeys(QUANTITIES), **{key: 0.8 * value for key, value in PREDICTED.items()}},
        "predicted_high": {**dict.fromkeys(QUANTITIES), **{key: 1.2 * value for key, value in PREDICTED.items()}},
        "actual": {**dict.fromkeys(QUANTITIES), **ACTUAL},
        "curve": (),
        "run_folder": "/nowhere",
        "finished_at": "2026-03-01T10:00:00+00:00",
    }
    return Outcome(**{**fields, **changes})
