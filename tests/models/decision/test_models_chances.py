from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.models.decision.chances import (
    chance_at_least,
    chance_at_most,
    expected,
    expected_each,
    kept_with,
    reached_with,
)
from tula_core.records import Interval


def interval(value, below, above):
    """An interval whose halves have the log spreads ``below`` and ``above``."""
    z = 1.6448536269514722
    return Interval(value=value, low=value * math.exp(-z * below), high=value * math.exp(z * above))


SPREADS = st.floats(0.0, 1.5)
SKEWED = interval(10.0, 0.1, 0.4)


def test_the_interval_itself_is_returned_at_its_three_numbers():
    assert chance_at_most(SKEWED, SKEWED.low) == pytest.approx(0.05)
    assert chance_at_most(SKEWED, SKEWED.value) == 0.5
    assert chance_at_most(SKEWED, SKEWED.high) == pytest.approx(0.95)
    share = Interval(value=0.9, low=0.85, high=0.92)
    assert [round(chance_at_least(share, x), 9) for x in (0.85, 0.9, 0.92)] == [0.95, 0.5, 0.05]


def test_chance_and_mean_agree_with_draws():
    z = np.random.default_rng(1).standard_normal(400_000)
    draws = 10.0 * np.exp(np.where(z < 0, 0.1, 0.4) * z)
    assert chance_at_most(SKEWED, 12.0) == pytest.approx(float((draws <= 12.0).mean()), abs=0.003)
    assert expected(SKEWED) == pytest.approx(float(draws.mean()), rel=0.003)
    assert expected(interval(3.0, 0.5, 0.5)) == pytest.approx(3.0 * math.exp(0.125))


def test_without_spread_a_limit_is_kept_or_not():
    sure = Interval(value=5.0, low=5.0, high=5.0)
    assert [chance_at_most(sure, limit) for limit in (4.9, 5.0, 5.1)] == [0.0, 1.0, 1.0]
    assert [chance_at_least(sure, limit) for limit in (4.9, 5.0, 5.1)] == [1.0, 1.0, 0.0]
    assert kept_with(sure, 0.9) == reached_with(sure, 0.9) == expected(sure) == 5.0


def test_an_interval_without_bounds_gives_finite_numbers():
    vast = Interval(value=1.0, low=0.0, high=1e300)
    for number in (expected(vast), kept_with(vast, 0.99), chance_at_most(vast, 1e-9), chance_at_most(vast, 1e9)):
        assert math.isfinite(number)


@given(st.floats(1e-6, 1e6), SPREADS, SPREADS, st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_the_limit_kept_with_a_chance_has_that_chance(value, below, above, chance):
    forecast = interval(value, below + 0.01, above + 0.01)
    assert chance_at_most(forecast, kept_with(forecast, chance)) == pytest.approx(chance, abs=1e-6)
    assert chance_at_least(forecast, reached_with(forecast, chance)) == pytest.approx(chance, abs=1e-6)


@given(SPREADS, SPREADS, st.floats(0.1, 100.0), st.floats(0.0, 100.0), st.floats(0.5, 0.99), st.floats(0.0, 0.4))
@settings(max_examples=60, deadline=None)
def test_chances_rise_with_the_limit_and_limits_with_the_chance(below, above, limit, more, chance, added):
    forecast = interval(10.0, below, above)
    assert chance_at_most(forecast, limit) <= chance_at_most(forecast, limit + more)
    assert chance_at_least(forecast, limit) >= chance_at_least(forecast, limit + more)
    assert kept_with(forecast, chance) <= kept_with(forecast, min(chance + added, 0.99))


@given(SPREADS, SPREADS, st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_the_mean_follows_the_unit_and_grows_with_the_upper_half(below, above, unit):
    assert expected(interval(10.0 * unit, below, above)) == pytest.approx(unit * expected(interval(10.0, below, above)))
    assert expected(interval(10.0, below, above)) <= expected(interval(10.0, below, above + 0.1))


def test_the_mean_of_many_is_that_of_each() -> None:
    found = [
        Interval(value=10.0, low=8.0, high=15.0),
        Interval(value=3.0, low=3.0, high=3.0),
        Interval(value=2.0, low=0.0, high=4.0),
        Interval(value=1.0, low=1e-9, high=1e9),
    ]
    value, low, high = (np.array([getattr(each, name) for each in found]) for name in ("value", "low", "high"))
    assert expected_each(value, low, high) == pytest.approx([expected(each) for each in found])
    nothing = np.array([0.0, np.nan])
    assert np.isnan(expected_each(nothing, nothing, nothing)).all()
