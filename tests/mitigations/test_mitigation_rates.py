from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.job import Recipe
from tula_core.mitigations import check_options
from tula_core.mitigations.method import GradientMoments, Setting
from tula_core.mitigations.rates.adascale import AdaScale, gain
from tula_core.mitigations.rates.autowu import AutoWU, chance_past_minimum, warmup_rate
from tula_core.mitigations.rates.averages import RunningMean
from tula_core.mitigations.rates.plan import LearningRate, legw_warmup_share, saturating_factor

RECIPE = Recipe(optimizer="sgd", learning_rate=0.1, batch_size=32, epochs=10, schedule="cosine")


def setting(global_batch: int, **options: float) -> Setting:
    return Setting(
        recipe=RECIPE,
        processes=1,
        rank=0,
        local_batch=global_batch,
        accumulation=1,
        train_samples=3200,
        total_samples=32000,
        seed=0,
        options=options,
    )


@given(scale=st.floats(1.0, 256.0), sqr=st.floats(0.0, 10.0), var=st.floats(0.0, 1e4))
def test_the_gain_lies_between_one_and_the_scale(scale: float, sqr: float, var: float) -> None:
    found = gain(sqr, var, 32, scale)
    assert 1.0 - 1e-12 <= found <= scale * (1 + 1e-12)


def test_the_gain_has_the_papers_limits() -> None:
    assert gain(1.0, 0.0, 32, 8.0) == 1.0  # no noise: a larger batch changes nothing
    assert gain(0.0, 5.0, 32, 8.0) == 8.0  # nothing but noise: linear scaling
    assert gain(0.0, 0.0, 32, 8.0) == 1.0  # nothing is known
    assert gain(-3.0, 5.0, 32, 8.0) == 8.0  # a negative mean of the signal counts as none
    assert gain(0.5, 16.0, 32, 4.0) == pytest.approx((0.5 + 0.5) / (0.5 / 4 + 0.5))


def test_adascale_moves_the_schedule_by_its_gain_and_resumes_exactly() -> None:
    method, other = AdaScale(setting(256, memory=0.9)), AdaScale(setting(256, memory=0.9))
    seen = 0
    for step in range(40):
        moments = GradientMoments(squared_gradient=0.01, trace_covariance=1.0 + 0.01 * step, global_samples=256)
        method.observe(moments)
        seen += 256
        method.after_step(None, 256, seen)
        if step == 20:
            other.restore(method.state())
        elif step > 20:
            other.observe(moments)
            other.after_step(None, 256, seen)
    assert other.state() == method.state()
    assert 1.0 < method.decided()["gain"] < 8.0
    assert method.clock(seen) < seen  # a gain below the scale runs the schedule slower than samples go by
    assert method.clock(seen) == pytest.approx(32 * method.decided()["reference_steps"])
    assert method.rate(0.1, seen) == pytest.approx(0.1 * method.decided()["gain"])


def test_adascale_at_the_reference_batch_is_plain_training() -> None:
    method = AdaScale(setting(32, memory=0.9))
    for step in range(1, 5):
        method.observe(GradientMoments(squared_gradient=1.0, trace_covariance=2.0, global_samples=32))
        method.after_step(None, 32, 32 * step)
        assert method.rate(0.1, 0) == 0.1 and method.clock(32 * step) == 32 * step


def test_a_running_mean_forgets_alike_per_sample() -> None:
    small, large = RunningMean(0.9), RunningMean(0.9)
    for number in (1.0, 1.0, 4.0, 4.0):
        small.add(number, 1.0)
    large.add(1.0, 2.0)
    large.add(4.0, 2.0)
    assert small.value == pytest.approx(large.value)
    assert RunningMean(0.5).value == 0.0


@given(batch=st.integers(32, 100_000), noise=st.floats(1.0, 1e6))
def test_the_saturating_rule_lies_between_constant_and_linear(batch: int, noise: float) -> None:
    factor = saturating_factor(batch, 32, noise)
    assert 1.0 - 1e-9 <= factor <= batch / 32 * (1 + 1e-9)
    assert factor <= 1 + noise / 32 + 1e-9
    assert saturating_factor(32, 32, noise) == 1.0


