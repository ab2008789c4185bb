from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import around, job

from tula_core.errors import InputError
from tula_core.models.decision.chances import expected
from tula_core.records import Candidate, Interval, Row
from tula_core.search.constraints import Judged
from tula_core.search.objective import decide
from tula_core.search.violation import Violation


def item(batch, time_s, hours, *, accuracy=0.9, energy=None, excess=None, spread=0.1, measured=True):
    violations = () if excess is None else (Violation(key="deadline", excess=excess, text="late", remedy="Wait"),)
    values = {"time_to_train_s": time_s, "node_hours": hours, "accuracy": accuracy, "energy_j": energy}
    row = Row(
        candidate=Candidate(nodes=1, processes_per_node=1, local_batch=batch),
        feasible=not violations,
        infeasible_because="late" if violations else None,
        measured=measured,
        forecast={name: around(value, spread) for name, value in values.items()},
    )
    return Judged(row=row, violations=violations)


def wider(forecast):
    """The same value, twice as much either way."""
    if forecast.value is None:
        return forecast
    return Interval(value=forecast.value, low=forecast.value / 2, high=forecast.value * 2)


def choice(items, objective, **changes):
    return decide(items, job(objective=objective), "node_hours", **{"higher_is_better": True, **changes}).choice


ITEMS = [
    item(16, 100.0, 1.0, energy=900.0),
    item(32, 60.0, 1.5, energy=500.0),
    item(64, 40.0, 2.0, energy=700.0),
    item(128, 39.5, 6.0, energy=990.0),
    item(256, 10.0, 1.0, excess=0.5),
]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [("knee", 2), ("time", 3), ("cost", 0), ("energy", 1), ({"time": 1}, 3), ({"energy": 2, "cost": 0.1}, 1)],
)
def test_each_objective_takes_its_best_feasible_row(objective, expected):
    assert choice(ITEMS, objective) == expected


def test_weights_depend_on_no_unit():
    def scaled(time_unit, money_unit):
        return [item(2**i, t * time_unit, c * money_unit) for i, (t, c) in enumerate([(100, 1), (60, 1.5), (40, 2.9)])]

    for weights in ({"time": 0.7, "cost": 0.3}, {"time": 0.3, "cost": 0.7}):
        assert choice(scaled(1, 1), weights) == choice(scaled(3600, 0.01), weights)
    assert choice(scaled(1, 1), {"time": 7, "cost": 3}) == choice(scaled(1, 1), {"time": 0.7, "cost": 0.3})


def test_unknown_energy_is_an_input_error_with_the_remedy():
    with pytest.raises(InputError, match="cluster.power_watts"):
        choice([item(16, 1.0, 1.0)], "energy")


def test_within_the_noise_of_the_knee_the_smaller_batch_is_taken():
    items = [item(64, 101.0, 1.01), item(128, 100.0, 1.0), item(32, 104.0, 1.04)]
    decision = decide(items, job(), "node_hours", True)
    assert (decision.knee, decision.choice) == (1, 0)
    assert choice(items, "time") == 1


def test_within_the_noise_a_clearly_better_accuracy_counts_more_than_the_batch():
    assert choice([item(64, 101.0, 1.01, accuracy=0.88), item(128, 100.0, 1.0, accuracy=0.9)], "knee") == 1
    worse_when_higher = [item(64, 101.0, 1.01, accuracy=0.9), item(128, 100.0, 1.0, accuracy=0.88)]
    assert choice(worse_when_higher, "knee", higher_is_better=False) == 1


def test_of_near_equal_forecasts_the_surer_one_is_taken():
    sure = item(128, 100.0, 1.0, spread=0.05)
    for time_s, expected_choice in ((99.0, 1), (80.0, 0)):
        wide = item(64, time_s, time_s / 100)
        forecast = {name: wider(wide.row[name]) for name in wide.row.forecast}
        wide = dataclasses.replace(wide, row=dataclasses.replace(wide.row, forecast=forecast))
        for objective in ("time", "cost", {"time": 1, "cost": 1}, "knee"):
            assert choice([wide, sure], objective) == (expected_choice if objective != "knee" else 0)


def test_within_the_noise_of_the_knee_a_measured_row_comes_before_a_smaller_one():
    items = [item(64, 100.5, 1.0, measured=False), item(128, 100.0, 1.0)]
    assert choice(items, "knee") == 1
    assert choice([item(64, 100.5, 1.0), item(128, 100.0, 1.0)], "knee") == 0


ROWS = st.tuples(st.floats(1, 100), st.floats(0.1, 10), st.floats(0.01, 0.9))


@given(st.lists(ROWS, min_size=2, max_size=6), st.sampled_from(["time", "cost"]), st.data())
@settings(max_examples=50, deadline=None)
def test_taking_rows_away_never_improves_what_is_expected(rows, objective, data):
    items = [item(2**i, time, hours, spread=spread) for i, (time, hours, spread) in enumerate(rows)]
    kept = data.draw(st.lists(st.sampled_from(range(len(items))), min_size=1, unique=True))
    quantity = "time_to_train_s" if objective == "time" else "node_hours"
    best = expected(items[choice(items, objective)].row[quantity])
    fewer = [items[i] for i in kept]
    assert best <= expected(fewer[choice(fewer, objective)].row[quantity])


def test_at_equal_time_and_expense_accuracy_decides():
    assert choice([item(64, 10.0, 1.0, accuracy=0.8), item(128, 10.0, 1.0, accuracy=0.9)], "time") == 1


def test_where_nothing_is_feasible_the_least_violating_row_is_named():
    decision = decide([item(16, 9.0, 1.0, excess=2.0), item(32, 7.0, 1.0, excess=0.1)], job(), "node_hours", True)
    assert (decision.choice, decision.knee, decision.front, decision.nearest) == (None, None, (), 1)


@pytest.mark.parametrize("key", ["data", "forecast", "begin_alone"])
def test_a_row_that_no_limit_would_admit_is_named_last(key):
    """Else an impossible deadline is answered by what is wrong with a row that the deadline does not even look at."""
    late = item(16, 9.0, 1.0, excess=20.0)
    hopeless = dataclasses.replace(
        item(32, 7.0, 1.0, excess=0.1), violations=(Violation(key=key, excess=0.1, text="odd", remedy="Change it"),)
    )
    assert decide([hopeless, late], job(), "node_hours", True).nearest == 1
    assert decide([hopeless], job(), "node_hours", True).nearest == 0


def test_a_limit_that_is_broken_in_any_case_is_no_reason_to_break_another():
    both = item(16, 9.0, 1.0, excess=2.0)
    both = dataclasses.replace(both, violations=(*both.violations, dataclasses.replace(both.violations[0], key="x")))
    assert decide([both, item(32, 7.0, 1.0, excess=2.1)], job(), "node_hours", True).nearest == 1
