import dataclasses

import numpy as np
import pytest

from tests.factories import make_pilot
from tula_core.models.learning.points import MetricScale, is_unstable, points_of

SCALE = MetricScale(ceiling=1.0, higher_is_better=True, chance_gap=0.9)


def columns(pilots, train_samples=20_000):
    return points_of(pilots, SCALE, train_samples=train_samples)


def changed(pilot, number, **changes):
    points = list(pilot.points)
    points[number] = dataclasses.replace(points[number], **changes)
    return dataclasses.replace(pilot, points=tuple(points))


def test_later_points_count_for_more():
    noise = columns([make_pilot(64, schedule="trapezoid")]).noise
    assert (np.diff(noise) < 0).all()


def test_evaluations_after_the_first_epoch_count_alike():
    pilot = make_pilot(64, schedule="constant")
    relative = columns([pilot], train_samples=1000).noise
    assert relative == pytest.approx(relative[-1], rel=0.05)
    assert (columns([pilot]).noise[:-1] > relative[:-1]).all()


def test_more_points_of_one_run_are_not_more_runs():
    few, many = (columns([make_pilot(64, points=count)]) for count in (8, 80))
    late = [points.noise[points.samples > 3000] for points in (few, many)]
    assert np.sum(1.0 / late[1] ** 2) == pytest.approx(np.sum(1.0 / late[0] ** 2), rel=0.3)


def test_a_distant_batch_is_believed_less():
    points = columns([make_pilot(64), make_pilot(512)])
    last = points.noise[points.samples == 6000]
    assert last[1] > last[0]


def test_guesses_are_left_out():
    points = columns([changed(make_pilot(64), 0, metric=0.1)])
    assert len(points.gap) == len(make_pilot(64).points) - 1
    assert not len(columns([]).gap)


def test_a_steady_pilot_is_stable():
    assert not is_unstable(make_pilot(64), SCALE)
    assert not is_unstable(make_pilot(64, points=1), SCALE)


@pytest.mark.parametrize(
    ("number", "changes"), [(3, {"train_loss": 1.2}), (-1, {"metric": 0.3}), (-1, {"metric": 0.1, "train_loss": 2.3})]
)
def test_a_rising_loss_or_lost_accuracy_is_unstable(number, changes):
    assert is_unstable(changed(make_pilot(64, 20_000), number, **changes), SCALE)


def test_luck_of_a_small_evaluation_is_not_instability():
    pilot = make_pilot(64, 20_000)
    small = dataclasses.replace(
        pilot, points=tuple(dataclasses.replace(point, eval_samples=50) for point in pilot.points)
    )
    worse = small.points[-1].metric - 0.05
    assert not is_unstable(changed(small, -1, metric=worse), SCALE)


def test_the_error_of_an_evaluation_is_binomial():
    assert float(SCALE.evaluation_sd(np.array(0.2), np.array(400.0))) == pytest.approx(0.1)
    assert float(SCALE.evaluation_sd(np.array(1e-9), np.array(100.0))) * 1e-9 == pytest.approx(0.005)
