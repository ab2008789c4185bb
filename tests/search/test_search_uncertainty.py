"""Plans of the real models: intervals of many widths, extrapolated rows beside measured ones."""

from __future__ import annotations

import pytest
from factories import make_job, make_profile
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.models import predictor
from tula_core.models.decision.chances import chance_at_most, expected
from tula_core.search.api import make_plan

PRICED = {"nodes": 2, "processes_per_node": 2, "price_per_node_hour": 2.0}
PROFILE = make_profile()


def plan_of(objective, **constraints):
    job = make_job(cluster=PRICED, objective=objective, constraints=constraints, target=None)
    return make_plan(PROFILE, job, predictor.fit(PROFILE, job), mitigation=())


def scored(plan, objective):
    """What is expected of the choice by its objective, infinite where there is none."""
    quantity = "time_to_train_s" if objective == "time" else "cost_usd"
    return float("inf") if plan.choice is None else expected(plan.choice[quantity])


@given(
    objective=st.sampled_from(["time", "cost"]),
    deadline=st.floats(20.0, 120.0),
    tighter=st.floats(0.3, 1.0),
    confidence=st.floats(0.5, 0.99),
    surer=st.floats(0.0, 0.3),
)
@settings(max_examples=12, deadline=None)
def test_neither_a_tighter_deadline_nor_a_higher_confidence_leads_to_a_better_choice(
    objective, deadline, tighter, confidence, surer
):
    loose = plan_of(objective, deadline=deadline, confidence=confidence)
    for harder in (
        plan_of(objective, deadline=deadline * tighter, confidence=confidence),
        plan_of(objective, deadline=deadline, confidence=min(confidence + surer, 0.99)),
    ):
        assert scored(loose, objective) <= scored(harder, objective)
        assert sum(row.feasible for row in harder.table) <= sum(row.feasible for row in loose.table)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_every_feasible_row_keeps_the_deadline_with_the_confidence_that_was_asked_for(confidence):
    deadline = plan_of("time").choice["time_to_train_s"].value * 1.3
    plan = plan_of("time", deadline=deadline, confidence=confidence)
    for row in plan.table:
        if row.feasible:
            assert chance_at_most(row["time_to_train_s"], deadline) >= confidence - 1e-9
    assert plan.choice is not None or "constraints.confidence" in plan.reason or "is above" in plan.reason
