import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.profiling.statistics import (
    PARTS,
    block_scatter,
    drift,
    forecast_peak,
    parts_of_step,
    robust_mean,
    rounds_of,
    standard_error,
)

durations = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


@given(durations, st.floats(1e-3, 1e3))
def test_robust_mean_lies_within_the_values_and_scales_with_them(values, factor):
    mean = robust_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert robust_mean([factor * value for value in values]) == pytest.approx(factor * mean)


def test_one_hiccup_does_not_rule_the_mean_but_slow_steps_count():
    steady = [0.1, 0.11, 0.09, 0.1, 0.105, 0.095]
    assert robust_mean([*steady, 60.0]) == pytest.approx(0.1, rel=0.1)
    slow_third = [0.1, 0.11, 0.09, 0.14, 0.1, 0.14]
    assert robust_mean(slow_third) == pytest.approx(sum(slow_third) / 6)


def test_error_sees_a_drift_between_blocks():
    same = standard_error([[0.1, 0.101, 0.099] * 5, [0.1, 0.101, 0.099] * 5])
    moved = standard_error([[0.1, 0.101, 0.099] * 5, [0.2, 0.201, 0.199] * 5])
    assert same < 0.001
    assert moved == pytest.approx(0.05, rel=0.2)


def test_error_of_few_steps_is_what_a_shared_machine_shows():
    assert standard_error([[0.1, 0.1]]) == pytest.approx(0.25 * 0.1 / math.sqrt(2))


@given(st.fixed_dictionaries({name: st.floats(-1, 10) for name in PARTS}), st.floats(1e-5, 10))
def test_parts_sum_to_the_step_and_none_is_negative(measured, step_time_s):
    parts = parts_of_step(measured, step_time_s)
    assert set(parts) == set(PARTS)
    assert sum(parts.values()) == pytest.approx(step_time_s)
    assert min(parts.values()) >= 0


def test_drift_is_the_median_change():
    assert drift({8: 1.0, 16: 2.0, 32: 4.0}, {8: 1.3, 16: 2.6, 32: 4.0}) == pytest.approx(0.3)
    assert drift({8: 1.0}, {16: 1.0}) == 0.0


def test_memory_forecast_follows_a_line_that_shows():
    peaks = [(8, 1080), (16, 1160), (32, 1320)]
    assert 1640 <= forecast_peak(peaks, 1000, 64) <= 1680


def test_memory_forecast_without_growth_is_the_most_that_could_be():
    flat = [(8, 1500), (16, 1500), (32, 1500)]
    assert forecast_peak(flat, 1000, 64) == 2000
    assert forecast_peak([(1, 2816), (2, 2852), (4, 2842)], 2842, 8) == 2842


def test_the_scatter_of_blocks_tells_drift_from_noise():
    assert block_scatter([[1.0, 1.2]]) is None
    assert block_scatter([[1.0, 1.0], [1.0, 1.0]]) == 0.0
    assert block_scatter([[1.0] * 20, [2.0] * 20]) == pytest.approx(math.log(2) / math.sqrt(2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 1.001, 0.999, 10.0] * 8, 3.25), ([10.0, 10.0, 10.0, 1.0] * 8, 7.75), ([1.0, 1.0, 10.0, 1.0, 10.0], 4.6)],
)
def test_a_pattern_that_recurs_counts_whole(values, expected):
    assert robust_mean(values) == pytest.approx(expected)


@pytest.mark.parametrize("stall", [[60.0], [40.0, 20.0]])
def test_a_lone_stall_is_clipped_and_doubted(stall):
    steady = [0.1, 0.11, 0.09, 0.1, 0.105, 0.095] * 5
    assert robust_mean([*steady, *stall, *steady]) == pytest.approx(0.1, rel=0.05)
    quiet, doubted = standard_error([steady]), standard_error([[*steady, *stall]])
    assert quiet < 0.02 * 0.1 < 0.2 * 0.1 < doubted < 0.5 * 0.1


def test_one_slow_step_in_ten_may_be_the_first_of_many():
    values = [1.0] * 9 + [10.0]
    assert robust_mean(values) + standard_error([values]) == pytest.approx(1.9)


def test_rounds_leave_out_what_does_not_fill_one():
    assert rounds_of([1.0, 1.0, 10.0] * 3 + [1.0], 3) == pytest.approx([4.0] * 3)
    assert rounds_of([0.3, 0.4], 1) == [0.3, 0.4]
