"""Reports of a bill that depends on how a run ended."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from train_helpers import hand_made_plan

from tula_core.job import Cluster
from tula_core.records import Outcome, Plan
from tula_core.tracking import close_dead_runs, dead, open_attempt
from tula_core.training.metering import with_energy
from tula_core.training.run import Attempt

PRICED = {"nodes": 2, "price_per_node_hour": 0.4, "billing_seconds": 3600, "power_watts": 1000, "idle_power_watts": 100}


def plan_on(**cluster: Any) -> Plan:
    plan = hand_made_plan("plain")
    job = plan.job.model_copy(update={"cluster": Cluster(**{**PRICED, **cluster})})
    candidate = dataclasses.replace(plan.table[0].candidate, nodes=2)
    return dataclasses.replace(plan, job=job, table=(dataclasses.replace(plan.table[0], candidate=candidate),))


def leave(folder: Path, number: int, seconds: float, joules: float | None) -> None:
    place = folder / f"attempt-{number}"
    place.mkdir(parents=True)
    task = {"local_batch": 16, "accumulation": 1}
    (place / "config.json").write_text(json.dumps({"nodes": 2, "processes_per_node": 1, "payload": task}))
    began_s = round(time.time()) - 10_000.0
    os.utime(place / "config.json", (began_s, began_s))
    energy = None if joules is None else {"total_j": joules, "seconds": seconds, "source": "the counter"}
    event = {"kind": "progress", "at_s": began_s + seconds, "samples": 1, "energy": energy}
    (place / "events.jsonl").write_text(json.dumps(event) + "\n")


def found_dead(folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    outcomes: list[Outcome] = []
    monkeypatch.setattr(dead, "finish_operation", lambda outcome, only_if_running: outcomes.append(outcome))
    monkeypatch.setattr(dead.spool, "append", lambda operation: None)
    path = open_attempt(folder, plan, "job", 2)
    path.write_text(json.dumps({**json.loads(path.read_text()), "process_started": "another"}))
    close_dead_runs(send=False)
    [outcome] = outcomes
    return dict(outcome.actual)


@pytest.mark.parametrize(
    ("cluster", "joules", "cost"),
    [
        ({}, None, 1.6),
        ({"electricity_usd_per_kwh": 0.3}, None, 1.6 + 0.5),
        ({"electricity_usd_per_kwh": 0.3}, 3.6e6, 1.6 + 0.6),
        ({"electricity_usd_per_kwh": 0.3, "power_watts": None, "idle_power_watts": None}, None, None),
        ({"price_per_node_hour": None, "electricity_usd_per_kwh": 0.3}, None, 0.5),
    ],
)
def test_a_run_that_is_found_killed_costs_what_it_would_have_told_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], joules: float | None, cost: float | None
) -> None:
    # Elsewhere: all attempts are rounded up together and electricity is left out, so being killed is half the price.
    monkeypatch.setenv("TULA_HOME", str(tmp_path))
    plan, folder = plan_on(**cluster), tmp_path / "runs" / "job"
    for number in (1, 2):
        leave(folder, number, 1500.0, joules)
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=2, folder=folder, resume=True)
    told = with_energy({"time_to_train_s": 3000.0}, attempt, {})
    killed = found_dead(folder, plan, monkeypatch)
    for name in ("cost_usd", "energy_j"):
        assert killed[name] == (told[name] if told[name] is None else pytest.approx(told[name]))
    assert killed["cost_usd"] == (None if cost is None else pytest.approx(cost))
