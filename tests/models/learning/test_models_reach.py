from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tula_core.errors import InputError
from tula_core.models.learning.ceilings import Ceilings, TargetRun, ceilings_of, scale_of
from tula_core.models.learning.censored import log_likelihood, log_share
from tula_core.models.learning.priors import read_prior
from tula_core.models.learning.reach import ReachPrior, reach_chances, reach_prior

LEVELS = np.array([0.5, 0.6, 0.7, 0.8])


def run(batch, ceiling, levels=LEVELS, slowing=0.6, pace=4.0):
    above = np.maximum(ceiling - levels, 1e-9)
    epochs = pace * above**-slowing if slowing else np.full(len(levels), 3.0)
    return TargetRun(batch=batch, levels=levels, epochs=np.where(levels < ceiling, epochs, np.nan))


def falling(batch):
    return 0.83 - 0.03 * math.log2(batch / 32)


def runs(batches=(32, 64, 128, 512, 1024), count=3):
    spread = (-0.004, 0.0, 0.004)
    return [run(float(b), falling(b) + s) for b in batches for s in spread[:count]]


def test_a_batch_between_known_ones_is_judged_by_the_curve_and_not_by_the_nearest():
    chance = reach_chances(runs(), 256.0, LEVELS)  # its best metric is 0.74
    assert chance[0] > 0.98 and chance[1] > 0.9 and chance[2] > 0.75 and chance[3] < 0.1


def test_a_trend_goes_on_beyond_the_known_batches():
    chance = reach_chances(runs(), 4096.0, LEVELS)  # 0.62
    assert chance[3] < 0.05 and chance[2] < 0.3 and chance[0] > 0.75


@settings(max_examples=25, deadline=None)
@given(st.floats(2, 1e6), st.lists(st.floats(0.4, 0.95), min_size=1, max_size=5), st.integers(0, 3))
def test_chances_are_probabilities_and_fall_with_the_level(batch, ceilings, doubled):
    given_runs = [run(32.0 * 2.0 ** (i % (doubled + 1)), ceiling) for i, ceiling in enumerate(ceilings)]
    chance = reach_chances(given_runs, batch, LEVELS)
    assert np.isfinite(chance).all() and (chance >= 0).all() and (chance <= 1).all()
    assert (np.diff(chance) <= 1e-12).all()


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(-100, 100), st.floats(1e-2, 1e2))
def test_neither_the_metric_s_unit_nor_its_zero_nor_the_batch_s_unit_matters(unit, shift, batch_unit):
    plain = reach_chances(runs(), 256.0, LEVELS)
    moved = [TargetRun(batch=r.batch * batch_unit, levels=r.levels * unit + shift, epochs=r.epochs) for r in runs()]
    np.testing.assert_allclose(reach_chances(moved, 256.0 * batch_unit, LEVELS * unit + shift), plain, atol=1e-3)


def test_a_metric_that_is_better_when_lower_gives_the_mirrored_chances():
    mirrored = [TargetRun(batch=r.batch, levels=-r.levels[::-1], epochs=r.epochs[::-1]) for r in runs()]
    np.testing.assert_allclose(
        reach_chances(mirrored, 256.0, -LEVELS[::-1])[::-1], reach_chances(runs(), 256.0, LEVELS), atol=1e-9
    )


def test_one_run_says_more_of_its_own_batch_than_of_one_far_away():
    near, far = (reach_chances([run(64.0, 0.74)], b, LEVELS) for b in (64.0, 65536.0))
    assert abs(near[3] - 0.5) > abs(far[3] - 0.5) and abs(near[0] - 0.5) > abs(far[0] - 0.5)


def test_runs_that_contradict_each_other_leave_both_outcomes_open():
    mixed = [run(64.0, ceiling, slowing=0.0) for ceiling in (0.55, 0.95, 0.52, 0.9)]
    chance = reach_chances(mixed, 64.0, LEVELS)
    assert (chance[1:3] > 0.2).all() and (chance[1:3] < 0.8).all()


