from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tula_core.engine.context import WorkerContext
from tula_core.training.eta import seconds_left
from tula_core.training.guard import WATCHED_STEPS, Guard, has_diverged


@pytest.mark.parametrize(
    ("loss", "diverged"), [(2.0, False), (9.9, False), (10.3, True), (float("nan"), True), (float("inf"), True)]
)
def test_divergence_is_non_finite_or_far_above_the_start(loss: float, diverged: bool) -> None:
    assert has_diverged(loss, initial_loss=2.3) is diverged


def test_a_small_loss_may_rise_by_noise() -> None:
    assert not has_diverged(0.2, initial_loss=0.001)


@pytest.fixture
def guard(tmp_path: Path, kept_signals: None) -> Iterator[Guard]:
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    yield Guard(context, None)
    context.close()


def test_the_first_steps_are_each_looked_at_then_ever_fewer(guard: Guard) -> None:
    checked = []
    for step in range(1, 400):
        guard.add([torch.tensor(2.0)], [4])
        if guard.due:
            assert guard.check().loss == 2.0
            checked.append(step)
    assert checked[:WATCHED_STEPS] == list(range(1, WATCHED_STEPS + 1))
    assert len(checked) < 100


def test_a_loss_that_is_not_a_number_is_seen(guard: Guard) -> None:
    guard.add([torch.tensor(2.0)], [1])
    assert not guard.check().diverged
    guard.add([torch.tensor(float("nan"))], [1])
    assert guard.check().diverged


def test_no_estimate_before_any_work() -> None:
    assert seconds_left(0, 100, 5.0) is None
    assert seconds_left(10, 100, 0.0) is None
    assert seconds_left(10, 100, 5.0) == 20.0
