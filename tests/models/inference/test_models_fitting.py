import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.models.inference.fitting import (
    Prior,
    fit_map,
    pseudo_huber,
    standard_draws,
    theil_sen_slope,
)


def line(slope, intercept, x, noise):
    y = slope * x + intercept
    return lambda theta: (theta[0] * x + theta[1] - y) / noise


def test_recovers_a_line_and_knows_how_well():
    x = np.linspace(0, 1, 20)
    found = fit_map(line(2.0, -1.0, x, 0.1), Prior.of(slope=(0.0, 10.0), intercept=(0.0, 10.0)))
    assert found["slope"] == pytest.approx(2.0, abs=0.01)
    assert found["intercept"] == pytest.approx(-1.0, abs=0.01)
    columns = np.stack([x, np.ones_like(x)], axis=1)
    expected = np.linalg.inv(columns.T @ columns / 0.01 + np.eye(2) / 100)
    assert found.covariance == pytest.approx(expected, rel=0.02)


def test_without_data_the_prior_comes_back():
    found = fit_map(lambda theta: np.empty(0), Prior.of(a=(3.0, 0.5)))
    assert found["a"] == pytest.approx(3.0)
    assert found.sd("a") == pytest.approx(0.5, rel=1e-3)


def test_an_outlier_moves_a_fit_little():
    x = np.linspace(0, 1, 20)
    y = 2.0 * x
    y[7] += 100.0
    found = fit_map(lambda t: (t[0] * x - y) / 0.1, Prior.of(slope=(0.0, 10.0)))
    assert found["slope"] == pytest.approx(2.0, abs=0.2)


def test_contradictory_data_widen_the_fit():
    prior = Prior.of(a=(0.0, 10.0))
    agree = fit_map(lambda t: (t[0] - np.array([1.0, 1.0, 1.0, 1.0])) / 0.1, prior)
    differ = fit_map(lambda t: (t[0] - np.array([0.0, 2.0, 0.0, 2.0])) / 0.1, prior)
    assert differ["a"] == pytest.approx(1.0, abs=0.05)
    assert differ.sd("a") > 2 * agree.sd("a")


@given(st.floats(-1e9, 1e9))
def test_pseudo_huber_is_odd_and_never_above_its_residual(residual):
    value = pseudo_huber(np.array([residual, -residual]))
    assert value[0] == -value[1]
    assert abs(value[0]) <= abs(residual) * (1 + 1e-9) + 1e-12


def test_pseudo_huber_is_the_identity_near_zero():
    assert pseudo_huber(np.array([1e-6]))[0] == pytest.approx(1e-6)


def test_draws_are_the_same_each_time_and_have_the_covariance():
    assert np.array_equal(standard_draws(64, 3, seed=1), standard_draws(64, 3, seed=1))
    assert not np.array_equal(standard_draws(64, 3, seed=1), standard_draws(64, 3, seed=2))
    found = fit_map(line(2.0, -1.0, np.linspace(0, 1, 5), 0.1), Prior.of(slope=(0.0, 10.0), intercept=(0.0, 10.0)))
    drawn = found.draws(standard_draws(4000, 2))
    assert np.cov(drawn.T) == pytest.approx(found.covariance, rel=0.1, abs=1e-4)


def test_theil_sen_ignores_one_outlier_and_equal_places():
    assert theil_sen_slope([1, 2, 3, 4, 5], [1, 2, 99, 4, 5]) == pytest.approx(1.0)
    assert theil_sen_slope([1, 1], [3, 9]) == 0.0