def test_legw_warms_up_for_the_same_steps_at_every_batch() -> None:
    steps = []
    for batch in (32, 64, 256):
        rate = LearningRate.plan(RECIPE, batch, ("legw",), 32000)
        assert rate.factor == pytest.approx((batch / 32) ** 0.5)
        if batch > 32:
            steps.append(rate.warmup_samples / batch)
    assert steps[0] == pytest.approx(steps[1], abs=1)
    assert LearningRate.plan(RECIPE, 32, ("legw",), 32000).warmup_samples == 0
    assert legw_warmup_share(0.01, 1000.0) == 0.15


def test_the_warm_up_of_autowu_is_exponential() -> None:
    rates = [warmup_rate(fraction, 1e-5, 1.0, 0.5) for fraction in (0.0, 0.1, 0.2, 0.3)]
    assert np.diff(np.log(rates)) == pytest.approx([np.log(1e5) / 5] * 3)
    assert warmup_rate(0.9, 1e-5, 1.0, 0.5) == pytest.approx(1.0)


def v_shaped(samples: float, total: float) -> float:
    return 1.0 + 8.0 * abs(samples / total - 0.25)


def run_autowu(loss_of: object, noise: float, epochs: int = 40) -> AutoWU:
    options = {"lowest": 1e-4, "highest": 10.0, "warmup_share": 0.5, "patience": 3, "confidence": 0.95}
    base = setting(320, **options)
    method = AutoWU(
        Setting(
            recipe=base.recipe, processes=1, rank=0, local_batch=320, accumulation=1, train_samples=3200,
            total_samples=3200 * epochs, seed=0, options=options,
        )
    )  # fmt: skip
    generator = np.random.default_rng(1)
    for seen in range(320, 3200 * epochs + 1, 320):
        method.rate(0.0, seen)
        assert callable(loss_of)
        method.heard(float(loss_of(seen, 3200 * epochs)) + noise * generator.standard_normal(), seen)
    return method


def test_autowu_ends_its_warm_up_soon_after_the_minimum_and_near_its_rate() -> None:
    method = run_autowu(v_shaped, 0.05)
    decided = method.decided()
    assert 0.25 < decided["switched_at"] / (3200 * 40) < 0.25 + 5 / 40
    best = warmup_rate(0.25, 1e-4, 10.0, 0.5)
    assert best / 1.7 < decided["peak_before_reductions"] < best * 1.7


def test_autowu_keeps_rising_while_the_loss_falls() -> None:
    method = run_autowu(lambda seen, total: 3.0 - 2.0 * seen / total, 0.02)
    assert method.decided()["switched_at"] / (3200 * 40) == pytest.approx(0.5, abs=0.01)


def test_autowu_resumes_exactly_and_leaves_out_losses_that_are_not_numbers() -> None:
    method = run_autowu(v_shaped, 0.05, epochs=8)
    method.heard(float("nan"), 3200 * 8 + 1)
    other = AutoWU(method.setting)
    other.restore(method.state())
    assert other.state() == method.state()
    assert all(np.isfinite(method.state()["losses"]))


def test_the_chance_past_the_minimum_is_small_on_a_falling_curve() -> None:
    times = np.linspace(0.0, 1.0, 60)
    noise = 0.05 * np.random.default_rng(0).standard_normal(60)
    falling, _ = chance_past_minimum(times, 2.0 - times + noise, seed=0)
    risen, place = chance_past_minimum(times, np.abs(times - 0.5) + noise, seed=0)
    assert falling < 0.9 < risen
    assert place == pytest.approx(0.5, abs=0.1)


def test_the_rate_of_autowu_has_to_rise() -> None:
    with pytest.raises(InputError, match=r"autowu\.lowest: 1 is not below highest, 1e-05"):
        check_options(["autowu"], {"autowu": {"lowest": 1.0, "highest": 0.00001}})
    check_options(["autowu"], {"autowu": {"lowest": 0.001}})
