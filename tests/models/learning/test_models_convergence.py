import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import TRUTH, make_facts, make_job, make_pilot, make_profile, true_metric
from tula_core.errors import InputError
from tula_core.models.learning.convergence import (
    effective_steps,
    examples_to_target,
    reducible_log_of,
    steps_to_target,
    total_gap,
)
from tula_core.models.learning.critical import critical_prior
from tula_core.models.learning.effects import Effects, distinct
from tula_core.models.learning.fit import DRAWS, _first_within, fit_learning
from tula_core.models.learning.schedules import annealing
from tula_core.models.predictor import fit
from tula_core.records import MitigationEffect, PilotPoint

BATCHES = np.array([16.0, 64.0, 256.0, 1024.0, 4096.0])
size = st.floats(1, 1e6)


def forecast(model, batches=BATCHES, **given_options):
    options = {"train_samples": 20_000, "cap_epochs": 5, "schedule": "cosine", "target": None}
    return model.forecast(np.asarray(batches, dtype=float), **{**options, **given_options})


def model_of(**overrides):
    return fit_learning(make_profile(**overrides), reference_batch=64)


@given(size, size, size)
def test_steps_and_examples_lie_on_the_hyperbola(batch, least_steps, critical):
    steps = float(steps_to_target(np.array(batch), least_steps, critical))
    examples = float(examples_to_target(np.array(batch), least_steps * critical, critical))
    assert examples == pytest.approx(batch * steps)
    assert (steps / least_steps - 1) * (examples / (least_steps * critical) - 1) == pytest.approx(1.0, rel=1e-3)
    assert float(effective_steps(np.array(examples), np.array(batch), critical)) == pytest.approx(least_steps)


@pytest.mark.parametrize(
    ("batch", "fitted", "observed"), [(4096, 37.6, 40.0), (32768, 58.7, 56.0), (65536, 82.9, 84.5)]
)
def test_published_epochs_of_resnet_50(batch, fitted, observed):
    epochs = float(examples_to_target(np.array(float(batch)), 34.6, 46_900))
    assert epochs == pytest.approx(fitted, abs=0.2)
    assert epochs == pytest.approx(observed, rel=0.07)


@given(st.floats(-8, 8), st.floats(0.001, 0.5))
def test_gap_stays_between_floor_and_chance_and_inverts(log_gap, floor):
    gap = float(total_gap(np.array(log_gap), np.array(floor), 0.9))
    assert floor <= gap <= 0.9
    if floor * 1.01 < gap < 0.89:
        assert float(reducible_log_of(np.array(gap), np.array(floor), 0.9)) == pytest.approx(
            log_gap, rel=1e-3, abs=1e-3
        )


def test_gaps_out_of_reach_and_at_once():
    found = reducible_log_of(np.array([0.01, 0.02, 0.95]), np.array(0.02), 0.9)
    assert found.tolist() == [-np.inf, -np.inf, np.inf]


def test_fit_recovers_critical_batch_and_power():
    model = model_of(pilots=(make_pilot(32, 20_000), make_pilot(256, 20_000), make_pilot(2048, 40_000)))
    assert model.critical_batch == pytest.approx(TRUTH["critical_batch"], rel=0.4)
    assert np.exp(model.posterior["log_power"]) == pytest.approx(TRUTH["power"], rel=0.35)


def test_accuracy_at_the_budget_covers_the_truth():
    low, high = np.quantile(forecast(model_of()).metric, (0.05, 0.95), axis=0)
    for batch, lowest, highest in zip(BATCHES, low, high, strict=True):
        assert lowest < true_metric(100_000, batch, 1.0) < highest


def test_accuracy_at_a_budget_falls_with_the_batch():
    middle = np.median(forecast(model_of()).metric, axis=0)
    assert (np.diff(middle) < 0).all()


def test_epochs_to_a_target_and_its_chance_follow_batch_and_target():
    model = model_of()
    easy, hard = forecast(model, target=0.7), forecast(model, target=0.88)
    assert (np.diff(easy.epochs.mean(axis=0)) >= 0).all()
    assert (np.diff(easy.reached.mean(axis=0)) <= 0).all()
    assert (hard.epochs >= easy.epochs).all()
    assert (hard.reached <= easy.reached).all()
    assert easy.epochs.min() >= 1
    assert easy.epochs.max() <= 5


def test_where_the_target_is_reached_the_metric_is_at_least_that():
    found = forecast(model_of(), target=0.8)
    assert (found.metric[found.reached] >= 0.8 - 1e-9).all()
    assert (found.metric[~found.reached] < 0.8).all()
    assert (found.epochs[~found.reached] == 5).all()


