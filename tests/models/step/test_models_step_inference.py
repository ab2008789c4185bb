import dataclasses

import numpy as np
import pytest

from tula_core.models.inference.fitting import Z90
from tula_core.models.step.inference import Timings, fit_law
from tula_core.models.step.law import NAMES, index, parts
from tula_core.models.step.learning import learn_population, start
from tula_core.models.step.misfit import KERNELS, Amplitudes, covariance, fit_amplitudes, kernel, octaves, same
from tula_core.models.step.population import Population, load_population, prior_of
from tula_core.models.step.scale import Scale
from tula_core.models.step.time import Shapes


def grid(nodes, processes, batches):
    cells = np.array([(n, g, b) for n in nodes for g in processes for b in batches], dtype=float)
    return Shapes(
        nodes=cells[:, 0],
        processes_per_node=cells[:, 1],
        local_batch=cells[:, 2],
        accumulation=np.ones(len(cells)),
    )


def job(seed, shapes, noise=0.02, unit=1.0):
    """A job drawn from the built-in population: its timings of ``shapes``, and its true seconds for any others."""
    generator = np.random.default_rng(seed)
    population = load_population()
    draw = population.mean + 0.5 * np.linalg.cholesky(population.covariance) @ generator.standard_normal(len(NAMES))
    scale = Scale(small_s=0.1 * unit, large_s=0.4 * unit, small_batch=8.0, large_batch=128.0)
    offset, matrix = scale.map()
    theta = offset + matrix @ draw

    def truth(where):
        return parts(where, theta).total

    found = parts(shapes, theta)
    measured = found.total * np.exp(noise * generator.standard_normal(len(found.total)))
    timings = Timings(
        shapes=shapes,
        time_s=measured,
        relative_error=np.zeros(len(measured)),
        parts_s={"communication": found.communication},
    )
    return timings, truth


def fitted(timings):
    return fit_law(timings, prior_of(load_population(), timings))


def interval(law, shapes):
    mean, variance = law.predict(shapes)
    return mean, np.sqrt(variance + law.noise_variance)


def test_jobs_of_the_population_lie_in_their_intervals_beyond_what_was_measured():
    far = grid((4, 8), (2, 4), (8, 64))
    inside = []
    for seed in range(12):
        timings, truth = job(seed, grid((1, 2), (1, 4), (8, 32, 128)))
        mean, sd = interval(fitted(timings), far)
        inside.append(np.abs(np.log(truth(far)) - mean) <= Z90 * sd)
    assert np.mean(inside) >= 0.75


def test_many_measurements_recover_the_truth():
    timings, truth = job(1, grid((1, 2, 4, 8), (1, 2, 4), (8, 16, 32, 64, 128)), noise=0.01)
    between = grid((1, 3, 6), (1, 3), (12, 48, 100))
    mean, _ = interval(fitted(timings), between)
    assert np.abs(np.exp(mean) / truth(between) - 1).mean() < 0.03


def test_seconds_and_milliseconds_are_treated_alike():
    timings, _ = job(2, grid((1, 2), (1, 4), (8, 32, 128)))
    other = dataclasses.replace(
        timings,
        time_s=1e3 * timings.time_s,
        parts_s={name: 1e3 * value for name, value in timings.parts_s.items()},
    )
    far = grid((4,), (4,), (8, 64))
    (mean, sd), (shifted, again) = interval(fitted(timings), far), interval(fitted(other), far)
    assert shifted - np.log(1e3) == pytest.approx(mean, abs=0.01)
    assert again == pytest.approx(sd, rel=0.05)


def test_one_configuration_that_is_far_off_is_off_there_alone():
    shapes = grid((1, 2), (1, 2, 4), (8, 16, 32, 64, 128))
    timings, truth = job(3, shapes, noise=0.005)
    odd = 17
    time_s = timings.time_s.copy()
    time_s[odd] *= 1.8
    law = fitted(dataclasses.replace(timings, time_s=time_s))
    mean, _ = interval(law, shapes)
    assert law.mean(shapes) == pytest.approx(mean, rel=1e-12)
    error = np.exp(mean) / truth(shapes) - 1
    assert error[odd] > 0.5
    assert np.abs(np.delete(error, odd)).max() < 0.1


