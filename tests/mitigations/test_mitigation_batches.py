from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.job import Recipe
from tula_core.mitigations.batches.controller import decide, next_batch
from tula_core.mitigations.batches.dual import noise_over_equal, small_batch
from tula_core.mitigations.batches.growth import growing, seesaw, steps_of
from tula_core.mitigations.batches.hooks import Growth, held_clock
from tula_core.mitigations.method import Setting
from tula_core.mitigations.noise.rank_weights import draw_weights, variance


def cosine(fraction: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * fraction))


def linear(fraction: float) -> float:
    return 1.0 - fraction


@given(first=st.integers(1, 512), last=st.integers(1, 8192), until=st.floats(0.0, 0.9), factor=st.floats(1.2, 8.0))
def test_a_growing_batch_rises_from_the_first_to_the_last(first: int, last: int, until: float, factor: float) -> None:
    stages = growing(first, last, until, factor)
    batches = [stage.batch for stage in stages]
    assert stages[0].from_fraction == 0.0 and batches[-1] == last
    assert batches == sorted(batches) or last <= first
    if last > first:
        assert stages[-1].from_fraction <= until + 1e-8
    if last > first and until > 1e-6:
        assert batches[0] == first
        assert all(later <= factor * (earlier + 1) + 1 for earlier, later in itertools.pairwise(batches))


def test_the_samples_are_those_of_the_plain_run_and_the_steps_the_sum_over_stages() -> None:
    stages = growing(64, 512, 0.75, 2.0)
    assert [stage.batch for stage in stages] == [64, 128, 256, 512]
    assert steps_of(stages, 64_000) == pytest.approx(64_000 * 0.25 * (1 / 64 + 1 / 128 + 1 / 256 + 1 / 512))


@pytest.mark.parametrize(("batch", "factor"), [(1024, 2.0), (96, 1.5), (64, 1.0), (32, 1.0)])
def test_a_start_above_the_reference_batch_raises_the_rate_with_it(batch: int, factor: float) -> None:
    options = {"until": 0.75, "factor": 2.0, "start": 2.0}
    stages = growing(64, batch, 0.75, 2.0, 2.0)
    assert stages[0].batch == min(128, batch) and stages[-1].batch == batch
    setting = Setting(
        recipe=Recipe(batch_size=64),
        processes=1,
        rank=0,
        local_batch=batch,
        accumulation=1,
        train_samples=6_400,
        total_samples=64_000,
        seed=0,
        options=options,
    )
    assert Growth(setting).rate(0.1, 0) == pytest.approx(0.1 * factor)


def quarter(fraction: float) -> float:
    return math.cos(math.pi * fraction / 2)


@pytest.mark.parametrize(("curve", "saved"), [(cosine, 0.5), (linear, 0.5), (quarter, 0.363)])
def test_seesaw_takes_the_published_share_of_the_steps(curve: Callable[[float], float], saved: float) -> None:
    """The integral of the schedule is the share of steps that stay: 1/2 for half cosine and line."""
    stages = seesaw(64, 10**9, curve, 1.05, adaptive=True)
    assert steps_of(stages, 64 * 100_000) / 100_000 == pytest.approx(1.0 - saved, abs=0.03)


@pytest.mark.parametrize("adaptive", [True, False])
def test_seesaw_keeps_the_noise_of_the_schedule(adaptive: bool) -> None:
    """Rate over batch, or over its root, is the schedule's in powers of two, also once the batch is at its most."""
    for index, stage in enumerate(seesaw(64, 2048, linear, 2.0, adaptive=adaptive)[:9]):
        grown = stage.batch / 64
        level = stage.rate_factor / (math.sqrt(grown) if adaptive else grown)
        assert level == pytest.approx(0.5**index)
        assert linear(stage.from_fraction) <= level + 1e-9


def test_seesaw_lowers_the_rate_where_the_batch_is_at_its_most() -> None:
    stages = seesaw(64, 256, linear, 2.0, adaptive=False)
    assert max(stage.batch for stage in stages) == 256
    assert stages[-1].rate_factor < 0.1
    assert seesaw(64, 256, linear, 1.0, adaptive=False) == seesaw(64, 64, linear, 2.0, adaptive=False)


def test_the_schedule_stands_still_while_the_batch_grows() -> None:
    assert [held_clock(x, 0.6) for x in (0.0, 0.3, 0.6, 0.8, 1.0)] == pytest.approx([0, 0, 0, 0.5, 1])


def test_a_constant_noise_scale_moves_the_batch_to_one_place() -> None:
    batch, seen = 64, []
    for _ in range(10):
        batch = next_batch(batch, 1000.0, 0.5, 4096)
        seen.append(batch)
    assert seen[:4] == [128, 256, 512, 512] and set(seen[3:]) == {512}


def test_growing_noise_gives_a_staircase_and_never_a_step_back() -> None:
    batch, seen = 64, []
    for noise in np.geomspace(50, 20_000, 30):
        batch = next_batch(batch, float(noise), 0.5, 2048)
        seen.append(batch)
    assert seen == sorted(seen) and seen[-1] == 2048
    assert {math.log2(later / earlier) for earlier, later in zip(seen, seen[1:], strict=False)} <= {0.0, 1.0}
    assert next_batch(512, 10.0, 0.5, 4096) == 512


def test_an_unknown_noise_scale_changes_nothing_and_says_so() -> None:
    assert decide(64, None, 0.5, 4096).batch == 64
    assert "not known" in decide(64, None, 0.5, 4096).reason
    assert next_batch(64, math.inf, 0.5, 4096) == 64
    assert "are the most" in decide(4096, 1e9, 0.5, 4096).reason


def test_dual_batches_are_those_of_the_authors_files() -> None:
    """File names in the authors' repository state them for these constants."""
    assert [small_batch(2.2595e-4, 6.2339e-3, 5, n, 1000, 1.05) for n in (1, 2, 3, 4)] == [79, 165, 237, 297]
    assert small_batch(2.2595e-4, 6.2339e-3, 5, 2, 1000, 1.0) == 1000
    with pytest.raises(InputError, match="leaves 1 small of 4 processes no samples"):
        small_batch(1e-4, 1e-3, 4, 1, 100, 1.4)


def test_equal_weights_on_unequal_batches_raise_the_noise() -> None:
    assert noise_over_equal([64, 64, 64]) == pytest.approx(1.0)
    assert noise_over_equal([16, 240]) > 2.0


@given(groups=st.integers(2, 16), small=st.integers(8, 256), seed=st.integers(0, 10_000))
def test_noise_weights_are_not_negative_and_sum_to_the_groups(groups: int, small: int, seed: int) -> None:
    weights = draw_weights(groups, variance(256, small, groups), seed)
    assert sum(weights) == pytest.approx(groups) and min(weights) >= 0
    assert weights == draw_weights(groups, variance(256, small, groups), seed)


@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0, 7.0])
def test_noise_weights_have_the_variance_that_gives_the_small_batchs_noise(spread: float) -> None:
    drawn = np.array([draw_weights(8, spread, seed) for seed in range(4000)])
    assert drawn.mean(axis=0) == pytest.approx(np.ones(8), abs=4 * math.sqrt(spread / 4000))
    assert drawn.var() == pytest.approx(spread, rel=0.1)


def test_no_noise_is_added_at_or_below_the_small_batch() -> None:
    assert variance(64, 64, 8) == variance(32, 64, 8) == 0.0
    assert draw_weights(8, 0.0, 1) == [1.0] * 8
