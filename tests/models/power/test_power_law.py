from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_samples import DEVICE, TOP_W, law_rows, law_values

from tula_core.models.power.law import device_of, epoch_time_power, work_of

vectors = st.lists(st.floats(-2.0, 2.0), min_size=12, max_size=12)


def epoch(vector: list[float], batch: float, limit: float) -> tuple[float, float]:
    device = device_of(np.array(vector[:5]) + np.array([-1.5, 0, 0, 0.5, 0]), TOP_W)
    work = work_of(np.array([vector[5:]]), np.array([batch]), np.array([512.0]), TOP_W)
    time_s, power_w = epoch_time_power(device, work, np.array([limit]))
    return float(time_s[0]), float(power_w[0])


@settings(max_examples=60)
@given(vectors, st.floats(1, 512), st.floats(60, 300), st.floats(60, 300))
def test_a_lower_power_limit_is_never_faster_and_never_draws_more(vector, batch, one, other):
    low, high = sorted((one, other))
    (slow_s, low_w), (fast_s, high_w) = epoch(vector, batch, low), epoch(vector, batch, high)
    assert slow_s >= fast_s * (1 - 1e-5)
    assert low_w <= high_w * (1 + 1e-4)


@settings(max_examples=60)
@given(vectors, st.floats(1, 512), st.floats(60, 300))
def test_power_lies_between_the_static_power_and_the_full_swing(vector, batch, limit):
    _, power_w = epoch(vector, batch, limit)
    static_w, swing_w = TOP_W * np.exp(vector[0] - 1.5), TOP_W * np.exp(vector[10])
    assert static_w * (1 - 1e-9) <= power_w <= (static_w + swing_w) * (1 + 1e-9)


def test_what_waits_for_the_host_loses_nothing_to_a_low_limit():
    rows = law_rows([8.0], [100.0, 300.0])
    time_s, _ = law_values(rows)
    by_work = time_s.reshape(3, 2)
    assert by_work[2, 0] / by_work[2, 1] == pytest.approx(1.0, abs=0.01)  # launches and the loader
    busy = law_values(law_rows([512.0], [100.0, 300.0]))[0].reshape(3, 2)
    assert busy[1, 0] / busy[1, 1] > 1.5


def test_time_per_epoch_is_inverse_to_small_batches_and_levels_off():
    time_s = law_values(law_rows([1.0, 2.0, 128.0, 256.0], [300.0], works=1))[0]
    assert time_s[0] / time_s[1] == pytest.approx(2.0, rel=0.02)
    assert time_s[2] / time_s[3] < 1.5


def test_a_batch_of_parameter_vectors_gives_the_rows_of_each():
    many = epoch_time_power(
        device_of(np.stack([DEVICE, DEVICE + 0.1]), TOP_W),
        work_of(np.zeros((2, 3, 7)), np.array([8.0, 64.0, 512.0]), np.full(3, 512.0), TOP_W),
        np.full(3, 200.0),
    )
    alone = epoch_time_power(
        device_of(DEVICE, TOP_W),
        work_of(np.zeros((3, 7)), np.array([8.0, 64.0, 512.0]), np.full(3, 512.0), TOP_W),
        np.full(3, 200.0),
    )
    assert many[0].shape == (2, 3)
    assert many[0][0] == pytest.approx(alone[0])
