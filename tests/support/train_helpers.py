"""A plan made by hand, so that training is tested without measuring."""

from __future__ import annotations

from tula_core.job import Job
from tula_core.records import QUANTITIES, Candidate, Interval, Plan, PlanProbe, Row
from tula_core.workloads.load import load_workload


def hand_made_plan(
    workload: str, *, processes: int = 1, local_batch: int = 16, accumulation: int = 1, mitigation: str = "linear-lr"
) -> Plan:
    """Return a plan with one row, every quantity forecast as 1 in [0.5, 2]."""
    request = Job(workload=f"tiny_workloads:{workload}", cluster={"processes_per_node": 2})
    loaded = load_workload(request)
    job = request.resolved(loaded.recipe, loaded.target)
    candidate = Candidate(
        nodes=1,
        processes_per_node=processes,
        local_batch=local_batch,
        accumulation=accumulation,
        mitigation=(mitigation, "warmup"),
    )
    forecast = {name: Interval(value=1.0, low=0.5, high=2.0) for name in QUANTITIES}
    row = Row(candidate=candidate, feasible=True, infeasible_because=None, measured=True, forecast=forecast)
    return Plan(
        job=job,
        hardware={"fingerprint": "cpu-test", "threads_per_process": 1},
        predictor="tula-predictor v1 (built-in)",
        probe=PlanProbe(seconds=0.0, cost_usd=None, cached=True),
        table=(row,),
        pareto=(0,),
        knee=0,
        choice_index=0,
        reason="made by hand",
        assumptions=(),
        facts={"train_samples": len(loaded.train_set()), "metric": "accuracy", "workload": workload},
    )