def test_configurations_together_are_as_unsure_as_each_alone():
    timings, _ = job(5, grid((1, 2), (1, 2), (8, 32)))
    asked = grid((1, 2, 4), (1, 3), (8, 20, 64))
    law = fitted(timings)
    mean, variance = law.predict(asked)
    together, covariance_ = law.joint(asked)
    assert together == pytest.approx(mean) and np.diag(covariance_) == pytest.approx(variance, rel=1e-6, abs=1e-9)
    assert np.linalg.eigvalsh(covariance_).min() > -1e-9
    assert law.mean(asked) == pytest.approx(mean, rel=1e-12)
    sd = np.sqrt(variance)
    assert (np.abs(covariance_) <= np.outer(sd, sd) * (1 + 1e-6)).all()


def test_one_measurement_gives_a_wide_interval_elsewhere():
    timings, _ = job(4, grid((1,), (1,), (32,)))
    law = fitted(timings)
    _, sd = interval(law, grid((1, 8), (1, 4), (32,)))
    assert sd[0] < 0.15
    assert sd[-1] > 0.4


def test_covariances_are_positive_and_kernels_are_one_at_home():
    places = octaves(grid((1, 2, 4), (1, 2), (8, 9, 64)))
    for name in KERNELS:
        assert np.diag(kernel(name, places, places)) == pytest.approx(1.0)
    total = covariance(places, places, np.log(np.full(len(KERNELS) + 1, 0.05)))
    assert np.linalg.eigvalsh(total).min() > -1e-12
    assert (same(places, places) == np.eye(len(places), dtype=bool)).all()


def test_amplitudes_are_found_where_the_data_show_them():
    places = octaves(grid((1, 2, 4), (1, 2, 4), (8, 16, 32, 64, 128, 256)))
    truth = np.log([0.01, 0.15, 0.01, 0.01, 0.01, 0.03])
    total = covariance(places, places, truth) + np.exp(2 * truth[-1]) * np.eye(len(places))
    residual = np.linalg.cholesky(total) @ np.random.default_rng(0).standard_normal(len(places))
    prior = Amplitudes(mean=np.log(np.full(6, 0.03)), sd=np.full(6, 0.7))
    nothing = np.zeros((len(places), len(places)))
    found = fit_amplitudes(places, residual, nothing, np.zeros(len(places)), prior, prior.mean)
    assert found.log_sd[1] == pytest.approx(truth[1], abs=0.8)
    lone = 0.5 * np.log(np.exp(2 * found.log_sd[[4, 5]]).sum())  # noise and own misfit look alike without repeats
    assert lone == pytest.approx(truth[-1], abs=0.45)
    assert found.log_sd[1] > found.log_sd[[0, 2, 3, 4]].max() + 0.5
    assert found.sd[1] < found.sd[0] <= 0.7  # what the data say nothing of stays as vague as it was


def test_a_population_is_learnt_from_its_jobs():
    shapes = grid((1, 2, 4), (1, 4), (8, 32, 128))
    jobs = [job(seed, shapes)[0] for seed in range(8)]
    learnt, truth = learn_population(jobs, rounds=2), load_population()
    place = index("between_size_s")
    before, after = (abs(each.mean[place] - truth.mean[place]) for each in (start(), learnt))
    assert after < before + 0.5
    assert np.linalg.eigvalsh(learnt.covariance).min() > 0
    assert learnt.covariance[place, place] < start().covariance[place, place]


def test_the_priors_file_holds_this_law_and_survives_being_written():
    population = load_population()
    again = Population.from_dict(population.to_dict())
    assert again.mean == pytest.approx(population.mean)
    assert np.linalg.eigvalsh(population.covariance).min() > 0
    assert 1.0 <= population.widening < 2.0
    with pytest.raises(AssertionError, match="another law"):
        Population.from_dict(population.to_dict() | {"names": ["floor_s"]})


def test_the_scale_leaves_communication_off_and_knows_little_of_one_batch_size():
    timings, _ = job(5, grid((1, 2), (1, 4), (8, 128)))
    scale = Scale.of(timings.shapes, timings.time_s, timings.parts_s)
    assert (scale.small_batch, scale.large_batch) == (8.0, 128.0)
    assert scale.small_s <= timings.time_s.min()
    one = dataclasses.replace(scale, small_batch=128.0)
    assert one.unknown_variance[index("floor_s")] > 100 * scale.unknown_variance[index("floor_s")]
