from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import make_job, make_profile
from tula_core.errors import InputError
from tula_core.job import Cluster, Job
from tula_core.models.cost import bill_usd, billed_s, carbon_g, cost_usd, electricity_usd
from tula_core.models.decision.chances import chance_at_most
from tula_core.models.forecasting import Band
from tula_core.models.power.energy import energy_j
from tula_core.models.predictor import fit
from tula_core.records import Candidate

money = st.floats(0.0, 100.0)
seconds = st.floats(1.0, 1e6)


def forecast(candidate: Candidate | None = None, **cluster):
    predictor = fit(make_profile(), make_job(cluster=Cluster(nodes=2, processes_per_node=2, **cluster)))
    return predictor.forecast([candidate or Candidate(nodes=2, processes_per_node=1, local_batch=64)])[0]


def test_a_price_is_of_a_node_and_an_hour_and_the_number_of_nodes_counts():
    # 2 nodes x $0.40 for one hour are $0.80.
    assert cost_usd(np.array(2.0), np.array(3600.0), 0.40, 1.0) == pytest.approx(0.80)
    row = forecast(price_per_node_hour=0.40)
    assert row["cost_usd"].value == pytest.approx(2 * 0.40 * np.ceil(row["time_to_train_s"].value) / 3600)


def test_without_a_duration_no_hour_is_invented():
    # What has no forecast time has no cost either.
    impossible = Candidate(nodes=2, processes_per_node=1, local_batch=10**9)
    row = forecast(impossible, price_per_node_hour=0.40)
    assert row["time_to_train_s"].value is None
    assert row["cost_usd"].value is None and row["node_hours"].value is None and row["energy_j"].value is None


def test_each_attempt_is_rounded_up_to_the_billing_quantum():
    assert billed_s(np.array(100.0), 60.0) == pytest.approx(120.0)
    assert billed_s(np.array(100.0), 60.0, attempts=3.0) == pytest.approx(120.0 + 2 * 30.0)


def test_own_hardware_costs_its_electricity_and_its_price():
    own = Cluster(electricity_usd_per_kwh=0.30)
    both = Cluster(electricity_usd_per_kwh=0.30, price_per_node_hour=1.0)
    args = np.array(1.0), np.array(3600.0), np.array(3.6e6)
    assert bill_usd(own, *args) == pytest.approx(0.30)
    assert bill_usd(both, *args) == pytest.approx(1.30)
    assert bill_usd(Cluster(), *args) is None


def test_electricity_of_an_unknown_energy_is_unknown_and_not_free():
    assert bill_usd(Cluster(electricity_usd_per_kwh=0.3), np.array(1.0), np.array(3600.0), None) is None
    assert forecast(electricity_usd_per_kwh=0.3)["cost_usd"].value is None
    row = forecast(electricity_usd_per_kwh=0.3, power_watts=360.0)
    assert row["cost_usd"].value == pytest.approx(row["energy_j"].value / 3.6e6 * 0.3)


@given(seconds, money, money, money)
def test_cost_never_falls_when_a_price_rises(wall_s, one, other, electricity):
    low, high = sorted((one, other))
    for name in ("price_per_node_hour", "electricity_usd_per_kwh"):
        rest = {"electricity_usd_per_kwh": electricity} if name == "price_per_node_hour" else {}
        bills = [
            bill_usd(
                Cluster.model_construct(**{**Cluster().__dict__, **rest, name: price}),
                np.array(2.0),
                np.array(wall_s),
                np.array(wall_s * 100),
            )
            for price in (low, high)
        ]
        assert bills[0] is None or bills[1] is None or bills[0] <= bills[1]


@given(seconds, seconds, st.floats(1, 1e4))
def test_energy_is_additive_over_time(one, other, watts):
    parts = energy_j(np.array(2.0), np.array(one), watts) + energy_j(np.array(2.0), np.array(other), watts)
    assert energy_j(np.array(2.0), np.array(one + other), watts) == pytest.approx(parts)
    assert electricity_usd(parts, 0.2) == pytest.approx(
        electricity_usd(energy_j(np.array(2.0), np.array(one), watts), 0.2)
        + electricity_usd(energy_j(np.array(2.0), np.array(other), watts), 0.2)
    )


def test_carbon_follows_the_stated_intensity():
    assert carbon_g(3.6e6, 400.0) == pytest.approx(400.0)
    assert carbon_g(np.array([0.0, 7.2e6]), 50.0) == pytest.approx([0.0, 100.0])


def test_a_node_with_fewer_processes_draws_less_where_its_idle_power_is_given():
    half = Candidate(nodes=1, processes_per_node=1, local_batch=64)
    row = forecast(half, power_watts=300.0, idle_power_watts=100.0)
    assert row["energy_j"].value == pytest.approx(200.0 * row["time_to_train_s"].value)
    row = forecast(half, power_watts=300.0)
    assert row["energy_j"].value == pytest.approx(300.0 * row["time_to_train_s"].value)


def test_a_rate_of_nought_is_the_time_on_demand():
    spot = {"spot_price_per_node_hour": 0.5}
    assert forecast(**spot, spot_interruptions_per_hour=0.0)["time_to_train_s"] == forecast()["time_to_train_s"]


def test_interruptions_lengthen_time_cost_and_interval():
    spot = {"spot_price_per_node_hour": 0.5, "spot_restart_seconds": 120.0}
    calm, stormy = (forecast(**spot, spot_interruptions_per_hour=rate) for rate in (0.0, 20.0))
    for quantity in ("time_to_train_s", "cost_usd", "node_hours"):
        assert stormy[quantity].value > calm[quantity].value
        assert stormy[quantity].high / stormy[quantity].value > calm[quantity].high / calm[quantity].value
    assert stormy["steps"] == calm["steps"]