def test_targets_at_the_ceiling_and_below_chance():
    model = model_of()
    assert not forecast(model, target=1.0).reached.any()
    below = forecast(model, target=0.05)
    assert below.reached.all()
    assert (below.epochs == 1).all()


def test_longer_runs_learn_more():
    model = model_of()
    shorter, longer = (np.median(forecast(model, cap_epochs=cap).metric, axis=0) for cap in (3, 30))
    assert (longer > shorter).all()


def test_very_long_runs_are_looked_at_on_a_grid():
    found = forecast(model_of(), cap_epochs=10**6, target=0.999)
    assert found.epochs.max() == 10**6
    assert np.isfinite(found.metric).all()


def test_one_pilot_leans_on_the_noise_scale():
    one = model_of(pilots=(make_pilot(64),))
    two = model_of()
    blind = model_of(pilots=(make_pilot(64),), noise=None)
    noisy = dataclasses.replace(make_profile().noise, noise_scale_samples=1500.0)
    assert one.critical_batch < model_of(pilots=(make_pilot(64),), noise=noisy).critical_batch
    assert 150.0 < one.critical_batch < blind.critical_batch
    assert two.posterior.sd("log_critical") < one.posterior.sd("log_critical") < blind.posterior.sd("log_critical")


def test_no_usable_pilot_gives_no_model():
    guess = dataclasses.replace(make_pilot(64), points=tuple(
        dataclasses.replace(point, metric=0.1) for point in make_pilot(64).points
    ))  # fmt: skip
    diverged = dataclasses.replace(make_pilot(64), diverged=True)
    assert model_of(pilots=()) is None
    assert model_of(pilots=(guess,)) is None
    assert model_of(pilots=(diverged,)) is None


def test_a_diverged_pilot_changes_nothing():
    diverged = dataclasses.replace(make_pilot(4096), diverged=True)
    assert np.array_equal(
        forecast(model_of(pilots=(make_pilot(64), make_pilot(512), diverged))).metric, forecast(model_of()).metric
    )


def test_a_loss_falls_instead_of_rising():
    pilots = tuple(
        dataclasses.replace(
            pilot, points=tuple(dataclasses.replace(p, metric=2.0 * (1.0 - p.metric)) for p in pilot.points)
        )
        for pilot in make_profile().pilots
    )
    facts = make_facts(metric="loss", higher_is_better=False, metric_ceiling=None, chance=1.8)
    model = model_of(pilots=pilots, facts=facts)
    middle = np.median(forecast(model).metric, axis=0)
    assert (np.diff(middle) > 0).all()
    assert ((middle > 0) & (middle < 1.8)).all()
    assert forecast(model, target=1.0).reached.mean() > 0.5


def test_perfect_accuracy_in_a_pilot_stays_finite():
    pilot = make_pilot(64)
    perfect = dataclasses.replace(pilot, points=tuple(dataclasses.replace(p, metric=1.0) for p in pilot.points))
    found = forecast(model_of(pilots=(perfect,)))
    assert np.isfinite(found.metric).all()
    assert (found.metric <= 1.0).all()


def transient_pilot(global_batch, samples):
    """Three quarters of a guess's gap gone within the first tenth, at a power of 0.9; then a power of 0.15."""
    knee, knee_gap = 0.1 * samples, 0.2
    fractions = np.array([0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 0.8, 1.0])
    gaps = np.where(fractions < 0.1, knee_gap * (fractions / 0.1) ** -0.9, knee_gap * (fractions / 0.1) ** -0.15)
    points = tuple(
        PilotPoint(
            samples=round(samples * share),
            schedule_fraction=float(share),
            annealing=float(annealing("trapezoid", np.array(share))),
            train_loss=float(2.0 - share),
            metric=float(1.0 - min(gap, 0.89)),
            eval_samples=2000,
        )
        for share, gap in zip(fractions, gaps, strict=True)
    )
    return dataclasses.replace(make_pilot(global_batch), planned_samples=samples, points=points), knee, knee_gap


def test_a_fast_early_transient_is_not_extrapolated_at_its_slope():
    pilot, knee, knee_gap = transient_pilot(64, 20_000)
    found = forecast(model_of(pilots=(pilot,)), [64.0], cap_epochs=10)
    low, middle, high = 1.0 - np.quantile(found.metric, (0.95, 0.5, 0.05))
    truth = knee_gap * (200_000 / knee) ** -0.15
    assert low < truth < high
    assert middle == pytest.approx(truth, rel=0.25)
    assert middle > 4.0 * knee_gap * (200_000 / knee) ** -0.9


