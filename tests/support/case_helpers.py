"""Plans and launches for the tests of the cases."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job
from tula_core.records import QUANTITIES, Candidate, Interval, Plan, PlanProbe, Row
from tula_core.training.run import Attempt
from tula_core.workloads.load import load_workload

SUPPORT = Path(__file__).parent
LIMIT_S = 200.0


def find_support(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Let workers import this folder and keep state, locks and temporary files in ``home``, for a whole module."""
    (home / "tmp").mkdir(parents=True)
    patch.setattr(tempfile, "tempdir", str(home / "tmp"))
    patch.setenv("PYTHONPATH", str(SUPPORT))
    patch.setenv("TULA_HOME", str(home))
    patch.setenv("TULA_LOCKS", str(home / "tmp"))
    patch.setenv("OMP_NUM_THREADS", "1")


def in_world(folder: Path, processes: int, entry: str, **payload: Any) -> Mapping[str, Any]:
    """Run an entry of `case_entries` in some processes, within a time limit."""
    task = WorkerTask(
        entry=f"case_entries:{entry}",
        payload=payload,
        folder=folder,
        processes_per_node=processes,
        timeout_s=LIMIT_S,
    )
    return launch(task, lambda event: None).unwrap()


def case_plan(workload: str, *shapes: tuple[int, int, int], mitigation: str = "linear-lr", **recipe: Any) -> Plan:
    """Return a plan with a row for each (processes, local batch, accumulation), every quantity forecast as 1."""
    request = Job(workload=f"case_workloads:{workload}", recipe=recipe, cluster={"processes_per_node": 3})
    loaded = load_workload(request)
    names = ("warmup",) if mitigation == "" else (mitigation, "warmup")
    forecast = {name: Interval(value=1.0, low=0.5, high=2.0) for name in QUANTITIES}
    rows = tuple(
        Row(
            candidate=Candidate(
                nodes=1, processes_per_node=processes, local_batch=local, accumulation=parts, mitigation=names
            ),
            feasible=True,
            infeasible_because=None,
            measured=True,
            forecast=forecast,
        )
        for processes, local, parts in shapes
    )
    return Plan(
        job=request.resolved(loaded.recipe, loaded.target),
        hardware={"fingerprint": "cpu-test", "threads_per_process": 1},
        predictor="tula-predictor v1 (built-in)",
        probe=PlanProbe(seconds=0.0, cost_usd=None, cached=True),
        table=rows,
        pareto=(0,),
        knee=0,
        choice_index=0,
        reason="made by hand",
        assumptions=(),
        facts={"train_samples": len(loaded.train_set()), "metric": "accuracy", "workload": workload},
    )


def attempt(plan: Plan, folder: Path, row: int = 0, number: int = 1, resume: bool = False) -> Attempt:
    """Return an attempt at a row of a plan."""
    return Attempt(plan=plan, row=plan.table[row], job_id="case", number=number, folder=folder, resume=resume)
