"""Plans made by hand for the workloads that break other tools."""

from __future__ import annotations

import dataclasses
from typing import Any

from train_helpers import hand_made_plan

from tula_core.records import Plan
from tula_core.workloads.load import load_workload


def plan_for(workload: str, **shape: Any) -> Plan:
    """Return a plan with one row for a workload of `fault_workloads`, without a target."""
    made = hand_made_plan("plain", **shape)
    job = made.job.model_copy(update={"workload": f"fault_workloads:{workload}"})
    loaded = load_workload(job)
    facts = {**made.facts, "train_samples": len(loaded.train_set())}  # type: ignore[arg-type]
    return dataclasses.replace(made, job=job.model_copy(update={"recipe": loaded.recipe, "target": None}), facts=facts)