def test_early_points_hardly_move_the_forecast():
    pilot, _, _ = transient_pilot(64, 20_000)
    slower = tuple(dataclasses.replace(point, metric=0.5 * (point.metric + 0.1)) for point in pilot.points[:3])
    other = dataclasses.replace(pilot, points=(*slower, *pilot.points[3:]))
    first, second = (
        np.median(1.0 - forecast(model_of(pilots=(p,)), [64.0], cap_epochs=10).metric) for p in (pilot, other)
    )
    assert second == pytest.approx(first, rel=0.15)


def lost_pilot(global_batch, samples=20_000):
    """Learns, then its loss rises above where it began and it ends as a guess."""
    pilot = make_pilot(global_batch, samples)
    late = tuple(dataclasses.replace(point, metric=0.1, train_loss=2.5) for point in pilot.points[3:])
    return dataclasses.replace(pilot, points=(*pilot.points[:3], *late))


def test_a_pilot_whose_rate_was_too_high_does_not_lend_its_best_moments():
    model = model_of(pilots=(make_pilot(64, 20_000), lost_pilot(512)))
    assert model.seen_batches == (64.0, 64.0)
    assert model.unstable_batch == 512
    found = forecast(model, [64.0, 256.0, 512.0, 1024.0], target=0.8)
    alone = forecast(model_of(pilots=(make_pilot(64, 20_000),), noise=None), [64.0], target=0.8)
    assert np.array_equal(found.epochs[:, 0], alone.epochs[:, 0])
    reached = found.reached.mean(axis=0)
    assert (np.diff(reached) <= 0).all()
    assert reached[0] > 0.8
    assert reached[2] < 0.6
    assert reached[3] < 0.2


def test_between_stable_and_unstable_the_interval_is_wide():
    model = model_of(pilots=(make_pilot(64, 20_000), lost_pilot(512)))
    low, high = np.quantile(forecast(model, [64.0, 256.0]).metric, (0.05, 0.95), axis=0)
    assert (high - low)[1] > 2.0 * (high - low)[0]


def test_a_failed_noise_scale_does_not_decide():
    noise = dataclasses.replace(make_profile().noise, noise_scale_samples=3e9)
    assert model_of(pilots=(make_pilot(64),), noise=noise).critical_batch < 1e5


def test_noise_and_what_is_usual_are_weighed_by_how_sure_they_are():
    usual, usual_sd = critical_prior(None, 64)
    seen, seen_sd = critical_prior(20.0, 64)
    assert math.log(20.0) < seen < usual and seen_sd < usual_sd
    assert critical_prior(None, 128)[0] == pytest.approx(usual + math.log(2.0))


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.3, 5), st.floats(0.3, 2))
def test_effective_steps_fall_with_the_batch_and_in_the_limit_count_samples(batch, critical, sharpness, growth):
    batches = np.array([1e-9, batch, 2 * batch])
    steps = effective_steps(np.full(3, 1e6), batches, critical, sharpness, growth)
    assert (np.diff(steps) <= 0).all()
    assert float(steps[0]) == pytest.approx(1e6 / critical, rel=0.02)


def test_batches_beyond_the_pilots_are_lost_a_little_more_often_each_octave():
    model = model_of()
    reached = forecast(model, [512.0, 2048.0, 8192.0], target=0.3, cap_epochs=200).reached.mean(axis=0)
    assert "one run in 20 is counted as lost" in "".join(fit(make_profile(), make_job()).assumptions)
    assert reached[0] == 1.0 and (np.diff(reached) <= 0).all() and reached[-1] > 0.7


def effects_of(**numbers):
    return Effects.of([("method",)] * len(BATCHES), {"method": MitigationEffect(**numbers)})


def test_a_method_that_raises_the_critical_batch_helps_large_batches_and_leaves_small_ones():
    model = model_of()
    plain, raised = (forecast(model, effects=e) for e in (None, effects_of(log_critical=math.log(8.0))))
    gained = np.median(raised.metric, axis=0) - np.median(plain.metric, axis=0)
    assert gained[0] < 0.01 and gained[-1] > 0.02 and (gained >= 0).all()


def test_a_method_that_halves_the_work_halves_the_epochs():
    model = model_of()
    options = {"target": 0.85, "cap_epochs": 400, "schedule": "constant"}
    plain = np.median(forecast(model, **options).epochs, axis=0)
    halved = np.median(forecast(model, effects=effects_of(log_work=math.log(0.5)), **options).epochs, axis=0)
    assert halved == pytest.approx(plain / 2, rel=0.15, abs=1.0)


