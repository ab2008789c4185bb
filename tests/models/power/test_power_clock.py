from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.models.power.clock import clock_within, dynamic_share, power_budget_w

shares = st.floats(0.1, 1.0)


def array(*values: float) -> np.ndarray:
    return np.array(values)


@given(shares, shares, st.floats(0.3, 0.95))
def test_dynamic_power_rises_with_the_clock_and_is_one_at_the_full_clock(one, other, floor):
    low, high = sorted((one, other))
    assert dynamic_share(array(low), array(floor)) <= dynamic_share(array(high), array(floor)) + 1e-12
    assert dynamic_share(array(1.0), array(floor)) == pytest.approx(1.0)


def test_power_falls_with_the_cube_of_the_clock_and_linearly_at_the_lowest_voltage():
    cube = dynamic_share(array(0.9), array(0.1)) / dynamic_share(array(0.45), array(0.1))
    linear = dynamic_share(array(0.2), array(0.9)) / dynamic_share(array(0.1), array(0.9))
    assert cube == pytest.approx(8.0, rel=1e-3)
    assert linear == pytest.approx(2.0, rel=1e-3)


@given(st.floats(60, 500), st.floats(60, 500), st.floats(1, 50), st.floats(0.5, 20))
def test_a_budget_is_neither_above_the_limit_nor_above_the_demand(limit, demand, static, sharpness):
    budget = float(power_budget_w(array(limit), array(demand), array(static), array(sharpness), 500.0)[0])
    assert static <= budget <= min(max(limit, static + 10.0), demand) + 1e-9


def test_a_steady_load_far_below_its_limit_keeps_what_it_wants():
    budget = power_budget_w(array(400.0), array(100.0), array(30.0), array(20.0), 400.0)
    assert budget == pytest.approx(100.0)


def test_the_clock_is_the_highest_that_keeps_the_budget():
    def power(clock: np.ndarray) -> np.ndarray:
        return 50 + 200 * clock

    found = clock_within(power, array(150.0, 250.0, 400.0, 10.0))
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.1], rel=1e-5)
    assert found[1] == found[2] == 1.0
