import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_profile
from tula_core.models.step.time import Shapes
from tula_core.models.totals import fit_overheads, steps_per_epoch, tail_shapes, time_to_train_s
from tula_core.records import Candidate, EvaluationTiming, StartUp


def predict(duration, *processes):
    return duration.predict(np.array(processes, dtype=float))


@given(st.integers(1, 5000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 300), st.integers(1, 5))
def test_the_tail_holds_what_is_left_over(samples, nodes, processes, local_batch, accumulation):
    shapes = Shapes.of(
        [Candidate(nodes=nodes, processes_per_node=processes, local_batch=local_batch, accumulation=accumulation)]
    )
    tail, there = tail_shapes(samples, shapes)
    left = samples % int(shapes.global_batch[0])
    assert bool(there[0]) == (left > 0)
    assert 1 <= tail.local_batch[0] <= local_batch
    assert 1 <= tail.accumulation[0] <= accumulation
    if left:
        assert left <= tail.global_batch[0] < left + nodes * processes * accumulation
    full = samples // int(shapes.global_batch[0])
    assert steps_per_epoch(samples, shapes.global_batch)[0] == full + (left > 0)


def test_total_is_the_sum_of_its_parts():
    seconds = time_to_train_s(np.array(7.0), np.array(3.0), np.array(10.0), np.array(0.5), np.array(0.1))
    assert seconds == pytest.approx(7.0 + 2 * 0.1 + 3 * 10.5 * (1 + 0.1 / 5))


def test_measured_numbers_of_processes_are_met():
    over = fit_overheads(make_profile())
    assert predict(over.start_up, 1, 2)[0] == pytest.approx([4.0, 5.0])
    assert predict(over.evaluation, 1, 2)[0] == pytest.approx([0.5, 0.25])


def test_unmeasured_numbers_follow_with_wider_intervals():
    over = fit_overheads(make_profile())
    start, start_sd = predict(over.start_up, 2, 4, 8)
    assert start == pytest.approx([5.0, 7.0, 11.0])
    assert (np.diff(start_sd) > 0).all()
    test, _ = predict(over.evaluation, 4, 8)
    assert test == pytest.approx([0.125, 0.0625])


def test_one_number_of_processes():
    profile = make_profile(
        start_up=(StartUp(nodes=1, processes_per_node=2, seconds=5.0),),
        evaluation=(EvaluationTiming(nodes=1, processes_per_node=2, samples=1000, seconds=0.1),),
    )
    over = fit_overheads(profile)
    assert predict(over.start_up, 1, 2, 8)[0] == pytest.approx([5.0, 5.0, 5.0])
    one, two, four = predict(over.evaluation, 1, 2, 4)[0]
    assert two == pytest.approx(0.5)  # five times the samples
    assert 2 * two > one > two > four > two / 2


def test_nothing_measured_is_assumed_widely():
    over = fit_overheads(make_profile(start_up=(), evaluation=(), checkpoint_s=None))
    value, log_sd = predict(over.start_up, 1)
    assert value[0] == 10.0
    assert log_sd[0] >= 0.7
    assert over.evaluation is None
    assert over.checkpoint_s == 0.0
