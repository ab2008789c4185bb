from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import poisson

from tula_core.models.spot import Interruptions, drawn_time_s, expected_interruptions, expected_time_s, poisson_quantile

HOUR = 3600.0
runs = st.floats(1.0, 1e6)
segments = st.floats(1.0, 1e5)
restarts = st.floats(0.0, 1e4)


def stops(per_hour: float, segment_s: float, restart_s: float) -> Interruptions:
    return Interruptions(
        rate_per_s=np.array([per_hour / HOUR]), segment_s=np.array([segment_s]), restart_s=np.array([restart_s])
    )


def expected(run_s: float, *how: float) -> float:
    return float(expected_time_s(np.array([run_s]), stops(*how))[0])


def test_the_worked_example_of_checkpoints_every_26_minutes():
    # 0.2 interruptions an hour, a checkpoint of 0.02 h every 0.434 h of work, restarts of 0.1 h: 11.7 % more.
    segment_s = (0.434 + 0.02) * HOUR
    work_s = 1000 * 0.434 * HOUR
    assert expected(1000 * segment_s, 0.2, segment_s, 0.1 * HOUR) / work_s == pytest.approx(1.1172, abs=1e-4)


@given(runs, segments, restarts)
def test_without_interruptions_time_is_that_of_nodes_on_demand(run_s, segment_s, restart_s):
    assert expected(run_s, 0.0, segment_s, restart_s) == run_s


@given(runs, segments, restarts, st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_more_interruptions_and_longer_restarts_never_save_time(run_s, segment_s, restart_s, one, other):
    few, many = sorted((one, other))
    calm = expected(run_s, few, segment_s, restart_s)
    assert run_s * (1 - 1e-9) <= calm <= expected(run_s, many, segment_s, restart_s) * (1 + 1e-9)
    assert calm <= expected(run_s, few, segment_s, restart_s + 60.0) * (1 + 1e-9)


@given(runs, runs, segments, restarts, st.floats(0.0, 5.0))
def test_a_longer_run_never_ends_earlier(one, other, segment_s, restart_s, per_hour):
    short, long = sorted((one, other))
    how = (per_hour, segment_s, restart_s)
    assert expected(short, *how) <= expected(long, *how) * (1 + 1e-9)


def test_a_hopeless_rate_stays_finite():
    assert np.isfinite(expected(1e6, 1e6, 1e5, 1e4))


def test_draws_have_the_mean_and_the_spread_of_a_simulated_run():
    how, run_s, rng = (0.5, 1800.0, 300.0), 3.0 * HOUR, np.random.default_rng(3)
    count = 20_000
    drawn = drawn_time_s(
        np.full((count, 1), run_s), stops(*how), rng.uniform(size=(count, 1)), rng.normal(size=(count, 1))
    )
    simulated = np.array([simulate(run_s, *how, rng) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(expected(run_s, *how), rel=0.01)
    assert simulated.mean() == pytest.approx(expected(run_s, *how), rel=0.02)
    assert drawn.std() == pytest.approx(simulated.std(), rel=0.15)
    assert expected_interruptions(np.array([run_s]), stops(*how))[0] == pytest.approx(
        0.5 / HOUR * expected(run_s, *how)
    )


def test_draws_without_interruptions_are_the_run_itself():
    quantiles = (np.arange(9) + 0.5)[:, None] / 9
    run_s = np.linspace(10.0, 20.0, 9)[:, None]
    assert (drawn_time_s(run_s, stops(0.0, 60.0, 30.0), quantiles, ndtri(quantiles)) == run_s).all()


def simulate(run_s: float, per_hour: float, segment_s: float, restart_s: float, rng: np.random.Generator) -> float:
    total, left = 0.0, run_s
    while left > 1e-9:
        part = needed = min(segment_s, left)
        while (failure := rng.exponential(HOUR / per_hour)) < needed:
            total, needed = total + failure, part + restart_s
        total, left = total + needed, left - part
    return total


@given(st.floats(0.0, 10.0), st.floats(0.001, 0.999))
def test_the_number_of_interruptions_is_poissons(mean, chance):
    found = float(poisson_quantile(np.array([mean]), np.array([chance]))[0])
    assert poisson.cdf(found, mean) >= chance - 1e-9
    assert found == 0 or poisson.cdf(found - 1, mean) < chance + 1e-9


@given(st.floats(10.1, 1e5), st.floats(0.001, 0.999))
def test_many_interruptions_are_poissons_to_within_one(mean, chance):
    found = float(poisson_quantile(np.array([mean]), np.array([chance]))[0])
    assert abs(found - poisson.ppf(chance, mean)) <= 1


def test_the_wait_for_a_node_is_neither_interrupted_nor_paid_for_the_absent_node():
    how = Interruptions(
        rate_per_s=np.array([10 / HOUR]),
        segment_s=np.array([5.0]),
        restart_s=np.array([2.0]),
        wait_s=np.array([HOUR]),
    )
    run_s = np.array([8.3])
    assert expected_time_s(run_s, how)[0] == pytest.approx(8.3 * 10 / HOUR * HOUR + 8.3, rel=0.02)
    assert expected_time_s(run_s, how.paid(np.array([1.0])))[0] == pytest.approx(8.3, rel=0.02)
    draws = (np.arange(2000) + 0.5)[:, None] / 2000
    drawn = drawn_time_s(np.full((2000, 1), 8.3), how, draws, np.zeros((2000, 1)))
    assert drawn.mean() == pytest.approx(expected_time_s(run_s, how)[0], rel=0.03)
