"""pareto, knee and objective: laws of the geometry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.search.knee import knee_index, kneedle_index, saving_of_next_doubling
from tula_core.search.pareto import pareto_front

positive = st.integers(1, 40).map(float)
points = st.lists(st.tuples(positive, positive), min_size=1, max_size=25)


def front_of(pairs):
    times, expenses = (np.array(values) for values in zip(*pairs, strict=True))
    return pareto_front(times, expenses), times, expenses


@given(points)
def test_the_front_is_what_brute_force_finds(pairs):
    front, times, expenses = front_of(pairs)
    undominated = {(t, c) for t, c in pairs if not any(a <= t and b <= c and (a < t or b < c) for a, b in pairs)}
    assert {(times[i], expenses[i]) for i in front} == undominated
    assert len(front) == len(undominated)
    assert (np.diff(expenses[front]) > 0).all() and (np.diff(times[front]) < 0).all()


@given(points, st.data())
def test_a_dominated_point_changes_nothing(pairs, data):
    front, times, expenses = front_of(pairs)
    t, c = data.draw(st.sampled_from(pairs))
    more, more_times, more_expenses = front_of([*pairs, (t + 1, c + 1)])
    assert list(more_times[more]) == list(times[front]) and list(more_expenses[more]) == list(expenses[front])


def test_of_equal_points_the_preferred_one_is_kept():
    times, expenses = np.array([2.0, 2.0, 1.0]), np.array([1.0, 1.0, 3.0])
    assert list(pareto_front(times, expenses)) == [0, 2]
    assert list(pareto_front(times, expenses, np.array([5, 1, 0]))) == [1, 2]


@pytest.mark.parametrize("slope", [0.1, 0.5, 1.0])
def test_the_saving_of_a_power_law_is_the_same_for_every_sampling(slope):
    for expenses in (np.array([1.0, 1.1, 1.7, 5.0, 9.0]), np.array([1.0, 1.3]), np.geomspace(1, 64, 40)):
        times = 100 * expenses**-slope
        savings = [saving_of_next_doubling(expenses, times, i) for i in range(len(expenses) - 1)]
        assert savings == pytest.approx([1 - 2**-slope] * len(savings))


def test_the_knee_by_hand():
    # Doublings save 50 %, 20 %, 9 %, 50 %: the walk stops at the third point and does not look past it.
    expenses, times = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([100.0, 50.0, 40.0, 36.4, 18.2])
    assert knee_index(expenses, times) == 2


def test_a_flat_step_within_a_doubling_does_not_stop_the_walk():
    assert knee_index(np.array([1.0, 1.05, 2.0]), np.array([100.0, 99.9, 50.0])) == 2


def test_the_ends_of_the_walk():
    assert knee_index(np.array([3.0]), np.array([7.0])) == 0
    assert knee_index(np.array([1.0, 2.0, 4.0]), np.array([100.0, 80.0, 60.0])) == 2
    assert knee_index(np.array([1.0, 2.0]), np.array([100.0, 91.0])) == 0


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_knee_depends_on_no_unit(time_unit, money_unit):
    expenses = np.array([1.0, 1.4, 2.9, 6.1, 13.0])
    times = np.array([100.0, 70.0, 48.0, 46.0, 45.0])
    assert knee_index(expenses * money_unit, times * time_unit) == knee_index(expenses, times) == 2


def test_kneedle_finds_the_elbow_and_is_silent_where_there_is_none():
    expenses = np.geomspace(1, 128, 8)
    elbow = np.where(expenses <= 8, 100 / expenses, 12.5 * (expenses / 8) ** -0.05)
    assert kneedle_index(expenses, elbow) == 3
    assert kneedle_index(expenses, 100 / expenses) is None
    assert kneedle_index(expenses[:4], elbow[:4]) is None
    assert kneedle_index(expenses, np.full(8, 5.0)) is None


def test_saving_is_a_number_even_for_a_tiny_step():
    assert math.isfinite(saving_of_next_doubling(np.array([1.0, 1.0 + 1e-12]), np.array([1.0, 1.0 - 1e-12]), 0))
