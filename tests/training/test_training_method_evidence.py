"""What an outcome keeps for learning of methods: which no pilot trained with, and what was forecast where it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from train_helpers import hand_made_plan

from tula_core.history.evidence import gather
from tula_core.mitigations import MITIGATIONS
from tula_core.progress import silent
from tula_core.records import Interval, Outcome, Plan, load, save
from tula_core.records.corrections import BUILTIN
from tula_core.training.run import Attempt, run_attempt

CURVE = [[epoch, 0.0, 0.1 * epoch, 1.0] for epoch in range(1, 5)]
FACTS = {"higher_is_better": True, "metric_best": 1.0, "expected_curve": CURVE, "method_response": {"0": 0.3}}


def planned(*, mitigation: Any = "auto", epochs: int = 2, rule: str = "sqrt-lr") -> Plan:
    plan = hand_made_plan("plain", local_batch=64, mitigation=rule)
    recipe = plan.job.recipe.model_copy(update={"epochs": epochs})
    job = plan.job.model_copy(update={"mitigation": mitigation, "target": None, "recipe": recipe})
    row = plan.table[0]
    row = replace(row, forecast={**row.forecast, "accuracy": Interval(value=0.6, low=0.5, high=0.7)})
    return replace(plan, job=job, table=(row,), facts={**plan.facts, **FACTS})


def train(plan: Plan, folder: Path) -> Outcome:
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=1, folder=folder, resume=False)
    outcome, error = run_attempt(attempt, silent, lambda samples, figures: None)
    assert error is None and outcome.status == "FINISHED"
    return outcome


def test_a_run_of_auto_says_what_its_forecast_took_from_cards(tmp_path: Path) -> None:
    outcome = train(planned(), tmp_path)
    assert outcome.untried == {"sqrt-lr": MITIGATIONS["sqrt-lr"].effect}
    assert (outcome.reference_batch, outcome.higher_is_better, outcome.metric_best) == (16, True, 1.0)
    assert outcome.expected_end == Interval(value=0.6, low=0.5, high=0.7) and outcome.method_response == 0.3
    save(outcome, tmp_path / "outcome.json")
    assert load(Outcome, tmp_path / "outcome.json") == outcome
    [run] = gather([outcome], lambda label: BUILTIN).method_runs
    assert (run.method, run.gap, run.metric) == ("sqrt-lr", pytest.approx(0.4), outcome.actual["accuracy"])


def test_methods_that_a_job_names_and_those_of_the_pilots_are_no_guess_of_cards(tmp_path: Path) -> None:
    named = train(planned(mitigation=["sqrt-lr", "warmup"]), tmp_path / "named")
    tried = train(planned(rule="linear-lr"), tmp_path / "tried")
    assert named.untried == tried.untried == {}


def test_where_a_target_ends_a_run_it_is_held_against_the_curve_there(tmp_path: Path) -> None:
    plan = planned(epochs=4)
    easy = plan.job.model_validate({**plan.job.to_dict(), "target": {"metric": "accuracy", "value": 0.15}})
    outcome = train(replace(plan, job=easy), tmp_path)
    assert outcome.target_reached and outcome.curve[-1].epochs < 4
    _, low, value, high = CURVE[int(outcome.curve[-1].epochs) - 1]
    assert outcome.expected_end == Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    "spoiled",
    [{"method_response": 3}, {"method_response": {"7": 0.3, "x": 1.0}}, {"method_response": {"0": "much"}}, {}],
)
def test_a_plan_that_was_edited_costs_no_outcome(spoiled: dict[str, Any], tmp_path: Path) -> None:
    plan = planned(epochs=1)
    facts = {**plan.facts, "method_response": None, "metric_best": "best", "higher_is_better": "yes", **spoiled}
    outcome = train(replace(plan, facts=facts), tmp_path)
    assert (outcome.method_response, outcome.metric_best, outcome.higher_is_better) == (None, None, None)
    evidence = gather([outcome], lambda label: BUILTIN)
    assert evidence.method_runs == () and evidence.unclear == 1
