from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.models.learning.convergence import examples_to_target
from tula_core.models.learning.mixture import mixture_of
from tula_core.models.learning.priors import read_prior
from tula_core.models.learning.work import WorkPrior, log_relative_work, work_prior
from tula_core.models.learning.work_fit import predict_work

logs = st.floats(-5, 15)
exponent = st.floats(0.3, 5)


def law(log_batch, log_critical, sharpness=1.0, growth=1.0):
    return log_relative_work(np.asarray(log_batch), np.array(log_critical), np.array(sharpness), np.array(growth))


@given(logs, logs, exponent, exponent)
def test_the_law_rises_with_the_batch_from_its_floor_at_most_as_fast_as_its_growth(low, critical, sharpness, growth):
    batches = np.linspace(low, low + 6, 25)
    values = law(batches, critical, sharpness, growth)
    steps = np.diff(values)
    assert (values >= 0).all() and (steps >= -1e-12).all() and (steps <= growth * 0.25 + 1e-9).all()
    assert float(law(critical - 60 / sharpness, critical, sharpness, growth)) == pytest.approx(0.0, abs=1e-9)
    far = critical + 60 / sharpness
    assert float(law(far, critical, sharpness, growth)) == pytest.approx(growth * (far - critical))


@given(logs, logs)
def test_the_law_with_exponents_of_one_is_the_hyperbola(batch, critical):
    expected = examples_to_target(np.array(math.exp(batch)), 1.0, math.exp(critical))
    assert float(law(batch, critical)) == pytest.approx(math.log(float(expected)))


def points(critical, sharpness=1.0, batches=(256, 1024, 4096, 16384)):
    work = np.exp(law(np.log(batches), math.log(critical), sharpness)) * 40.0
    return list(batches), work.tolist()


@settings(max_examples=20, deadline=None)
@given(st.floats(500, 50_000), st.floats(0.7, 2.5))
def test_the_truth_of_synthetic_curves_lies_inside(critical, sharpness):
    batches, work = points(critical, sharpness)
    for asked in (512.0, 8192.0, 32768.0):
        truth = 40.0 * math.exp(float(law(math.log(asked), math.log(critical), sharpness)))
        found = predict_work(batches, work, asked)
        assert found.quantile(0.05) < truth < found.quantile(0.95)
        assert found.quantile(0.5) == pytest.approx(truth, rel=0.15)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e6))
def test_units_of_work_and_batch_do_not_matter(work_scale, batch_scale):
    batches, work = points(5000)
    plain = predict_work(batches, work, 2048.0)
    scaled = predict_work([b * batch_scale for b in batches], [w * work_scale for w in work], 2048.0 * batch_scale)
    for share in (0.05, 0.5, 0.95):
        assert scaled.quantile(share) == pytest.approx(plain.quantile(share) * work_scale, rel=1e-6)


def test_the_middle_rises_with_the_batch_beyond_the_known_ones():
    batches, work = points(5000)
    middles = [predict_work(batches, work, asked).quantile(0.5) for asked in (2e4, 4e4, 8e4, 3e5)]
    assert middles == sorted(middles) and middles[0] > work[-1]


def width(found):
    return found.quantile(0.95) / found.quantile(0.05)


def test_one_point_answers_ever_wider_the_further_the_batch():
    widths = [width(predict_work([256], [40.0], asked)) for asked in (256.0, 512.0, 2048.0, 16384.0)]
    assert widths == sorted(widths) and widths[0] < 1.25 and widths[-1] > 2.0
    assert predict_work([256], [40.0], 256.0).quantile(0.5) == pytest.approx(40.0, rel=1e-3)


def test_repeated_points_narrow_the_answer_and_disagreeing_ones_widen_it():
    single = width(predict_work([256], [40.0], 256.0))
    assert width(predict_work([256] * 4, [40.0] * 4, 256.0)) < single
    assert width(predict_work([256] * 4, [20.0, 80.0, 25.0, 70.0], 256.0)) > 2 * single


@pytest.mark.parametrize("work", [[60.0, 40.0, 25.0, 15.0], [10.0, 90.0, 12.0, 80.0]])
def test_work_that_no_law_fits_is_answered_without_confidence(work):
    batches, fitting = points(5000)
    assert width(predict_work(batches, work, 32768.0)) > 2 * width(predict_work(batches, fitting, 32768.0))


@pytest.mark.parametrize(
    ("batches", "work", "asked", "named"),
    [
        ([], [], 8.0, "batches"),
        ([8], [math.nan], 8.0, "work"),
        ([8], [math.inf], 8.0, "work"),
        ([8, -1], [1.0, 2.0], 8.0, "batches"),
        ([8], [1.0], 0.0, "asked"),
        ([8, 16], [1.0], 8.0, "one number for each"),
    ],
)
def test_impossible_numbers_are_refused_by_name(batches, work, asked, named):
    with pytest.raises(InputError, match=named):
        predict_work(batches, work, asked)


def test_the_least_relative_error_is_at_or_below_the_middle():
    wide = mixture_of(np.array([1.0, 1.0]), np.array([0.0, 1.0]), np.array([0.3, 0.3]), 5.0)
    draws = np.array([wide.quantile(share) for share in (np.arange(2000) + 0.5) / 2000])
    best = min(np.linspace(0.5, 3.0, 251), key=lambda p: float(np.mean(np.abs(p - draws) / draws)))
    assert wide.least_relative_error() == pytest.approx(best, abs=0.02)
    assert wide.least_relative_error() < wide.quantile(0.5)
    assert wide.share_below(wide.quantile(0.3)) == pytest.approx(0.3, abs=1e-3)


def test_a_prior_without_a_told_range_is_as_central_and_wider():
    prior = work_prior()
    told = prior.critical(math.log(64), math.log(64) + prior.log_range)
    alone = prior.critical(math.log(64), None)
    assert alone[0] == pytest.approx(told[0]) and alone[1] > told[1]


@pytest.mark.parametrize("text", ["", "[]", '{"range_share": 1}', None])
def test_a_damaged_prior_is_refused(tmp_path, text):
    path = tmp_path / "work_priors.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"work_priors\.json.*Learn it anew"):
        read_prior(path, WorkPrior)


def test_a_prior_that_is_not_finite_is_refused(tmp_path):
    path = tmp_path / "work_priors.json"
    path.write_text(json.dumps({**work_prior().to_dict(), "noise_sd": math.inf}))
    with pytest.raises(InputError, match="noise_sd must be finite"):
        read_prior(path, WorkPrior)
