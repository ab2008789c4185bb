"""A rate out of short runs: on quadratics whose best rate is known, on made-up curves, and on ones that say nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.models.learning.rate_range import RateRange, find_rate, for_longer_runs, gains, optimum, scatter
from tula_core.models.learning.rate_search import HIGHEST, LOWEST, Trials, next_place, rate_at

NAN = math.nan
RATES = [rate_at(place) for place in range(-8, 1)]


def bowl(rate, best, noise=0.0, diverges_from=math.inf):
    """The final loss of a run that is least at ``best``; far from it a run hardly moves, nor does chance move it."""
    ratio = rate / best
    return NAN if rate >= diverges_from else 2.3 * math.exp(-6 * ratio / (1 + ratio**2) * (1 + noise))


def table(bests, noise=0.02, rates=RATES, **kind):
    random = np.random.default_rng(3)
    return [[bowl(rate, best, noise * random.standard_normal(), **kind) for rate in rates] for best in bests]


def cut_short(run, most, seeds=3):
    """Search until ``most`` runs are made; return what is known then."""
    losses = {}
    trials = Trials(losses=losses, initial=[2.3] * seeds, seeds=seeds)
    for _ in range(most):
        if (place := next_place(trials, adaptive=False)) is not None:
            tried = losses.setdefault(place, [])
            tried.append(run(rate_at(place), len(tried)))
    return trials


def searched(run, seeds=3, adaptive=False, initial=2.3):
    """Search with ``run(rate, seed)`` as the final loss; return the result and how often it ran."""
    losses = {}
    trials = Trials(losses=losses, initial=[initial] * seeds, seeds=seeds)
    count = 0
    while (place := next_place(trials, adaptive=adaptive)) is not None:
        tried = losses.setdefault(place, [])
        assert len(tried) < seeds, "a place is tried once with each seed"
        tried.append(run(rate_at(place), len(tried)))
        count += 1
        assert count < 100
    return trials.result(), count


@pytest.mark.parametrize(("flat", "steep"), [(1.0, 10.0), (0.2, 4.0), (20.0, 300.0)])
def test_descent_on_a_quadratic_gets_its_best_rate(flat, steep):
    """The best constant rate is 2 / (m + L): Nesterov 2004, theorem 2.1.15."""
    curvature = np.geomspace(flat, steep, 8)

    def run(rate, seed):
        start = np.random.default_rng(seed).standard_normal(8)
        with np.errstate(over="ignore"):
            end = start * (1 - rate * curvature) ** 60
            loss = float(np.sum(curvature * end**2))
        return loss + 1e-9 if math.isfinite(loss) else NAN

    found, _ = searched(run, initial=float(curvature.sum()))
    assert found.low <= 2 / (flat + steep) <= found.high
    assert 0.5 < found.rate * (flat + steep) / 2 < 2


@pytest.mark.parametrize("best", [3e-6, 2e-4, 0.013, 0.4, 5.0, 40.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_search_goes_to_wherever_the_best_is(best, adaptive):
    random = np.random.default_rng(1)
    found, count = searched(
        lambda rate, seed: bowl(rate, best, 0.05 * random.standard_normal(), diverges_from=6 * best), adaptive=adaptive
    )
    assert found.low <= best <= found.high
    assert found.rate == pytest.approx(best, rel=0.5)
    assert count <= 30


def test_the_search_takes_few_runs_and_most_of_them_near_the_best():
    tried = []

    def run(rate, seed):
        tried.append(rate)
        return bowl(rate, 0.05)

    searched(run)
    assert len(tried) <= 22
    assert sum(0.01 < rate < 0.25 for rate in tried) >= len(tried) / 2


def test_a_first_seed_that_misleads_is_corrected_by_the_others():
    found, _ = searched(lambda rate, seed: bowl(rate, 0.8 if seed == 0 else 0.1, diverges_from=30))
    assert found.refused or found.low <= 0.2 <= found.high


def test_the_interval_is_nine_in_ten():
    random = np.random.default_rng(0)
    inside = []
    for _ in range(60):
        found = find_rate(
            RATES, [[bowl(r, 0.1, 0.2 * random.standard_normal()) for r in RATES] for _ in range(3)], [2.3] * 3
        )
        inside.append(found.rate is not None and found.low <= 0.1 <= found.high)
    assert np.mean(inside) >= 0.85


def test_more_noise_is_a_wider_interval():
    widths = []
    for noise in (0.01, 0.1, 0.2):
        found = find_rate(RATES, table([0.1] * 3, noise), [2.3] * 3)
        widths.append(found.high / found.low)
    assert widths == sorted(widths)


def test_a_curve_that_ends_in_nan_gives_a_rate_from_its_valid_part():
    found = find_rate(RATES, table([0.03] * 3, diverges_from=0.2), [2.3] * 3)
    assert found.low <= 0.03 <= found.high < 1.0


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([[NAN] * 9] * 3, "no rate from 0.01 to 1 makes the loss"),
        ([[2.3] * 9] * 3, "no rate from 0.01 to 1 makes the loss"),
        ([[5.0] * 9] * 3, "no rate from 0.01 to 1 makes the loss"),
        (table([1e-3] * 3), "may lie below 0.01"),
        (table([50.0] * 3), "may lie above 1"),
        (table([0.04, 0.1, 0.5], noise=0.2), "the 3 seeds disagree: the best rate may be anything from"),
    ],
)
def test_what_is_not_certain_is_refused_with_a_remedy(losses, expected):
    found = find_rate(RATES, losses, [2.3] * 3)
    assert (found.rate, found.low, found.high) == (None, None, None)
    assert expected in found.refused
    assert "Give probe.seconds more" in found.refused


@pytest.mark.parametrize("initial", [[NAN, 2.3], [math.inf, 2.3]])
def test_an_untrained_network_without_a_loss_is_refused(initial):
    assert "not finite" in find_rate(RATES, table([0.1] * 2), initial).refused


def test_one_seed_or_two_rates_say_nothing():
    assert "not the time" in find_rate(RATES, table([0.1]), [2.3]).refused
    assert "not the time" in find_rate(RATES[:2], table([0.1] * 3, rates=RATES[:2]), [2.3] * 3).refused


def test_the_order_of_seeds_and_the_unit_of_the_loss_do_not_matter():
    losses = table([0.08, 0.1, 0.13])
    found = find_rate(RATES, losses, [2.3] * 3)
    turned = find_rate(RATES, losses[::-1], [2.3] * 3)
    scaled = find_rate(RATES, (1000 * np.array(losses)).tolist(), [2300.0] * 3)
    assert (turned.rate, turned.low, turned.high) == pytest.approx((found.rate, found.low, found.high))
    assert (scaled.rate, scaled.low, scaled.high) == pytest.approx((found.rate, found.low, found.high))


def test_a_seed_that_is_worse_at_every_rate_says_nothing_against_the_best():
    losses = table([0.1] * 3)
    worse = [losses[0], losses[1], [3 * loss for loss in losses[2]]]
    assert scatter(gains(np.array(worse), np.full(3, 20.0))) == pytest.approx(
        scatter(gains(np.array(losses), np.full(3, 20.0)))
    )


def test_a_loss_below_nothing_is_compared_by_differences():
    losses = (np.array(table([0.1] * 3)) - 5.0).tolist()
    found = find_rate(RATES, losses, [2.3 - 5.0] * 3)
    assert found.low <= 0.1 <= found.high


def test_the_same_runs_give_the_same_answer():
    losses = table([0.05, 0.1, 0.2], noise=0.3)
    assert find_rate(RATES, losses, [2.3] * 3) == find_rate(RATES, losses, [2.3] * 3)


def test_a_parabola_is_found_exactly_between_unequal_neighbours():
    places = np.array([0.0, 1.0, 3.0, 4.0])
    assert optimum(places, ((places - 1.4) ** 2)[None, :]) == pytest.approx([1.4])
    assert optimum(places, np.array([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]])).tolist() == [0.0, 4.0]


@pytest.mark.parametrize("best", [0.02, 0.06, 0.3])
def test_two_seeds_find_in_the_runs_that_are_planned_for_them_what_all_would(best):
    random = np.random.default_rng(5)
    noise = {(rate_at(place), seed): random.standard_normal() for place in range(-28, 9) for seed in range(3)}

    def run(rate, seed):
        return bowl(rate, best, 0.02 * noise[rate, seed], diverges_from=12 * best)

    few, all_of_them = cut_short(run, 14, seeds=2), cut_short(run, 99)
    assert (few.seeds_used, all_of_them.seeds_used) == (2, 3)
    found, sure = few.result(), all_of_them.result()
    assert found.low <= best <= found.high and sure.low <= best <= sure.high
    assert found.rate == pytest.approx(sure.rate, rel=0.4)


def test_a_search_that_time_ends_rests_on_the_seeds_that_have_tried_enough():
    seeds = [cut_short(lambda rate, seed: bowl(rate, 0.06), most).seeds_used for most in range(1, 30)]
    assert seeds == sorted(seeds) and seeds[0] == 2 and seeds[-1] == 3
    early = cut_short(lambda rate, seed: bowl(rate, 0.06), 5).result(longer="Give probe.seconds 45 or more")
    assert early.refused == "there was not the time for two seeds at three rates. Give probe.seconds 45 or more"


def test_a_search_ends_where_nothing_helps():
    found, count = searched(lambda rate, seed: NAN)
    assert "no rate" in found.refused or "not the time" in found.refused
    assert count <= 8


def test_a_search_does_not_begin_where_the_untrained_network_has_no_loss():
    found, count = searched(lambda rate, seed: 1.0, initial=NAN)
    assert "not finite" in found.refused and count <= 4


def test_longer_runs_have_a_lower_rate_and_a_wider_interval():
    short = RateRange(rate=0.1, low=0.05, high=0.2)
    assert for_longer_runs(short, 1.0) == short
    rates = [for_longer_runs(short, times) for times in (1.0, 4.0, 64.0, 1000.0)]
    assert [found.rate for found in rates] == sorted((found.rate for found in rates), reverse=True)
    widths = [found.high / found.low for found in rates]
    assert widths == sorted(widths)
    assert rates[2].rate == pytest.approx(0.05)  # the sixth root of 64 is two
    assert all(found.low < found.rate < found.high for found in rates)
    refused = RateRange(rate=None, low=None, high=None, refused="why")
    assert for_longer_runs(refused, 10.0) == refused


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.floats(1e-3, 1e3), st.just(NAN), st.just(math.inf)), min_size=9, max_size=9),
        min_size=2,
        max_size=5,
    )
)
def test_whatever_the_losses_the_answer_is_a_rate_inside_its_interval_or_a_reason(losses):
    found = find_rate(RATES, losses, [2.3] * len(losses))
    if found.rate is None:
        assert found.refused
        return
    assert RATES[0] / 2 < found.low <= found.rate <= found.high < 2 * RATES[-1]
    assert found.high <= 10 * found.low * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.booleans())
def test_a_search_of_noise_ends(seed, seeds, adaptive):
    random = np.random.default_rng(seed)
    tried = []

    def run(rate, number):
        tried.append(rate)
        return float(random.choice([NAN, 2.3 * math.exp(random.standard_normal())]))

    searched(run, seeds=seeds, adaptive=adaptive)
    assert all(rate_at(LOWEST) <= rate <= rate_at(HIGHEST) for rate in tried)
