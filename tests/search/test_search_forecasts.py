"""A large grid forecast at once: rows where they are looked at, and the front of what keeps every limit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from factories import make_facts, make_job, make_profile
from hypothesis import given
from hypothesis import strategies as st
from search_fakes import FakePredictor, job, profile

from tula_core.job import Cluster, Recipe, Target
from tula_core.mitigations import effects_of, packages_of
from tula_core.models.predictor import fit
from tula_core.search.api import make_plan
from tula_core.search.constraints import Limits, judge
from tula_core.search.forecasts import MOST_NEAR, NEAR, Forecasts, near_the_front
from tula_core.search.pareto import pareto_front
from tula_core.search.space import candidates, key
from tula_core.search.study import SMALL_GRID, TRIALS_AROUND, Task, search

WIDE = job(
    {"batch_size": 64},
    cluster={"nodes": 64, "processes_per_node": 8},
    constraints={"deadline": "3m", "min_accuracy": 0.5},
    precisions=["fp32", "bf16", "fp16"],
)
GRID = candidates(profile(), WIDE, FakePredictor(), ())
positive = st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=30)


def limits_of(predictor, **changes):
    fields = {
        "job": WIDE,
        "hardware": profile().hardware,
        "train_samples": 60_000,
        "expense": "node_hours",
        "higher_is_better": True,
        "worst_accuracy": None,
        "reach_probability": predictor.reach_probability,
    }
    return Limits(**{**fields, **changes})


def looked_at(predictor, grid, **changes):
    forecasts, limits = Forecasts(predictor, grid), limits_of(predictor, **changes)
    return forecasts.near_front(
        lambda chosen: [judge(row, limits) for row in forecasts.forecast(chosen)], ["node_hours"]
    )


@given(positive)
def test_near_the_front_are_the_points_that_none_beats_clearly(points):
    times, expenses = np.array(points).T
    near = near_the_front(times, expenses)
    factor = 1 + NEAR
    for place, (time, spent) in enumerate(points):
        beaten = any(t * factor < time * (1 - 1e-9) and s * factor <= spent for t, s in points)
        clearly = any(t * factor < time * (1 + 1e-9) and s * factor <= spent * (1 + 1e-9) for t, s in points)
        assert place not in near if beaten else (clearly or place in near)
    front = pareto_front(times, expenses)
    assert set(front.tolist()) <= set(near.tolist())
    assert not any(t < times[near[0]] and s <= expenses[near[0]] for t, s in points)


def test_a_grid_is_forecast_once_and_rows_are_those_of_the_predictor():
    predictor = FakePredictor()
    forecasts = Forecasts(predictor, GRID)
    other = dataclasses.replace(GRID[0], local_batch=12_345)
    asked = [GRID[700], other, GRID[3]]
    assert predictor.calls == [len(GRID)]
    assert forecasts.forecast(asked) == FakePredictor().forecast(asked)
    assert predictor.calls == [len(GRID), 1] and forecasts.forecast([]) == []
    assert forecasts.complete


def test_many_staged_candidates_are_forecast_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("tula_core.search.forecasts.MOST_STAGED", 20)
    grown = candidates(profile(), WIDE, FakePredictor(), ("growth",))
    staged = [candidate for candidate in grown if candidate.stages is not None]
    predictor = FakePredictor()
    forecasts = Forecasts(predictor, grown)
    assert predictor.calls == [len(grown) - len(staged)] and not forecasts.complete
    assert [row.candidate for row in forecasts.forecast([staged[0], grown[0]])] == [staged[0], grown[0]]
    assert predictor.calls[1:] == [1]


def test_the_front_of_what_keeps_every_limit_is_looked_at_and_few_others():
    predictor = FakePredictor()
    found = looked_at(predictor, GRID)
    limits = limits_of(predictor)
    every = [judge(row, limits) for row in predictor.forecast(GRID)]
    feasible = [item.row for item in every if item.row.feasible]
    times, hours = (np.array([row[name].value for row in feasible]) for name in ("time_to_train_s", "node_hours"))
    front = {key(feasible[place].candidate) for place in pareto_front(times, hours)}
    assert front <= {key(item.row.candidate) for item in found if item.row.feasible}
    assert 0 < len(feasible) < len(every) and len(found) < len(GRID) / 2


def test_where_nothing_keeps_the_limits_the_look_ends():
    found = looked_at(FakePredictor(), GRID * 2, worst_accuracy=2.0)
    assert len(found) <= MOST_NEAR and not any(item.row.feasible for item in found)


@pytest.mark.parametrize("objective", ["knee", "time", "cost"])
def test_a_plan_of_a_large_grid_chooses_as_if_all_were_looked_at(objective):
    wide = WIDE.model_copy(update={"objective": objective})
    plan = make_plan(profile(), wide, FakePredictor(price=2.0), mitigation=())
    assert plan.facts["grid"] > SMALL_GRID and plan.facts["evaluated"] < plan.facts["grid"]
    predictor = FakePredictor(price=2.0)
    limits = limits_of(predictor, job=wide, expense="cost_usd")
    every = [judge(row, limits) for row in predictor.forecast(GRID)]
    quickest = min(i.row["time_to_train_s"].value for i in every if i.row.feasible)
    cheapest = min(i.row["cost_usd"].value for i in every if i.row.feasible)
    front = [plan.table[place] for place in plan.pareto]
    assert front[0]["cost_usd"].value == cheapest and front[-1]["time_to_train_s"].value == quickest
    best = {"time": ("time_to_train_s", quickest), "cost": ("cost_usd", cheapest)}
    if objective in best:
        name, value = best[objective]
        assert plan.choice[name].value == value


@pytest.mark.parametrize("objective", ["time", "cost", {"time": 0.5, "cost": 0.5}])
@pytest.mark.parametrize(("limits", "target"), [({}, 0.85), ({"deadline": "200s"}, 0.8), ({"budget_usd": 0.5}, 0.8)])
def test_a_choice_by_means_is_that_of_all_candidates_where_their_intervals_differ(
    monkeypatch, objective, limits, target
):
    """What is surer may be slower at its median and quicker in the mean."""
    wide = make_job(
        cluster=Cluster(nodes=32, processes_per_node=8, price_per_node_hour=3.0, link_gbps=10),
        objective=objective,
        constraints=limits,
        mitigation="auto",
        target=Target(value=target),
        recipe=Recipe(epochs=20),
    )
    measured, packages = make_profile(facts=make_facts(train_samples=200_000)), packages_of(wide)
    predictor = fit(measured, wide, effects=effects_of(packages))
    plan = make_plan(measured, wide, predictor, mitigation=packages)
    assert plan.facts["grid"] > SMALL_GRID and plan.facts["evaluated"] < 0.6 * plan.facts["grid"]
    monkeypatch.setattr("tula_core.search.study.SMALL_GRID", 10**6)
    monkeypatch.setattr("tula_core.search.api.search", lambda task: search(dataclasses.replace(task, small_grid=10**6)))
    every = make_plan(measured, wide, predictor, mitigation=packages)
    assert every.facts["evaluated"] == plan.facts["grid"]
    assert key(plan.choice.candidate) == key(every.choice.candidate)


class Thrifty(FakePredictor):
    """More processes save energy and waste time and money."""

    def quantities(self, c):
        found = super().quantities(c)
        slower = 1.0 if c.precision is None else 1.5
        times = {name: found[name] * slower for name in ("time_to_train_s", "node_hours", "cost_usd")}
        return {**found, **times, "energy_j": 1e9 / c.processes / slower}


def test_the_least_energy_is_found_where_neither_time_nor_money_leads_to_it():
    wide = WIDE.model_copy(
        update={"objective": "energy", "constraints": WIDE.constraints.model_copy(update={"deadline": None})}
    )
    plan = make_plan(profile(), wide, Thrifty(price=2.0), mitigation=())
    least = min(Thrifty(price=2.0).quantities(c)["energy_j"] for c in GRID)
    assert plan.choice["energy_j"].value == pytest.approx(least)


def test_where_nothing_keeps_the_limits_the_sampler_is_not_cut_short():
    def trials(**limits):
        wide = WIDE.model_copy(update={"constraints": WIDE.constraints.model_copy(update=limits)})
        forecasts, kept = Forecasts(FakePredictor(), GRID), limits_of(FakePredictor(), job=wide)

        def evaluate(chosen):
            return [judge(row, kept) for row in forecasts.forecast(chosen)]

        task = Task(
            name="test",
            grid=GRID,
            first=GRID[:1],
            evaluate=evaluate,
            expense="node_hours",
            seed=1,
            near_front=lambda: forecasts.near_front(evaluate, ["node_hours"]),
            front_known=True,
            trials_beyond=400,
        )
        return len(search(task).study.trials)

    assert TRIALS_AROUND <= trials() < 400 <= trials(deadline=1.0)


def test_the_predictors_own_columns_give_the_plan_of_its_rows():
    asked = make_job(
        cluster=Cluster(nodes=64, processes_per_node=8), precisions=["fp32", "bf16", "fp16"], mitigation="none"
    )
    measured = make_profile(facts=make_facts(train_samples=10**6))
    predictor = fit(measured, asked)
    plan = make_plan(measured, asked, predictor, mitigation=())
    assert plan.facts["grid"] > SMALL_GRID >= TRIALS_AROUND
    for row, again in zip(plan.table[::40], predictor.forecast([r.candidate for r in plan.table[::40]]), strict=True):
        for name in ("time_to_train_s", "node_hours", "accuracy"):
            assert row[name].value == pytest.approx(again[name].value, rel=1e-9)
