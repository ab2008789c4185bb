from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_samples import law_rows, law_values, measured_law

from tula_core.errors import InputError
from tula_core.models.power.fit import fit_power
from tula_core.models.power.model import fit_model
from tula_core.models.power.priors import BROAD, Priors, learnt
from tula_core.models.power.rows import MeasuredRows, PowerRows

KNOWN = law_rows([8.0, 64.0, 1024.0], [100.0, 300.0])
ASKED = law_rows([16.0, 32.0, 256.0, 512.0], [125.0, 175.0, 225.0])


def test_the_law_is_recovered_between_and_beyond_what_was_measured():
    forecast = fit_model(measured_law(KNOWN)).forecast(ASKED)
    time_s, power_w = law_values(ASKED)
    assert np.mean(np.abs(forecast.time_s / time_s - 1)) < 0.05
    assert np.mean(np.abs(forecast.power_w / power_w - 1)) < 0.05
    assert forecast.energy_j == pytest.approx(forecast.time_s * forecast.power_w)


def test_static_power_is_recovered_from_works_that_wait_for_the_host():
    fit = fit_power(measured_law(law_rows([8.0, 64.0, 256.0, 1024.0], [100.0, 150.0, 200.0, 300.0])), BROAD)
    assert np.exp(fit.vector[0]) == pytest.approx(0.2, rel=0.15)


def test_noisy_rows_stay_inside_the_interval_as_often_as_is_said():
    inside = []
    time_s, power_w = law_values(ASKED)
    for seed in range(6):
        forecast = fit_model(measured_law(KNOWN, noise=0.03, seed=seed)).forecast(ASKED)
        for quantity, truth in (("time_s", time_s), ("power_w", power_w)):
            low, high = forecast.interval(quantity)
            inside.append((low <= truth) & (truth <= high))
    assert np.mean(inside) >= 0.85


def test_one_wild_row_does_not_spoil_the_others():
    measured = measured_law(KNOWN)
    wild = dataclasses.replace(measured, time_s=np.where(np.arange(len(measured.time_s)) == 4, 9, 1) * measured.time_s)
    asked = law_rows([16.0, 256.0], [125.0, 225.0])
    others = asked.work != KNOWN.work[4]
    forecast, plain = fit_model(wild).forecast(asked), fit_model(measured).forecast(asked)
    assert forecast.time_s[others] == pytest.approx(plain.time_s[others], rel=0.1)


def test_a_single_row_gives_a_forecast_with_a_wide_interval():
    one = MeasuredRows(
        asked=PowerRows(work=np.array([0]), batch=np.array([64.0]), limit_w=np.array([250.0])),
        time_s=np.array([100.0]),
        power_w=np.array([180.0]),
    )
    asked = PowerRows(work=np.zeros(2, dtype=int), batch=np.array([64.0, 2048.0]), limit_w=np.array([250.0, 125.0]))
    forecast = fit_model(one).forecast(asked)
    assert forecast.time_s[0] == pytest.approx(100.0, rel=0.1)
    assert forecast.power_w[0] == pytest.approx(180.0, rel=0.1)
    assert np.isfinite(forecast.time_s).all() and forecast.time_log_sd[1] > 0.3
    assert forecast.time_log_sd[1] > 3 * forecast.time_log_sd[0]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 1e5), st.floats(5, 500)), min_size=4, max_size=4),
    st.floats(1, 1e5),
    st.lists(st.floats(50, 400), min_size=2, max_size=6),
)
def test_whatever_was_measured_a_lower_limit_is_never_faster(values, batch, limits):
    rows = law_rows([8.0, 128.0], [100.0, 300.0], works=1)
    time_s, power_w = np.array(values).T
    model = fit_model(MeasuredRows(asked=rows, time_s=time_s, power_w=power_w))
    limits = np.sort(np.array(limits))
    asked = PowerRows(work=np.zeros(len(limits), dtype=int), batch=np.full(len(limits), batch), limit_w=limits)
    forecast = model.forecast(asked)
    assert np.isfinite(forecast.time_s).all() and np.isfinite(forecast.energy_log_sd).all()
    assert (np.diff(np.log(forecast.time_s)) <= 1e-4).all()


def test_the_unit_of_time_does_not_matter():
    measured = measured_law(KNOWN)
    hours = dataclasses.replace(measured, time_s=measured.time_s / 3600)
    one, other = fit_model(measured).forecast(ASKED), fit_model(hours).forecast(ASKED)
    assert other.time_s * 3600 == pytest.approx(one.time_s, rel=1e-2)
    assert other.power_w == pytest.approx(one.power_w, rel=1e-2)


@pytest.mark.parametrize(("name", "value"), [("time_s", np.nan), ("time_s", 0.0), ("power_w", np.inf), ("power_w", -5)])
def test_an_impossible_measurement_is_refused_by_name(name, value):
    measured = measured_law(KNOWN)
    broken = np.array(getattr(measured, name))
    broken[2] = value
    with pytest.raises(InputError, match=rf"{name} of row 3 must be a finite number above 0"):
        dataclasses.replace(measured, **{name: broken})


def test_nothing_measured_and_impossible_limits_are_refused():
    empty = PowerRows(work=np.array([], dtype=int), batch=np.array([]), limit_w=np.array([]))
    with pytest.raises(InputError, match="no measured row"):
        MeasuredRows(asked=empty, time_s=np.array([]), power_w=np.array([]))
    with pytest.raises(InputError, match="limit_w of row 1"):
        PowerRows(work=np.array([0]), batch=np.array([8.0]), limit_w=np.array([-1.0]))


def test_the_priors_of_the_package_round_trip_and_refuse_what_is_damaged():
    priors = learnt()
    again = Priors.from_dict(json.loads(json.dumps(priors.to_dict())))
    assert again.work_mean == pytest.approx(priors.work_mean)
    assert again.time_misfit == priors.time_misfit
    with pytest.raises(ValueError, match="device_sd"):
        Priors.from_dict(priors.to_dict() | {"device_sd": [1.0]})