@pytest.mark.parametrize("name", ["log_critical_sd", "log_work_sd", "log_gap_sd"])
def test_an_effect_that_is_not_known_well_widens_the_forecast(name):
    model = model_of()
    plain, wide = (
        np.ptp(np.quantile(forecast(model, effects=e).metric[:, 2], (0.05, 0.95)))
        for e in (None, effects_of(**{name: 2.0}))
    )
    assert wide > 1.05 * plain


def test_effects_of_several_methods_multiply_and_unknown_methods_have_none():
    known = {"a": MitigationEffect(log_gap=0.1, log_gap_sd=0.3), "b": MitigationEffect(log_gap=0.2, log_gap_sd=0.4)}
    rows = Effects.of([("a", "b"), ("c",), ()], known).rows
    assert rows[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.3, 0.5, 1.0])
    assert not rows[1:, :6].any() and (rows[1:, 6] == 1.0).all()


def test_a_rate_that_rises_more_slowly_is_as_steep_as_that_of_a_smaller_batch():
    known = {"half": MitigationEffect(rate_power=0.5), "held": MitigationEffect(rate_power=0.0)}
    batches = np.array([16.0, 64.0, 1024.0, 1024.0, 1024.0])
    effects = Effects.of([("half",), ("half",), ("half",), ("held",), ()], known)
    assert effects.as_steep(batches, 64.0).tolist() == pytest.approx([16.0, 64.0, 256.0, 64.0, 1024.0])


@pytest.mark.parametrize(
    "numbers", [{"log_gap": math.nan}, {"log_work_sd": -0.1}, {"log_critical": math.inf}, {"rate_power": -1.0}]
)
def test_an_impossible_effect_is_refused_by_name(numbers):
    with pytest.raises(InputError, match=next(iter(numbers))):
        MitigationEffect(**numbers)


def test_small_evaluation_sets_widen_the_forecast():
    pilots = (make_pilot(64, 100_000), make_pilot(512, 100_000))
    wide, narrow = (
        np.ptp(
            np.quantile(
                forecast(model_of(pilots=pilots, facts=make_facts(eval_samples=n)), [64.0]).metric, (0.05, 0.95)
            )
        )
        for n in (50, 10_000)
    )
    assert wide > 1.5 * narrow


def test_a_pilot_that_lost_what_it_learnt_is_said_aloud():
    profile = make_profile(pilots=(make_pilot(64, 20_000), lost_pilot(512)))
    said = "\n".join(fit(profile, make_job()).assumptions)
    assert "the pilot at global batch 512 lost again" in said
    assert "rests on what is usual" in said


def test_pairs_of_batch_and_effect_that_differ_are_found_once():
    known = {"a": MitigationEffect(log_gap=0.1), "b": MitigationEffect(log_gap=0.2)}
    batches = np.array([64.0, 8.0, 64.0, 8.0, 64.0, 64.0])
    sizes, none, which = distinct(batches, None, np.zeros(6, dtype=np.intp))
    assert sizes.tolist() == [8.0, 64.0] and none is None and sizes[which].tolist() == batches.tolist()
    effects, method = Effects.of([("a",), ("b",), ("unknown", "a")], known), np.array([0, 0, 1, 2, 2, 0])
    sizes, acting, which = distinct(batches, effects, method)
    assert len(sizes) == len(acting.rows) == 3
    assert sizes[which].tolist() == batches.tolist()
    assert acting.rows[which].tolist() == effects.rows[method].tolist()
    assert acting.part(slice(1, 3)).rows.tolist() == acting.rows[1:3].tolist()


def test_a_method_without_an_effect_is_as_none_at_all():
    model = model_of()
    bare = forecast(model, target=0.85)
    held = forecast(model, target=0.85, effects=Effects.of([()] * len(BATCHES), {}))
    assert (bare.metric == held.metric).all() and (bare.epochs == held.epochs).all()
    assert bare.metric.shape == bare.epochs.shape == bare.reached.shape == (DRAWS, len(BATCHES))


@pytest.mark.parametrize("evaluations", [1, 7, 200])
def test_the_first_evaluation_within_is_the_first_that_is_at_most_what_is_needed(evaluations):
    generator = np.random.default_rng(evaluations)
    falling = -np.sort(generator.integers(0, 9, (5, evaluations)), axis=1).astype(float)
    needed = generator.integers(-11, 3, (5, 6)).astype(float)
    needed[0, :2] = -np.inf, np.inf
    expected = [[sum(v > wanted for v in row) for wanted in wants] for row, wants in zip(falling, needed, strict=True)]
    assert _first_within(falling, needed).tolist() == expected
