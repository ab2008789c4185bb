from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tula_core.training.fallback.expectation import Expectation

EPOCHS = 30
RUNS = 600
VALUE, WIDTH = 0.80, 0.05  # one width is the lower half of the 90 % interval


def expectation(higher: bool = True, epochs: int = EPOCHS, value: float = VALUE, width: float = WIDTH) -> Expectation:
    sign = 1 if higher else -1
    curve = [[e, *sorted((sign * value - width, sign * value, sign * value + width))] for e in range(1, epochs + 1)]
    made = Expectation.of(curve, higher_is_better=higher, warmup_epochs=0.5, last=epochs)
    assert made is not None
    return made


def points(metrics: NDArray[np.float64] | list[float], higher: bool = True) -> list[tuple[float, float]]:
    return [(float(epoch), float(seen if higher else -seen)) for epoch, seen in enumerate(metrics, start=1)]


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("metrics", "fell_at"),
    [
        ([0.8, 0.8, 0.8, 0.8], None),
        ([0.8, 0.8, 0.74, 0.8, 0.74, 0.8], None),  # just below, once and once more: noise
        ([0.8, 0.8, 0.74, 0.74, 0.74], None),  # below, but not far enough to be told from a forecast that is off
        ([0.8, 0.8, 0.7, 0.7, 0.7], 4),
        ([0.8, 0.8, 0.64, 0.8], 3),
        ([0.1, 0.8, 0.8], None),  # the first epoch
        ([0.1, 0.1, 0.1], 2),
        ([0.3, 0.54, 0.7, 0.76, 0.8], None),  # rises fast enough
        ([0.3, 0.35, 0.4], 2),
        ([0.8, float("nan"), 0.8], 2),
    ],
)
def test_a_fall_is_told_from_noise_and_from_a_late_rise(
    metrics: list[float], fell_at: int | None, higher: bool
) -> None:
    found = expectation(higher).fall(points(metrics, higher))
    assert (None if found is None else found.epochs) == fell_at


def test_the_end_of_a_run_is_not_judged() -> None:
    held = expectation(epochs=4)
    assert held.fall(points([0.8, 0.8, 0.8, 0.1])) is None


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("metrics", "good"),
    [
        ([0.8, 0.79, 0.6], 1),
        ([0.8, 0.1, 0.1], 0),
        ([0.1, 0.1, 0.1], None),  # never learnt: the weights it began with are better
        ([0.098, 0.102, 0.1], None),
        ([0.3, 0.45, 0.55], 2),  # learns, too slowly
        ([0.3, 0.45, 0.44], 1),
        ([float("nan"), 0.1], None),
    ],
)
def test_training_goes_on_from_weights_that_have_not_collapsed(
    metrics: list[float], good: int | None, higher: bool
) -> None:
    assert expectation(higher).good(points(metrics, higher)) == good


def test_what_is_unknown_is_held_against_nothing() -> None:
    made = [
        Expectation.of(curve, higher_is_better=True, warmup_epochs=0, last=3)
        for curve in (None, [], [[1, None, None, None]], [[1, 0.5, 0.5, 0.6]])
    ]
    assert made == [None] * 4
    partly = Expectation.of([[1, 0.7, 0.8, 0.9], [3, 0.8, 0.9, 1.0]], higher_is_better=True, warmup_epochs=0, last=9)
    assert partly is not None
    between, beyond = partly.at(2), partly.at(4)
    assert beyond is None and between is not None and between.low == pytest.approx(0.75)
    assert partly.fall([(1, 0.8), (2, 0.8), (4, 0.0), (5, 0.0)]) is None


def errors(kind: str, runs: int, epochs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return errors in widths, shape (runs, epochs), each epoch's 5 % quantile at one width below."""
    one = rng.standard_normal((runs, 1)) / 1.645
    own = rng.standard_normal((runs, epochs)) / 1.645
    if kind == "shared":
        return np.repeat(one, epochs, axis=1)
    if kind == "independent":
        return own
    if kind == "both":
        return np.sqrt(0.5) * (one + own)
    if kind == "following":  # each epoch's error half of the one before
        found = own.copy()
        for epoch in range(1, epochs):
            found[:, epoch] = 0.5 * found[:, epoch - 1] + np.sqrt(0.75) * own[:, epoch]
        return found
    spread = 0.6  # a log-normal shortfall, five times as long below as above
    shortfall = np.exp(spread * rng.standard_normal((runs, 1)))
    return np.repeat((1 - shortfall) / (np.exp(spread * 1.645) - 1), epochs, axis=1)


@pytest.mark.parametrize("epochs", [5, 30, 100])
@pytest.mark.parametrize("kind", ["shared", "independent", "both", "following", "long tail"])
def test_no_more_than_two_of_a_hundred_runs_raise_a_false_alarm(kind: str, epochs: int) -> None:
    rng = np.random.default_rng(5)
    held = expectation(epochs=epochs)
    runs = VALUE + WIDTH * errors(kind, RUNS, epochs, rng)
    alarms = sum(held.fall(points(run)) is not None for run in runs)
    assert alarms / len(runs) <= 0.02 + 2 * np.sqrt(0.02 / RUNS)


@pytest.mark.parametrize("kind", ["independent", "both"])
def test_a_method_that_loses_three_widths_is_caught_mostly(kind: str) -> None:
    rng = np.random.default_rng(6)
    held = expectation(epochs=10)
    runs = VALUE - 3 * WIDTH + WIDTH * errors(kind, 500, 10, rng)
    assert sum(held.fall(points(run)) is not None for run in runs) / len(runs) > 0.9
