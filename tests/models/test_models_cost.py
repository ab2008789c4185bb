import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.models.cost import billed_s, cost_usd, node_hours
from tula_core.models.power.energy import energy_j

seconds = st.floats(1e-3, 1e7)


def test_two_nodes_for_an_hour_at_forty_cents():
    assert cost_usd(np.array(2.0), np.array(3600.0), 0.40, 1.0) == pytest.approx(0.80)


@pytest.mark.parametrize(("wall_s", "expected"), [(1.0, 60.0), (60.0, 60.0), (60.0 + 1e-9, 60.0), (61.0, 120.0)])
def test_billing_rounds_up_to_the_quantum(wall_s, expected):
    assert billed_s(np.array(wall_s), 60.0) == pytest.approx(expected)


@given(seconds, st.floats(0.01, 3600))
def test_billed_is_at_least_what_was_used_and_less_than_a_quantum_more(wall_s, quantum):
    billed = float(billed_s(np.array(wall_s), quantum))
    assert wall_s * (1 - 1e-8) <= billed < wall_s * (1 + 1e-8) + quantum


@given(seconds, st.integers(1, 64), st.floats(0.01, 100), st.floats(0, 10))
def test_cost_never_falls_when_the_price_rises(wall_s, nodes, price, more):
    args = np.array(float(nodes)), np.array(wall_s)
    assert cost_usd(*args, price + more, 60.0) >= cost_usd(*args, price, 60.0)


def test_twice_the_nodes_for_half_the_time_cost_the_same():
    one = cost_usd(np.array(1.0), np.array(7200.0), 3.0, 1.0)
    assert cost_usd(np.array(2.0), np.array(3600.0), 3.0, 1.0) == pytest.approx(float(one))
    assert node_hours(np.array(2.0), np.array(3600.0)) == 2.0


def test_a_quantum_of_nothing_is_refused():
    with pytest.raises(InputError, match="billing_seconds"):
        billed_s(np.array(1.0), 0.0)


def test_energy_is_power_times_time_times_nodes():
    assert energy_j(np.array(3.0), np.array(10.0), 200.0) == 6000.0
