"""Any profile and any job give a plan that can be relied on, or an error that says what to do."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from factories import make_job
from fuzz_limits import examples, tried
from fuzz_strategies import constraints, jobs, profiles
from hypothesis import given
from hypothesis import strategies as st

from tula_core import mitigations
from tula_core.errors import InputError
from tula_core.job import Constraints, Job
from tula_core.models.predictor import fit
from tula_core.records import QUANTITIES, Plan, Profile, Row, from_json, to_json
from tula_core.search import make_plan

pytestmark = pytest.mark.timeout(900)


def plan_of(profile: Profile, job: Job) -> Plan:
    return make_plan(profile, job, fit(profile, job), mitigation=mitigations.resolve(job))


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} in a plan")


def check_row(row: Row) -> None:
    for quantity in QUANTITIES:
        interval = row[quantity]
        if interval.value is None:
            continue
        assert interval.low is not None and interval.high is not None
        assert all(math.isfinite(number) for number in (interval.low, interval.value, interval.high))
        assert interval.low <= interval.value <= interval.high
        if quantity != "accuracy":
            assert interval.low >= 0, quantity
    assert row.feasible == (row.infeasible_because is None)


def check_plan(plan: Plan) -> None:
    for row in plan.table:
        check_row(row)
    assert all(plan.table[number].feasible for number in plan.pareto)
    feasible = [number for number, row in enumerate(plan.table) if row.feasible]
    assert (plan.choice_index is None) == (not feasible)
    if plan.choice is not None:
        assert plan.choice.feasible
        assert plan.choice["time_to_train_s"].value is not None
    assert len(plan.reason) > 20
    text = plan.to_json()
    json.loads(text, parse_constant=refuse_constant)
    again = from_json(Plan, text, source="plan.json")
    assert again == plan
    assert again.to_json() == text
    assert again.digest == plan.digest


@given(profiles(), jobs())
@examples(160)
def test_any_job_on_any_profile_gives_a_sound_plan_that_its_file_keeps(profile: Profile, job: Job) -> None:
    with tried("plans: any profile, any job"):
        check_plan(plan_of(profile, job))


@given(profiles())
@examples(40)
def test_any_profile_survives_its_file(profile: Profile) -> None:
    with tried("profiles: round trip"):
        text = to_json(profile)
        assert to_json(from_json(Profile, text, source="profile.json")) == text


IMPOSSIBLE = [math.nan, math.inf, -math.inf, -1.0, 0.0, -1, 0, 1e308, 5e-324, 10**400, None, "x"]


@given(profiles(), st.data())
@examples(60)
def test_a_broken_number_anywhere_in_a_profile_is_named_or_does_no_harm(profile: Profile, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(["steps", "memory", "communication", "start_up", "evaluation"]))
    rows = getattr(profile, group)
    bad = data.draw(st.sampled_from(IMPOSSIBLE))
    with tried("profiles: one broken number"):
        if not rows:
            return
        place = data.draw(st.integers(0, len(rows) - 1))
        field = data.draw(st.sampled_from([name for name in type(rows[0]).__slots__ if name != "outcome"]))
        broken = (*rows[:place], dataclasses.replace(rows[place], **{field: bad}), *rows[place + 1 :])
        job = make_job()
        try:
            plan = plan_of(dataclasses.replace(profile, **{group: broken}), job)
        except InputError as error:
            assert "profile." in str(error)
            return
        check_plan(plan)


FACTORS = st.sampled_from([1.0, 1.5, 10.0, 1000.0])


@given(profiles(), jobs(constraints=Constraints()), FACTORS)
@examples(40)
def test_cost_never_falls_as_the_price_rises(profile: Profile, job: Job, factor: float) -> None:
    with tried("plans: a higher price"):
        plans = []
        for price in (2.0, 2.0 * factor):
            priced = job.cluster.model_copy(update={"price_per_node_hour": price, "spot_price_per_node_hour": None})
            plans.append(plan_of(profile, job.model_copy(update={"cluster": priced})))
        cheap, dear = plans
        assert [row.candidate for row in cheap.table] == [row.candidate for row in dear.table]
        for before, after in zip(cheap.table, dear.table, strict=True):
            for low, high in zip(costs(before), costs(after), strict=True):
                assert (low is None) == (high is None)
                assert low is None or high is None or low <= high
        if cheap.choice is not None and dear.choice is not None:
            assert cheap.choice["cost_usd"].value <= dear.choice["cost_usd"].value  # type: ignore[operator]


def costs(row: Row) -> tuple[float | None, ...]:
    interval = row["cost_usd"]
    return interval.low, interval.value, interval.high


@given(profiles(), jobs(), constraints(), st.sampled_from(["time", "cost"]))
@examples(60)
def test_a_tighter_limit_never_makes_the_choice_better(
    profile: Profile, job: Job, limits: Constraints, objective: str
) -> None:
    with tried("plans: a tighter limit"):
        cluster = job.cluster.model_copy(update={"price_per_node_hour": 2.0, "spot_price_per_node_hour": None})
        # With a least accuracy on both sides: setting one replaces the rule that holds without.
        loose = job.constraints.model_copy(update={"min_accuracy": job.constraints.min_accuracy or 0.0})
        tight = tightened(loose, limits)
        best = []
        for limit in (loose, tight):
            asked = job.model_copy(update={"cluster": cluster, "objective": objective, "constraints": limit})
            chosen = plan_of(profile, asked).choice
            quantity = "time_to_train_s" if objective == "time" else "cost_usd"
            best.append(math.inf if chosen is None else chosen[quantity].value)
        assert best[0] <= best[1] * (1 + 1e-9)


def tightened(loose: Constraints, other: Constraints) -> Constraints:
    """Return limits each at least as tight as both."""

    def least(name: str) -> object:
        known = [value for value in (getattr(loose, name), getattr(other, name)) if value is not None]
        return min(known, default=None)

    names = ("deadline", "budget_usd", "memory", "max_local_batch")
    floor = max(loose.min_accuracy or 0.0, other.min_accuracy or 0.0)
    return Constraints(min_accuracy=floor, **{name: least(name) for name in names})


@given(profiles(), jobs())
@examples(20)
def test_the_same_profile_and_job_give_the_same_bytes(profile: Profile, job: Job) -> None:
    with tried("plans: made twice"):
        first = plan_of(profile, job).to_json()
        copy = from_json(Profile, to_json(profile), source="profile.json")
        assert plan_of(copy, job).to_json() == first
