import dataclasses

import pytest
from factories import make_job, make_profile
from search_fakes import FakePredictor, job, profile

from tula_core.errors import InputError
from tula_core.job import Cluster, Constraints
from tula_core.models.checking import check_profile
from tula_core.models.predictor import fit
from tula_core.records import Plan
from tula_core.search import words
from tula_core.search.api import make_plan
from tula_core.search.objective import Decision
from tula_core.search.reasons import change


@pytest.mark.parametrize(
    "cluster",
    [{"electricity_usd_per_kwh": 0.0, "power_watts": 100.0}, {"price_per_node_hour": 5e-324}],
)
@pytest.mark.parametrize("budget_usd", [None, 1.0])
def test_runs_that_cost_nothing_are_compared_by_node_hours(cluster: dict[str, float], budget_usd: float | None) -> None:
    measured = make_profile()
    asked = make_job(cluster=Cluster(nodes=2, **cluster), constraints=Constraints(budget_usd=budget_usd))
    plan = make_plan(measured, asked, fit(measured, asked), mitigation=())
    assert plan.choice is not None and plan.choice["cost_usd"].value == pytest.approx(0.0, abs=1e-300)
    assert any(text.startswith("With prices at which a run costs nothing") for text in plan.assumptions)


def plan_with(**fields: object) -> Plan:
    return make_plan(profile(), job(cluster={"nodes": 4}, **fields), FakePredictor(price=1.0), mitigation=())


def test_weights_count_by_their_ratios_alone() -> None:
    huge, small = (plan_with(objective={"time": w, "cost": w}) for w in (1e308, 1.0))
    assert huge.choice_index == small.choice_index


def test_a_machine_without_memory_admits_nothing_and_says_so() -> None:
    measured = profile()
    tiny = dataclasses.replace(
        measured, hardware=dataclasses.replace(measured.hardware, device="cuda", device_memory_bytes=1)
    )
    plan = make_plan(tiny, job(), FakePredictor(), mitigation=())
    assert plan.choice is None and "memory of the fullest process" in plan.reason
    for size in (0, 1):
        wrong = make_profile()
        wrong = dataclasses.replace(wrong, hardware=dataclasses.replace(wrong.hardware, memory_bytes=size))
        with pytest.raises(InputError, match=r"profile\.hardware\.memory_bytes: a finite number of at least"):
            check_profile(wrong)


def test_the_users_limit_is_named_before_what_it_leads_to() -> None:
    measured = profile()
    wants_two = dataclasses.replace(measured, facts=dataclasses.replace(measured.facts, smallest_batch=2))
    asked = job(constraints={"max_local_batch": 1})
    plan = make_plan(wants_two, asked, FakePredictor(), mitigation=())
    assert plan.choice is None
    assert "constraints.max_local_batch, 1, allows no micro-batch of 2" in plan.reason


def test_unknown_energy_is_not_called_a_missing_price() -> None:
    asked = job(cluster={"electricity_usd_per_kwh": 0.3})
    plan = make_plan(profile(), asked, FakePredictor(), mitigation=())
    assert any("With a price of electricity and unknown energy" in text for text in plan.assumptions)
    assert not any("Without a price" in text for text in plan.assumptions)


@pytest.mark.parametrize("usd", [0.0029, 0.0991, 1e-7, 2.345])
def test_an_admitting_budget_is_no_more_than_needed(usd: float) -> None:
    assert usd <= float(words.admitting_usd(usd)) <= 1.1 * usd


def test_a_faster_row_that_also_costs_less_is_said_to() -> None:
    by_hours, by_cost = (
        Decision(expense=expense, front=(0,), knee=0, kneedle=None, choice=0, nearest=None)
        for expense in ("node_hours", "cost_usd")
    )
    assert change(-0.009, by_hours) == "and 0.9 % of the node time"
    assert change(-0.009, by_cost) == "and 0.9 % of the cost"
    assert change(0.25, by_cost) == "for 25 % more cost"
    assert change(0.0004, by_cost) == change(-0.0004, by_cost) == "at the same cost"