def test_runs_of_one_level_that_all_or_none_meet_are_answered():
    level = np.array([0.7])
    met = [TargetRun(batch=64.0, levels=level, epochs=np.array([5.0]))] * 3
    missed = [TargetRun(batch=64.0, levels=level, epochs=np.array([np.nan]))] * 3
    assert reach_chances(met, 64.0, level)[0] > 0.8 and reach_chances(missed, 64.0, level)[0] < 0.2


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([], "runs: at least one"),
        ([TargetRun(batch=math.nan, levels=LEVELS, epochs=LEVELS)], "batch"),
        ([TargetRun(batch=8.0, levels=LEVELS, epochs=LEVELS[:2])], "one for each"),
        ([TargetRun(batch=8.0, levels=LEVELS * 0, epochs=LEVELS)], "each once"),
        ([TargetRun(batch=8.0, levels=LEVELS, epochs=-LEVELS)], "above 0"),
        ([TargetRun(batch=8.0, levels=LEVELS, epochs=LEVELS * math.inf)], "above 0"),
    ],
)
def test_impossible_runs_are_refused(bad, named):
    with pytest.raises(InputError, match=named):
        reach_chances(bad, 8.0, LEVELS)


def test_an_impossible_question_is_refused():
    with pytest.raises(InputError, match="batch, levels"):
        reach_chances(runs(), math.inf, LEVELS)
    with pytest.raises(InputError, match="batch, levels"):
        reach_chances(runs(), 8.0, np.array([math.nan]))


@given(st.floats(0.61, 0.69), st.floats(0.3, 1.5))
def test_slowing_down_gives_the_ceiling_of_a_power_law(ceiling, slowing):
    one = run(8.0, ceiling, slowing=slowing, pace=1e4)
    scale = scale_of([one])
    found = ceilings_of([one], scale, slowing=slowing, relative_sd=0.5, least_sd=0.1)
    assert found.estimate[0] * scale.unit == pytest.approx(ceiling, abs=2e-3)
    assert found.low[0] == pytest.approx(6.0) and found.high[0] == pytest.approx(7.0)


@given(st.floats(-8, 8), st.floats(0.01, 4))
def test_the_share_between_two_edges_is_that_of_the_normal_distribution(low, width):
    found = float(log_share(np.array(low), np.array(low + width)))
    near, far = (low, low + width) if low > 0 else (-low - width, -low)
    if near > 0:
        expected = norm.logsf(near) + np.log1p(-np.exp(norm.logsf(far) - norm.logsf(near)))
    else:
        expected = np.log(norm.cdf(low + width) - norm.cdf(low))
    assert found == pytest.approx(float(expected), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-3, 3),
    st.floats(0.1, 2),
    st.sampled_from([(-0.5, 0.5), (-math.inf, 0.2), (0.3, math.inf)]),
    st.sampled_from([math.inf, 0.3]),
)
def test_the_likelihood_is_concave_and_its_derivatives_are_right(mean, spread, interval, sd):
    seen = Ceilings(
        low=np.array([interval[0]]), high=np.array([interval[1]]), estimate=np.array([0.1]), sd=np.array([sd])
    )
    step = 1e-4
    value, slope, bend = log_likelihood(np.array([mean]), seen, np.array(spread))
    up, down = (log_likelihood(np.array([mean + d]), seen, np.array(spread)) for d in (step, -step))
    assert float(slope[0]) == pytest.approx(float((up[0][0] - down[0][0]) / (2 * step)), rel=1e-3, abs=1e-4)
    assert float(bend[0]) == pytest.approx(float((up[1][0] - down[1][0]) / (2 * step)), rel=1e-3, abs=1e-3)
    assert float(bend[0]) <= 1e-9 and math.isfinite(float(value[0]))


@pytest.mark.parametrize("text", ["", "[]", '{"slowing": 1}', None])
def test_a_damaged_prior_of_reach_is_refused(tmp_path, text):
    path = tmp_path / "reach_priors.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"reach_priors\.json.*Learn it anew"):
        read_prior(path, ReachPrior)
    path.write_text(json.dumps({**reach_prior().to_dict(), "slope": math.nan}))
    with pytest.raises(InputError, match="slope must be finite"):
        read_prior(path, ReachPrior)
