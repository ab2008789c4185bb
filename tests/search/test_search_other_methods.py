from __future__ import annotations

from dataclasses import replace

import pytest
from search_fakes import around, job

from tula_core.records import Candidate, Plan, PlanProbe, Row
from tula_core.search.other_methods import next_best

METHODS = ("linear-lr", "warmup")


def row(processes, batch, mitigation, time_s, *, feasible=True, price=None, nodes=1, **changes) -> Row:
    values = {
        "time_to_train_s": time_s,
        "step_time_s": 0.1,
        "node_hours": nodes * time_s / 3600,
        "accuracy": 0.9,
        "cost_usd": None if price is None else price * nodes * time_s / 3600,
    }
    return Row(
        candidate=Candidate(
            nodes=nodes, processes_per_node=processes, local_batch=batch // processes, mitigation=mitigation, **changes
        ),
        feasible=feasible,
        infeasible_because=None if feasible else "late",
        measured=True,
        forecast={name: around(value, 0.1) for name, value in values.items()},
    )


def plan_of(*rows: Row, objective: object = "time") -> Plan:
    return Plan(
        job=job(objective=objective),
        hardware={"fingerprint": "f"},
        predictor="p",
        probe=PlanProbe(seconds=0.0, cost_usd=None, cached=True),
        table=rows,
        pareto=(0,),
        knee=0,
        choice_index=0,
        reason="",
        assumptions=(),
        facts={"higher_is_better": True},
    )


CHOSEN = row(2, 256, METHODS, 20.0)
GROWTH, LARS, PLAIN = row(2, 256, ("growth",), 30.0), row(2, 512, ("lars",), 25.0), row(1, 64, (), 90.0)


def test_the_best_of_the_other_methods_is_taken_and_then_the_next() -> None:
    plan = plan_of(CHOSEN, row(2, 128, METHODS, 22.0), GROWTH, LARS, PLAIN)
    tried, found = [CHOSEN.candidate], []
    while (best := next_best(plan, CHOSEN, tried)) is not None:
        found.append(best)
        tried.append(best.candidate)
    assert found == [LARS, GROWTH, PLAIN]


def test_the_rule_of_the_rate_at_the_reference_batch_is_no_method() -> None:
    reference = row(2, job().recipe.batch_size, METHODS, 90.0)
    plan = plan_of(CHOSEN, reference)
    assert next_best(plan, CHOSEN, [CHOSEN.candidate]) == reference
    assert next_best(plan, reference, [CHOSEN.candidate, reference.candidate]) is None
    assert next_best(plan_of(CHOSEN, PLAIN), reference, [CHOSEN.candidate, reference.candidate]) is None


@pytest.mark.parametrize("objective", ["knee", "cost", {"time": 0.5, "cost": 0.5}])
def test_it_is_the_best_by_the_objective_of_the_job(objective: object) -> None:
    cheap = row(1, 64, (), 40.0, price=1.0)
    dear = replace(row(2, 512, ("lars",), 36.0, price=1.0), forecast={**LARS.forecast, "cost_usd": around(9.0, 0.1)})
    assert next_best(plan_of(CHOSEN, dear, cheap, objective=objective), CHOSEN, [CHOSEN.candidate]) == cheap
    assert next_best(plan_of(CHOSEN, dear, cheap, objective="time"), CHOSEN, [CHOSEN.candidate]) == dear


@pytest.mark.parametrize(
    "other",
    [
        row(2, 256, METHODS[::-1], 1.0),
        row(2, 256, ("lars",), 1.0, feasible=False),
        row(4, 256, ("lars",), 1.0),
        row(1, 256, ("lars",), 1.0, nodes=2),
        row(2, 256, ("lars",), 1.0, options={"precision": "bf16"}),
        row(2, 256, ("lars",), 1.0, power_limit_w=100.0),
    ],
)
def test_what_is_the_same_or_would_have_to_be_set_up_is_passed_over(other: Row) -> None:
    assert next_best(plan_of(CHOSEN, other), CHOSEN, [CHOSEN.candidate]) is None


def test_a_row_whose_energy_is_unknown_is_no_answer_where_energy_counts() -> None:
    assert next_best(plan_of(CHOSEN, GROWTH, objective="energy"), CHOSEN, [CHOSEN.candidate]) is None
    assert next_best(plan_of(CHOSEN, GROWTH, objective={"time": 1, "energy": 1}), CHOSEN, [CHOSEN.candidate]) is None
