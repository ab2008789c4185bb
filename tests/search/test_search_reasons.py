"""The reason shows each quantity as the table does, and names the mean where it decides."""

from __future__ import annotations

import re

import pytest
from search_fakes import FakePredictor, around, job, profile

from tula_core.models.decision.chances import expected
from tula_core.records import Interval, Plan, figures
from tula_core.search import words
from tula_core.search.api import make_plan


class Skewed(FakePredictor):
    """Forecasts whose interval reaches far up: their mean lies above the value."""

    def forecast(self, candidates, /):
        rows = super().forecast(candidates)
        for row in rows:
            for name in ("time_to_train_s", "node_hours", "cost_usd"):
                value = row[name].value
                wide = around(value) if value is None else Interval(value=value, low=value * 0.9, high=value * 3)
                row.forecast[name] = wide
        return rows


def plan_of(predictor: FakePredictor, **parts: object) -> Plan:
    return make_plan(profile(6400), job(cluster={"processes_per_node": 2, **parts.pop("cluster", {})}, **parts),
                     predictor, mitigation=())  # fmt: skip


@pytest.mark.parametrize("price", [None, 0.4, 2.0, 4000.0])
def test_time_and_expense_are_written_as_in_the_table(price: float | None) -> None:
    plan = plan_of(FakePredictor(samples=6400, price=price), cluster={"price_per_node_hour": price})
    assert plan.choice is not None
    time, ends = figures.span("time_to_train_s", plan.choice["time_to_train_s"])
    low, high = ends.split("-")
    spent = "node_hours" if price is None else "cost_usd"
    shown, _ = figures.span(spent, plan.choice[spent])
    assert f"takes {time} ({low} to {high} {time.split()[1]}) and" in plan.reason
    assert (f"{shown} of node time" if price is None else f"costs {shown}") in plan.reason


@pytest.mark.parametrize(("goal", "quantity"), [("time", "time_to_train_s"), ("cost", "cost_usd")])
def test_a_mean_that_decides_is_named_beside_the_likely_value(goal: str, quantity: str) -> None:
    cluster = {"price_per_node_hour": 2.0}
    plan = plan_of(Skewed(samples=6400, price=2.0), objective=goal, cluster=cluster)
    assert plan.choice is not None
    mean = figures.text(quantity, expected(plan.choice[quantity]))
    likely = figures.text(quantity, plan.choice[quantity].value)
    assert re.search(
        rf"the least expected {goal} of \d+ feasible candidates, {re.escape(mean)} in the mean", plan.reason
    )
    assert f"beside the likely {likely}" in plan.reason
    assert "in the mean" not in plan_of(Skewed(samples=6400, price=2.0), cluster=cluster).reason


@pytest.mark.parametrize("objective", [{"time": 1.0, "cost": 1.0}, {"time": 1.0}])
def test_weights_name_what_is_likely_better_and_too_unsure(objective: dict[str, float]) -> None:
    cluster = {"price_per_node_hour": 2.0}
    best = plan_of(FakePredictor(samples=6400, price=2.0), objective=objective, cluster=cluster)
    assert best.choice is not None and "may be better" not in best.reason
    unsure = best.choice.candidate

    class Unsure(FakePredictor):
        def forecast(self, candidates, /):
            rows = super().forecast(candidates)
            for row in rows:
                for name in ("time_to_train_s", "cost_usd") if row.candidate == unsure else ():
                    value = row[name].value
                    row.forecast[name] = Interval(value=value, low=value * 0.9, high=value * 30)
            return rows

    plan = plan_of(Unsure(samples=6400, price=2.0), objective=objective, cluster=cluster)
    assert plan.choice is not None and plan.choice.candidate != unsure
    assert f"({words.describe(unsure)} may be better, and is so much less sure" in plan.reason