def test_more_nodes_are_interrupted_more_often():
    spot = {"spot_price_per_node_hour": 0.5, "spot_interruptions_per_hour": 30.0, "spot_restart_seconds": 60.0}
    lengthened = []
    for nodes in (1, 2):
        candidate = Candidate(nodes=nodes, processes_per_node=1, local_batch=64)
        times = [forecast(candidate, **how)["time_to_train_s"].value for how in (spot, {})]
        lengthened.append(times[0] / times[1])
    assert lengthened[1] > lengthened[0] > 1


def test_a_rare_long_wait_leaves_the_usual_run_as_it_is():
    spot = {"spot_price_per_node_hour": 0.5, "spot_interruptions_per_hour": 0.01, "spot_restart_seconds": 3600.0}
    calm, rare = forecast(**{**spot, "spot_interruptions_per_hour": 0.0}), forecast(**spot)
    time = rare["time_to_train_s"]
    assert time.value == pytest.approx(calm["time_to_train_s"].value, rel=0.01)
    assert chance_at_most(time, 1.5 * time.value) > 0.9
    assert rare["cost_usd"].value == pytest.approx(calm["cost_usd"].value, rel=0.01)


def test_a_run_that_interruptions_never_let_end_is_infeasible():
    spot = {"spot_price_per_node_hour": 0.5, "spot_interruptions_per_hour": 3600.0}
    row = forecast(**spot)
    assert not row.feasible and "would not end" in row.infeasible_because


def test_spot_is_compared_only_where_both_prices_and_the_rate_are_known():
    both = {"spot_price_per_node_hour": 0.5, "price_per_node_hour": 1.0}
    candidate = Candidate(nodes=1, processes_per_node=1, local_batch=64)
    told = fit(make_profile(), make_job(cluster=Cluster(**both, spot_interruptions_per_hour=2.0)))
    there = told.on_spot(candidate)
    assert there is not None
    here = told.forecast([candidate])[0]
    assert here["time_to_train_s"].value <= there["time_to_train_s"].value < 2 * here["time_to_train_s"].value
    assert there["cost_usd"].value < here["cost_usd"].value
    assert fit(make_profile(), make_job(cluster=Cluster(**both))).on_spot(candidate) is None


@pytest.mark.parametrize(
    ("cluster", "match"),
    [
        ({"spot_interruptions_per_hour": 1}, "without spot_price_per_node_hour"),
        ({"spot_price_per_node_hour": 1, "spot_interruptions_per_hour": -1}, "greater than or equal to 0"),
        ({"spot_price_per_node_hour": 1, "spot_restart_seconds": 60}, "without spot_interruptions_per_hour"),
        ({"spot_price_per_node_hour": 1, "spot_interruptions_per_hour": 1e300}, "less than or equal to 3600"),
        (
            {"spot_price_per_node_hour": 1, "spot_interruptions_per_hour": 1, "spot_restart_seconds": 1e300},
            "less than or equal to 2592000",
        ),
        ({"power_watts": 100, "idle_power_watts": 200}, "above power_watts"),
        ({"power_limits_w": []}, "power_limits_w"),
        ({"power_limits_w": [True]}, "true and false"),
        ({"power_limits_w": [150, -1]}, "power_limits_w"),
        ({"carbon_g_per_kwh": float("inf")}, "carbon_g_per_kwh"),
        ({"electricity_usd_per_kwh": float("nan")}, "electricity_usd_per_kwh"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_by_field(cluster, match):
    with pytest.raises(InputError, match=match):
        Job.from_mapping({"workload": "digits-cnn", "cluster": cluster})


@given(
    chance=st.floats(0.004, 0.5), loss=st.floats(0.1, 50.0), spread=st.floats(0.0, 0.3), seed=st.integers(0, 2**32 - 1)
)
@settings(deadline=None)
def test_the_interval_of_a_mean_holds_it_and_nine_of_ten_draws(chance, loss, spread, seed):
    """A stop that few runs meet and that is dear: the mean can lie beyond nineteen of twenty runs."""
    generator = np.random.default_rng(seed)
    drawn = np.exp(spread * generator.standard_normal((256, 1))) + loss * (generator.uniform(size=(256, 1)) < chance)
    mean = drawn.mean(axis=0)
    band = Band.of_mean(drawn, mean)
    assert band.low[0] <= band.value[0] == mean[0] <= band.high[0]
    assert ((drawn >= band.low) & (drawn <= band.high)).mean() >= 0.9
    if (drawn > mean).any():
        assert mean[0] < band.high[0]


def test_the_interval_of_a_mean_in_the_middle_is_that_of_its_draws():
    drawn = np.linspace(1.0, 3.0, 256)[:, None]
    middle = np.array([2.0])
    mean, draws = Band.of_mean(drawn, middle), Band.of_draws(drawn, middle)
    assert (mean.value, mean.low, mean.high) == (draws.value, draws.low, draws.high)


def test_what_a_seldom_stop_costs_is_inside_the_interval_of_the_bill():
    """One run in a hundred waits hours for a node: what is paid on average is more than most runs pay."""
    cluster = Cluster(
        nodes=2, spot_price_per_node_hour=1.0, spot_interruptions_per_hour=0.3, spot_restart_seconds=20_000.0
    )
    predictor = fit(make_profile(), make_job(cluster=cluster))
    row = predictor.forecast([Candidate(nodes=2, processes_per_node=1, local_batch=64)])[0]
    bill = row["cost_usd"]
    assert bill.low <= bill.value < bill.high
    assert bill.value / row["time_to_train_s"].value > 2 * 1.05 / 3600
